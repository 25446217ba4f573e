# The loop: frames in, rows and controls out.
#
# A frame is looked at once. Rows go straight into their columns; everything else is kept aside, with the
# number of rows before it. Plain functions on one structure, so that the compiler sees through them.

cdef enum Status:
    MORE
    FULL
    NO_MEMORY
    BAD_FRAME
    BAD_SHAPE
    BAD_COLLECTION
    BAD_KEY
    BAD_SNAPPY
    BAD_SIZE
    BAD_XATTRS
    SEQNO_FELL
    STREAMS_ABOUND

cdef enum:
    DATATYPE_AT = 5
    OPAQUE_AT = 12
    CAS_AT = 16
    SNAPPY_BIT = 2
    XATTR_BIT = 4
    UNSOUND = -2
    SMALL = 32
    # No element of a snappy block makes more than 64 bytes of 3.
    SNAPPY_RATIO = 22

cdef struct Feed:
    # Where bytes are read: memory, how far it is decoded and filled, and its number among the views' buffers.
    Memory* memory
    Py_ssize_t begin
    Py_ssize_t end
    int number

cdef struct Note:
    int64_t row
    int64_t at
    int64_t size
    int64_t offset
    # The bytes for flow control before it.
    int64_t counted
    # The last seqno before it, of the stream that it belongs to.
    uint64_t last

cdef struct Row:
    # A frame that becomes a row: where its parts are. `bases` are where header and extras begin.
    const uint8_t* bases[2]
    const uint8_t* key
    int64_t key_size
    const uint8_t* value
    int64_t value_size
    const uint8_t* xattrs
    int64_t xattrs_size
    int64_t collection
    uint64_t seqno
    Stream* stream
    int stream_id
    bint inflated
    Status problem

cdef struct Work:
    # What is asked for.
    const Shape* shapes
    const Spec* specs
    const int (*routes)[256]
    const int* at
    int n_columns
    uint64_t max_frame
    int64_t max_value
    bint collections
    bint inflate
    bint split_xattrs
    bint map_xattrs
    # Whether rows may be taken in runs.
    bint runs
    # The bits of a datatype that mean work.
    uint8_t opened
    bint check_keys
    bint quarantine
    bint views
    # The batch in work.
    Columns columns
    int64_t rows
    int64_t room
    int64_t hint
    int64_t data
    int64_t counted
    int64_t max_rows
    int64_t max_bytes
    Memory** sources
    int n_sources
    uint8_t* arena
    int64_t arena_used
    int64_t arena_room
    uint8_t* scratch
    int64_t scratch_room
    Note* notes
    int64_t n_notes
    int64_t notes_room
    uint8_t* noted
    int64_t noted_used
    int64_t noted_room
    # The connection.
    Streams streams
    uint64_t last_key
    Stream* last_stream
    int64_t offset
    uint64_t detail
    # Whether rows were taken out of the batch again.
    bint forgot


cdef Status scan(Work* w, Feed* feed) noexcept nogil:
    """Decodes whole frames until the feed has no more, a limit is reached, or something is wrong."""
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef const Shape* shape = NULL
    cdef uint32_t head, last_head = 0
    cdef uint64_t size
    cdef int kind, route
    cdef Check check
    cdef Status status
    if feed.memory == NULL:
        return MORE
    end = feed.memory.data + feed.end
    while True:
        at = feed.memory.data + feed.begin
        check = check_frame(at, end - at, w.max_frame, &size)
        if check != WHOLE:
            return MORE if check == INCOMPLETE else BAD_FRAME
        if w.rows >= w.max_rows or (w.data + <int64_t>size > w.max_bytes and w.data > 0):
            return FULL
        # Most frames look like the one before: same magic, opcode, extras length, and type if that counts.
        head = load16(at) | <uint32_t>at[EXTRAS_LENGTH_AT] << 16
        if head != last_head or shape == NULL or shape.varied:
            kind = 0 if at[0] == 0x80 or at[0] == 0x08 else 1 if at[0] == 0x81 or at[0] == 0x18 else at[0] - 0x80
            route = w.routes[kind][at[OPCODE_AT]]
            shape = NULL
            if route != NOWHERE:
                status = find_shape(w, at, route, &shape)
                if status != MORE:
                    return status
            last_head = head
        if shape != NULL and shape.event != NOWHERE:
            if shape.plain and w.runs and starts_run(w, at) and put_run(w, feed, end, shape):
                continue
            status = put_row(w, at, size, shape, end, feed)
        else:
            status = put_control(w, at, size, shape)
        if status != MORE:
            return status
        if (at[0] == 0x80 or at[0] == 0x08) and (shape == NULL or shape.effect != UNCOUNTED):
            w.counted += size
        w.data += size
        feed.begin += size
        w.offset += size


