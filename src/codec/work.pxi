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
    STREAM_ID_INFO = 2
    UNCOUNTED_HEAD = 0x22
    UNCOUNTED_LENGTH = 3
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
            if shape.plain and w.runs and put_run(w, feed, end, shape):
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
        found[0] = shape
        return MORE
    return BAD_SHAPE if row else MORE


# ------------------------------------------------------------------------------------- controls

cdef Status put_control(Work* w, const uint8_t* at, uint64_t size, const Shape* shape) noexcept nogil:
    """Keeps a frame for Python, and lets it act on the rows that follow."""
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
    w.notes[w.n_notes] = Note(w.rows, w.noted_used, size, w.offset)
    memcpy(w.noted + w.noted_used, at, size)
    w.noted_used += size
    w.n_notes += 1
    return MORE


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
    """The stream id in framing extras, NOWHERE if there is none, UNSOUND if they do not add up."""
    cdef const uint8_t* info = at + HEADER_SIZE
    cdef const uint8_t* end = info + infos
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
        if number == STREAM_ID_INFO and length == 2 and found == NOWHERE:
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
        stream.last, stream.begun = row.seqno, True
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


cdef struct Lane:
    # A column of numbers during a run: where its cells are, and where in a frame they come from.
    uint8_t* cells
    int64_t offset


cdef int64_t put_run(Work* w, Feed* feed, const uint8_t* end, const Shape* shape) noexcept nogil:
    """The rows of a run of frames that look alike and need no work on key or value; says how many it took.

    What `put_row` does, with everything that is the same for all of them done once. Anything that is out
    of the ordinary, and anything wrong, is left to `put_row`.
    """
    # Magic, opcode, extras length, and the bits of the datatype that mean work.
    cdef uint64_t mask = 0xFFFF0000FF000000ULL | <uint64_t>w.opened << 16
    cdef const uint8_t* at = feed.memory.data + feed.begin
    cdef const uint8_t* first = at
    cdef uint64_t look = load64(at) & 0xFFFF0000FF000000ULL, word, tail, seqno
    cdef int64_t n = w.rows, stop = min(w.room, w.max_rows), left, size, body, key_size
    cdef int64_t extras = shape.extras_length, head = HEADER_SIZE + extras
    cdef int seqno_at = shape.seqno_at, meta_at = shape.meta_at
    cdef const int* where = w.at
    cdef Columns* columns = &w.columns
    cdef Bytes keys = columns.bytes[where[<int>KEY]]
    cdef Bytes values = columns.bytes[where[<int>VALUE]]
    cdef int32_t* key_ends = <int32_t*>columns.fixed[where[<int>KEY]]
    cdef int32_t* value_ends = <int32_t*>columns.fixed[where[<int>VALUE]]
    cdef uint64_t* starts = NULL
    cdef uint64_t* ends = NULL
    cdef Lane lanes[MAX_COLUMNS]
    cdef Lane* last8 = lanes + open_lanes(columns, shape, COPY8, lanes)
    cdef Lane* last4 = last8 + open_lanes(columns, shape, COPY4, last8)
    cdef Lane* last2 = last4 + open_lanes(columns, shape, COPY2, last4)
    cdef Lane* last1 = last2 + open_lanes(columns, shape, COPY1, last2)
    cdef Lane* lane
    cdef Stream* stream
    if where[<int>SNAPSHOT_START] != NOWHERE:
        starts = <uint64_t*>columns.fixed[where[<int>SNAPSHOT_START]]
    if where[<int>SNAPSHOT_END] != NOWHERE:
        ends = <uint64_t*>columns.fixed[where[<int>SNAPSHOT_END]]
    left = min(<int64_t>(end - at), max(w.max_bytes - w.data, <int64_t>0))
    while n < stop and left >= head:
        word, tail = load64(at), load64(at + BODY_LENGTH_AT)
        if word & mask != look:
            break
        body, key_size = tail >> 32, word >> 32 & 0xFFFF
        size = HEADER_SIZE + body
        body -= extras + key_size
        if size > left or body < 0 or key_size == 0 or (meta_at != NOWHERE and load16(at + meta_at)):
            break
        stream = stream_of(w, tail << 32 | (word & 0xFFFF) << 16)
        if stream == NULL or not stream.windowed:
            break
        seqno = load64(at + seqno_at)
        if stream.begun and seqno <= stream.last:
            break
        if keys.room - keys.used < key_size and not reserve_bytes(&keys, key_size):
            break
        if values.room - values.used < body and not reserve_bytes(&values, body):
            break
        stream.last, stream.begun = seqno, True
        key_ends[n], value_ends[n] = <int32_t>keys.used, <int32_t>values.used
        copy_bytes(keys.data + keys.used, at + head, key_size, end)
        if body:
            copy_bytes(values.data + values.used, at + head + key_size, body, end)
        keys.used += key_size
        values.used += body
        if starts != NULL:
            starts[n] = stream.start
        if ends != NULL:
            ends[n] = stream.end
        lane = lanes
        while lane < last8:
            (<uint64_t*>lane.cells)[n] = load64(at + lane.offset)
            lane += 1
        while lane < last4:
            (<uint32_t*>lane.cells)[n] = load32(at + lane.offset)
            lane += 1
        while lane < last2:
            (<uint16_t*>lane.cells)[n] = load16(at + lane.offset)
            lane += 1
        while lane < last1:
            lane.cells[n] = at[lane.offset]
            lane += 1
        n += 1
        at += size
        left -= size
    columns.bytes[where[<int>KEY]], columns.bytes[where[<int>VALUE]] = keys, values
    close_run(w, shape, w.rows, n)
    size, key_size = at - first, n - w.rows
    feed.begin += size
    w.offset += size
    w.counted += size
    w.data += size
    w.rows = n
    return key_size