cdef Status find_shape(const Work* w, const uint8_t* at, int route, const Shape** found) noexcept nogil:
    """The shape of a frame. A row that fits none is wrong; a control is judged when it becomes an object."""
    cdef const Shape* shape
    cdef bint row = False
    cdef Py_ssize_t infos = at[KEY_LENGTH_AT] if is_framed(at[0]) else 0
    while route != NOWHERE:
        shape = &w.shapes[route]
        route = shape.next
        if shape.type != NOWHERE and shape.type != at[DATATYPE_AT]:
            continue
        row = shape.event != NOWHERE
        if shape.extras_length != at[EXTRAS_LENGTH_AT]:
            continue
        if shape.engine_at != NOWHERE and shape.engine_length != NOWHERE:
            if load16(at + infos + shape.engine_at) != shape.engine_length:
                continue
        if not whens_hold(shape, at + infos):
            continue
        found[0] = shape
        return MORE
    return BAD_SHAPE if row else MORE


cdef bint whens_hold(const Shape* shape, const uint8_t* at) noexcept nogil:
    cdef const When* when
    cdef uint64_t number
    cdef int i
    for i in range(shape.n_whens):
        when = &shape.whens[i]
        number = load32(at + when.offset) if when.width == 4 else at[when.offset]
        if number != when.number:
            return False
    return True


# ------------------------------------------------------------------------------------- controls

cdef Status put_control(Work* w, const uint8_t* at, uint64_t size, const Shape* shape) noexcept nogil:
    """Keeps a frame for Python, and lets it act on the rows that follow."""
    cdef uint64_t last = last_seqno(w, at)
    cdef Status status = act(w, at, size, shape) if shape != NULL and shape.effect != NOTHING else MORE
    if status != MORE:
        return status
    if w.n_notes == w.notes_room:
        if not grow(<uint8_t**>&w.notes, (2 * w.notes_room + 16) * sizeof(Note)):
            return NO_MEMORY
        w.notes_room = 2 * w.notes_room + 16
    if w.noted_room - w.noted_used < <int64_t>size:
        if not grow(&w.noted, max(2 * w.noted_room, w.noted_used + <int64_t>size)):
            return NO_MEMORY
        w.noted_room = max(2 * w.noted_room, w.noted_used + <int64_t>size)
    w.notes[w.n_notes] = Note(w.rows, w.noted_used, size, w.offset, w.counted, last)
    memcpy(w.noted + w.noted_used, at, size)
    w.noted_used += size
    w.n_notes += 1
    return MORE


cdef uint64_t last_seqno(const Work* w, const uint8_t* at) noexcept nogil:
    """Of the stream that a frame belongs to, 0 if there is none."""
    cdef int infos = at[KEY_LENGTH_AT] if is_framed(at[0]) else 0
    cdef const Stream* stream = stream_find(
        &w.streams, stream_key(load32(at + OPAQUE_AT), load16(at + VBUCKET_AT), max(stream_id_in(at, infos), 0))
    )
    return 0 if stream == NULL else stream.last


cdef Status act(Work* w, const uint8_t* at, uint64_t size, const Shape* shape) noexcept nogil:
    cdef int infos = at[KEY_LENGTH_AT] if is_framed(at[0]) else 0
    cdef uint64_t key = stream_key(load32(at + OPAQUE_AT), load16(at + VBUCKET_AT), max(stream_id_in(at, infos), 0))
    cdef const uint8_t* extras = at + infos
    cdef Stream* stream
    w.last_stream = NULL
    if shape.effect == STREAM_END:
        stream_close(&w.streams, key)
    if shape.effect != SNAPSHOT and shape.effect != DISORDER:
        return MORE
    # A marker that is too short for its window is refused when it becomes an object.
    if size < <uint64_t>(infos + max(shape.end_at + 8, HEADER_SIZE + shape.extras_length)):
        return MORE
    stream = stream_open(&w.streams, key)
    if stream == NULL:
        return STREAMS_ABOUND
    stream.begun = False
    stream.disorder = shape.effect == DISORDER and load32(extras + HEADER_SIZE) & 1
    stream.windowed = shape.effect == SNAPSHOT and shape.start_at != NOWHERE
    if stream.windowed:
        stream.start = load64(extras + shape.start_at)
        stream.end = load64(extras + shape.end_at)
    return MORE


cdef int stream_id_in(const uint8_t* at, int infos) noexcept nogil:
    """The stream id in framing extras, NOWHERE if there is none, UNSOUND if they do not add up.

    In an answer the same number means something else.
    """
    cdef const uint8_t* info = at + HEADER_SIZE
    cdef const uint8_t* end = info + infos
    cdef bint asks = at[0] == 0x08
    cdef int number, length, found = NOWHERE
    while info < end:
        number, length = info[0] >> 4, info[0] & 15
        info += 1
        if number == 15:
            if info == end:
                return UNSOUND
            number += info[0]
            info += 1
        if length == 15:
            if info == end:
                return UNSOUND
            length += info[0]
            info += 1
        if end - info < length:
            return UNSOUND
        if asks and number == STREAM_ID_INFO and length == 2 and found == NOWHERE:
            found = load16(info)
        info += length
    return found


# ----------------------------------------------------------------------------------------- rows

cdef inline Status put_row(Work* w, const uint8_t* at, uint64_t size, const Shape* shape, const uint8_t* end,
                           Feed* feed) noexcept nogil:
    """A frame of a row: where its parts are, whether they are sound, then into the columns."""
    cdef Row row
    cdef int infos = 0
    cdef int64_t key_size, engine = 0, meta = 0, room
    cdef Status status

    # Lengths: the header's add up, those inside the extras are compared with what is left.
    row.stream_id = row.collection = row.xattrs_size = NOWHERE
    row.inflated, row.problem = False, MORE
    if is_framed(at[0]):
        infos, key_size = at[KEY_LENGTH_AT], at[KEY_LENGTH_AT + 1]
        if infos == 0 and shape.defect and at[HEADER_SIZE] == UNCOUNTED_HEAD and \
                size >= HEADER_SIZE + UNCOUNTED_LENGTH + <uint64_t>shape.extras_length + <uint64_t>key_size:
            infos = UNCOUNTED_LENGTH
        row.stream_id = stream_id_in(at, infos)
        if row.stream_id == UNSOUND:
            return BAD_SHAPE
    else:
        key_size = load16(at + KEY_LENGTH_AT)
    row.bases[0], row.bases[1] = at, at + infos
    if shape.engine_at != NOWHERE:
        engine = load16(row.bases[1] + shape.engine_at)
    if shape.meta_at != NOWHERE:
        meta = load16(row.bases[1] + shape.meta_at)
    room = <int64_t>size - HEADER_SIZE - infos - shape.extras_length - key_size
    if engine > room or meta > room - engine:
        return BAD_SHAPE
    row.key, row.key_size = row.bases[1] + HEADER_SIZE + shape.extras_length + engine, key_size
    row.value, row.value_size = row.key + key_size, room - engine - meta
    if (key_size == 0 and shape.key_must) or (key_size and not shape.key_may):
        return BAD_SHAPE
    if (row.value_size == 0 and shape.value_must) or (row.value_size and not shape.value_may):
        return BAD_SHAPE
    if shape.content_length != NOWHERE and row.value_size != shape.content_length:
        return BAD_SHAPE

    # Within a snapshot seqnos rise.
    row.stream = stream_of(w, stream_key(load32(at + OPAQUE_AT), load16(at + VBUCKET_AT), max(row.stream_id, 0)))
    row.seqno = load64(row.bases[1] + shape.seqno_at) if shape.seqno_at != NOWHERE else 0
    if row.stream != NULL and shape.seqno_at != NOWHERE and row.stream.begun and not row.stream.disorder:
        if row.seqno <= row.stream.last:
            w.detail = row.stream.last
            return SEQNO_FELL

    if w.collections and shape.prefixed and not split_key(&row):
        return BAD_COLLECTION
    if w.check_keys and w.at[<int>KEY] != NOWHERE and not is_utf8(row.key, row.key + row.key_size):
        return BAD_KEY
    if row.value_size and shape.type == NOWHERE and at[DATATYPE_AT] & w.opened:
        status = open_value(w, &row, at[DATATYPE_AT])
        if status != MORE:
            return status
    return store_row(w, &row, shape, end, feed)