cdef int open_lanes(Columns* columns, const Shape* shape, Move move, Lane* lanes) noexcept nogil:
    """The columns that get their numbers by this move; says how many they are."""
    cdef const Op* op = shape.ops
    cdef int n = 0
    if move != COPY8:
        op = shape.ends[<int>move - 1]
    while op + n < shape.ends[<int>move]:
        lanes[n] = Lane(columns.fixed[op[n].column], op[n].offset)
        n += 1
    return n


cdef void close_run(Work* w, const Shape* shape, int64_t begin, int64_t end) noexcept nogil:
    """What is the same in all rows of a run: what happened, and the fields that such a message lacks."""
    cdef const Op* op
    cdef int i
    cdef int64_t n
    if w.at[<int>EVENT] != NOWHERE:
        memset(w.columns.fixed[w.at[<int>EVENT]] + begin, shape.event, end - begin)
    op = shape.ends[<int>COPY1]
    while op < shape.ends[<int>ZERO1]:
        i = w.specs[op.column].width
        memset(w.columns.fixed[op.column] + begin * i, 0, (end - begin) * i)
        op += 1
    for i in range(shape.n_valid):
        for n in range(begin, end):
            set_valid(&w.columns, shape.valid[i], n)


cdef inline void copy_bytes(uint8_t* out, const uint8_t* data, int64_t size, const uint8_t* end) noexcept nogil:
    """Copies a key or value into a column, which has room for SLACK bytes more."""
    if size <= SMALL and end - data >= SMALL:
        # A copy of fixed size is a few instructions; what it copies too much is overwritten by the next row.
        memcpy(out, data, SMALL)
    else:
        memcpy(out, data, size)


cdef inline void move_fields(Columns* columns, const Shape* shape, const uint8_t* const* bases,
                             int64_t n) noexcept nogil:
    """The fixed fields of a row, grouped by width."""
    cdef const Op* op = shape.ops
    cdef int i
    while op < shape.ends[<int>COPY8]:
        (<uint64_t*>columns.fixed[op.column])[n] = load64(bases[op.behind_infos] + op.offset)
        op += 1
    while op < shape.ends[<int>COPY4]:
        (<uint32_t*>columns.fixed[op.column])[n] = load32(bases[op.behind_infos] + op.offset)
        op += 1
    while op < shape.ends[<int>COPY2]:
        (<uint16_t*>columns.fixed[op.column])[n] = load16(bases[op.behind_infos] + op.offset)
        op += 1
    while op < shape.ends[<int>COPY1]:
        columns.fixed[op.column][n] = (bases[op.behind_infos] + op.offset)[0]
        op += 1
    while op < shape.ends[<int>ZERO8]:
        (<uint64_t*>columns.fixed[op.column])[n] = 0
        op += 1
    while op < shape.ends[<int>ZERO4]:
        (<uint32_t*>columns.fixed[op.column])[n] = 0
        op += 1
    while op < shape.ends[<int>ZERO2]:
        (<uint16_t*>columns.fixed[op.column])[n] = 0
        op += 1
    while op < shape.ends[<int>ZERO1]:
        columns.fixed[op.column][n] = 0
        op += 1
    if shape.widens:
        widen_fields(columns, shape, bases, n)
    for i in range(shape.n_valid):
        set_valid(columns, shape.valid[i], n)


cdef void widen_fields(Columns* columns, const Shape* shape, const uint8_t* const* bases, int64_t n) noexcept nogil:
    """Fields whose column is wider than they are."""
    cdef const Op* op = shape.ends[<int>ZERO1]
    while op < shape.ends[<int>WIDEN4]:
        (<uint64_t*>columns.fixed[op.column])[n] = load32(bases[op.behind_infos] + op.offset)
        op += 1
    while op < shape.ends[<int>WIDEN2]:
        (<uint32_t*>columns.fixed[op.column])[n] = load16(bases[op.behind_infos] + op.offset)
        op += 1
    while op < shape.ends[<int>WIDEN1]:
        (<uint32_t*>columns.fixed[op.column])[n] = (bases[op.behind_infos] + op.offset)[0]
        op += 1


cdef inline bint split_key(Row* row) noexcept nogil:
    """Takes the collection id off the front of a key; False if it is not the shortest LEB128 of 32 bits."""
    cdef uint64_t number = 0
    cdef int i
    for i in range(<int>min(row.key_size, <int64_t>5)):
        number |= <uint64_t>(row.key[i] & 0x7F) << (7 * i)
        if row.key[i] < 0x80:
            if (i and row.key[i] == 0) or number >> 32:
                return False
            row.collection = number
            row.key += i + 1
            row.key_size -= i + 1
            return True
    return False


# --------------------------------------------------------------------------------------- values

cdef Status open_value(Work* w, Row* row, uint8_t datatype) noexcept nogil:
    """Inflates a value and splits its xattrs off. In quarantine, what is wrong with it is noted instead."""
    cdef Row raw = row[0]
    cdef Status status = MORE
    if datatype & SNAPPY_BIT:
        if not w.inflate:
            return MORE
        status = inflate_value(w, row)
        if status == FULL or status == NO_MEMORY:
            return status
    if status == MORE and datatype & XATTR_BIT and w.split_xattrs and not cut_xattrs(row, w.map_xattrs):
        status = BAD_XATTRS
    if status != MORE and w.quarantine:
        row[0] = raw
        row.problem = status
        return MORE
    return status


cdef Status inflate_value(Work* w, Row* row) noexcept nogil:
    cdef uint32_t length = 0
    cdef Py_ssize_t head = snappy_length(row.value, row.value_size, &length)
    cdef uint8_t* out
    if head < 0 or <uint64_t>length > SNAPPY_RATIO * <uint64_t>row.value_size:
        return BAD_SNAPPY
    if <int64_t>length > w.max_value:
        return BAD_SIZE
    if w.rows and w.data + <int64_t>length > w.max_bytes:
        return FULL
    if w.views:
        if w.arena_room - w.arena_used < length:
            if not grow(&w.arena, max(2 * w.arena_room, w.arena_used + <int64_t>length)):
                return NO_MEMORY
            w.arena_room = max(2 * w.arena_room, w.arena_used + <int64_t>length)
        out = w.arena + w.arena_used
    else:
        if w.scratch_room < length:
            if not grow(&w.scratch, max(2 * w.scratch_room, <int64_t>length)):
                return NO_MEMORY
            w.scratch_room = max(2 * w.scratch_room, <int64_t>length)
        out = w.scratch
    if not snappy_inflate(row.value + head, row.value + row.value_size, out, length):
        return BAD_SNAPPY
    if w.views:
        w.arena_used += length
    w.data += length
    row.value, row.value_size, row.inflated = out, length, True
    return MORE


cdef bint cut_xattrs(Row* row, bint text) noexcept nogil:
    """The section at the beginning of a value: a length, then pairs of name, 00, text, 00 with a length each."""
    cdef const uint8_t* at = row.value
    cdef const uint8_t* end
    cdef const uint8_t* zero
    cdef uint64_t length
    if row.value_size < 4:
        return False
    length = load32(at)
    if length > <uint64_t>row.value_size - 4:
        return False
    at += 4
    end = at + length
    while at < end:
        if end - at < 4:
            return False
        length = load32(at)
        at += 4
        if length > <uint64_t>(end - at) or length < 2:
            return False
        zero = <const uint8_t*>memchr(at, 0, length)
        if zero == NULL or memchr(zero + 1, 0, at + length - (zero + 1)) != at + length - 1:
            return False
        if text and not is_utf8(at, at + length):
            return False
        at += length
    row.xattrs, row.xattrs_size = row.value, end - row.value
    row.value, row.value_size = end, row.value_size - row.xattrs_size
    return True


# ---------------------------------------------------------------------------------------- cells

cdef inline void set_valid(Columns* columns, int column, int64_t n) noexcept nogil:
    columns.valid[column][n >> 3] |= 1 << (n & 7)


cdef inline void put_window(Columns* columns, int column, int64_t n, const Stream* stream,
                            uint64_t seqno) noexcept nogil:
    """An end of the snapshot. The bits are set beforehand, as rows outside of a snapshot are rare."""
    (<uint64_t*>columns.fixed[column])[n] = seqno
    if stream == NULL or not stream.windowed:
        columns.valid[column][n >> 3] &= ~(1 << (n & 7))