cdef inline Stream* stream_of(Work* w, uint64_t key) noexcept nogil:
    """The stream of a row, which often is that of the row before."""
    if w.last_stream == NULL or w.last_key != key:
        w.last_stream, w.last_key = stream_find(&w.streams, key), key
    return w.last_stream


cdef inline Status store_row(Work* w, const Row* row, const Shape* shape, const uint8_t* end,
                             Feed* feed) noexcept nogil:
    """From here on only memory can lack."""
    cdef const int* where = w.at
    cdef Columns* columns = &w.columns
    cdef Stream* stream = row.stream
    cdef int64_t n = w.rows
    if n == w.room and not grow_rows(w):
        return NO_MEMORY
    if where[<int>KEY] != NOWHERE:
        if not put_bytes(w, where[<int>KEY], n, row.key, row.key_size, end, feed, False):
            return NO_MEMORY
    if where[<int>VALUE] != NOWHERE:
        if not put_bytes(w, where[<int>VALUE], n, row.value, row.value_size, end, feed, row.inflated):
            return NO_MEMORY
    if where[<int>EVENT] != NOWHERE:
        columns.fixed[where[<int>EVENT]][n] = shape.event
    if stream != NULL:
        # In disorder it is the highest one that counts.
        stream.last = max(stream.last, row.seqno) if stream.disorder else row.seqno
        stream.begun = True
    if where[<int>SNAPSHOT_START] != NOWHERE:
        put_window(columns, where[<int>SNAPSHOT_START], n, stream, stream.start if stream != NULL else 0)
    if where[<int>SNAPSHOT_END] != NOWHERE:
        put_window(columns, where[<int>SNAPSHOT_END], n, stream, stream.end if stream != NULL else 0)
    if row.collection != NOWHERE and where[<int>COLLECTION] != NOWHERE:
        put_number(w, where[<int>COLLECTION], n, row.collection)
    if where[<int>TIMESTAMP] != NOWHERE:
        # The low 16 bits count within a tick of the clock; the rest are nanoseconds.
        (<int64_t*>columns.fixed[where[<int>TIMESTAMP]])[n] = \
            <int64_t>((load64(row.bases[0] + CAS_AT) & ~<uint64_t>0xFFFF) // 1000)
    if row.stream_id != NOWHERE or row.xattrs_size != NOWHERE or row.problem != MORE:
        if not put_rare(w, row, n, end, feed):
            return NO_MEMORY
    move_fields(columns, shape, row.bases, n)
    w.rows = n + 1
    return MORE


cdef bint put_rare(Work* w, const Row* row, int64_t n, const uint8_t* end, Feed* feed) noexcept nogil:
    """What few rows have."""
    cdef const int* where = w.at
    if row.stream_id != NOWHERE and where[<int>STREAM_ID] != NOWHERE:
        put_number(w, where[<int>STREAM_ID], n, row.stream_id)
    if row.xattrs_size != NOWHERE and where[<int>XATTRS] != NOWHERE:
        set_valid(&w.columns, where[<int>XATTRS], n)
        if w.map_xattrs:
            if not put_map(w, where[<int>XATTRS], n, row):
                return False
        else:
            if not w.views:
                fill_offsets(&w.columns, where[<int>XATTRS], n)
            if not put_bytes(w, where[<int>XATTRS], n, row.xattrs, row.xattrs_size, end, feed, row.inflated):
                return False
    if row.problem != MORE and where[<int>ERROR] != NOWHERE:
        return put_error(w, where[<int>ERROR], n, row.problem)
    return True


cdef inline bint split_key(Row* row) noexcept nogil:
    """Takes the collection id off the front of a key; False if it is not the shortest LEB128 of 32 bits."""
    cdef int prefix = collection_in(row.key, row.key_size, &row.collection)
    row.key += prefix
    row.key_size -= prefix
    return prefix > 0


cdef inline int collection_in(const uint8_t* key, int64_t size, int64_t* collection) noexcept nogil:
    """The length of the collection id in front of a key; 0 if it is not the shortest LEB128 of 32 bits."""
    cdef uint64_t number = 0
    cdef int i
    for i in range(<int>min(size, <int64_t>5)):
        number |= <uint64_t>(key[i] & 0x7F) << (7 * i)
        if key[i] < 0x80:
            collection[0] = number
            return 0 if (i and key[i] == 0) or number >> 32 else i + 1
    return 0