cdef inline void put_number(Work* w, int column, int64_t n, uint64_t number) noexcept nogil:
    """A number in a nullable column that is not a field of the frame."""
    cdef int width = w.specs[column].width
    if width == 8:
        (<uint64_t*>w.columns.fixed[column])[n] = number
    elif width == 4:
        (<uint32_t*>w.columns.fixed[column])[n] = <uint32_t>number
    else:
        (<uint16_t*>w.columns.fixed[column])[n] = <uint16_t>number
    set_valid(&w.columns, column, n)


cdef inline bint put_bytes(Work* w, int column, int64_t n, const uint8_t* data, int64_t size,
                           const uint8_t* end, Feed* feed, bint inflated) noexcept nogil:
    cdef Bytes* bytes = &w.columns.bytes[column]
    cdef int64_t used = bytes.used
    if w.views:
        return put_view(w, w.columns.fixed[column] + 16 * n, data, size, feed, inflated)
    (<int32_t*>w.columns.fixed[column])[n] = <int32_t>used
    if bytes.room - used < size or bytes.data == NULL:
        if not reserve_bytes(bytes, max(size, <int64_t>1)):
            return False
    bytes.used = used + size
    if inflated:
        memcpy(bytes.data + used, data, size)
    else:
        copy_bytes(bytes.data + used, data, size, end)
    return True


cdef bint put_map(Work* w, int column, int64_t n, const Row* row) noexcept nogil:
    """The pairs of a section that was found sound: a length, a name, 00, a text, 00 each."""
    cdef const uint8_t* at = row.xattrs + 4
    cdef const uint8_t* end = row.xattrs + row.xattrs_size
    cdef int64_t length, name
    fill_offsets(&w.columns, column, n)
    (<int32_t*>w.columns.fixed[column])[n] = <int32_t>w.columns.pairs.count
    while at < end:
        length = load32(at)
        at += 4
        name = <const uint8_t*>memchr(at, 0, length) - at
        if not put_pair(&w.columns.pairs, at, name, at + name + 1, length - name - 2):
            return False
        at += length
    # The offsets of a column of maps count entries.
    w.columns.bytes[column].used = w.columns.pairs.count
    return True


cdef bint put_view(Work* w, uint8_t* out, const uint8_t* data, int64_t size, Feed* feed, bint inflated) noexcept nogil:
    """An Arrow view: up to 12 bytes inside it, else their place in a buffer and the first four."""
    cdef int32_t view[4]
    view[0] = <int32_t>size
    view[1] = view[2] = view[3] = 0
    if size <= 12:
        memcpy(view + 1, data, size)
    else:
        memcpy(view + 1, data, 4)
        if inflated:
            view[2], view[3] = NOWHERE, <int32_t>(data - w.arena)
        else:
            if feed.number == NOWHERE and not add_source(w, feed.memory, &feed.number):
                return False
            view[2], view[3] = feed.number, <int32_t>(data - feed.memory.data)
    memcpy(out, view, 16)
    return True


cdef bint add_source(Work* w, Memory* memory, int* number) noexcept nogil:
    cdef Memory** sources = <Memory**>realloc(w.sources, (w.n_sources + 1) * sizeof(Memory*))
    if sources == NULL:
        return False
    w.sources = sources
    sources[w.n_sources] = memory_share(memory)
    number[0] = w.n_sources
    w.n_sources += 1
    return True


cdef bint put_error(Work* w, int column, int64_t n, Status problem) noexcept nogil:
    cdef Bytes* bytes = &w.columns.bytes[column]
    cdef const char* text = "xattrs: not a sound section"
    cdef int64_t size
    if problem == BAD_SNAPPY:
        text = "snappy: not a sound block"
    elif problem == BAD_SIZE:
        text = "snappy: inflates to more than max_value"
    size = strlen(text)
    fill_offsets(&w.columns, column, n)
    (<int32_t*>w.columns.fixed[column])[n] = <int32_t>bytes.used
    if not reserve_bytes(bytes, size):
        return False
    memcpy(bytes.data + bytes.used, text, size)
    bytes.used += size
    set_valid(&w.columns, column, n)
    w.data += size
    return True


cdef bint grow_rows(Work* w) noexcept nogil:
    cdef int64_t room = max(2 * w.room, w.hint), old = (w.room + 7) // 8
    cdef const Spec* spec
    cdef int i
    for i in range(w.n_columns):
        spec = &w.specs[i]
        if not grow(&w.columns.fixed[i], (room + 1) * (spec.width or 4)):
            return False
        if spec.nullable:
            if not grow(&w.columns.valid[i], (room + 7) // 8):
                return False
            memset(w.columns.valid[i] + old, 0xFF if is_window(spec) else 0, (room + 7) // 8 - old)
    w.room = room
    return True


cdef inline bint is_window(const Spec* spec) noexcept nogil:
    return spec.source == SNAPSHOT_START or spec.source == SNAPSHOT_END
