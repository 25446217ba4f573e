# Runs: the fast lane for frames that look alike.

cdef extern from *:
    """
    #if defined(_MSC_VER)
      #define dcp_prefetch(at) ((void)(at))
    #else
      #define dcp_prefetch(at) __builtin_prefetch((at), 1)
    #endif
    """
    void prefetch "dcp_prefetch"(const void* at) noexcept nogil

cdef enum:
    # A line of a cache, and how much of a long copy the processor does not see coming by itself.
    LINE = 64
    FAR_AHEAD = 2048

cdef struct Lane:
    # A column of numbers during a run: where its cells are, and where in a frame they come from.
    uint8_t* cells
    int64_t offset
    Move move


cdef inline bint starts_run(Work* w, const uint8_t* at) noexcept nogil:
    """Whether a run can begin here: to open its lanes costs more than a row."""
    cdef Stream* stream
    if at[0] != 0x80 or at[DATATYPE_AT] & w.opened:
        return False
    stream = stream_of(w, stream_key(load32(at + OPAQUE_AT), load16(at + VBUCKET_AT), 0))
    return stream != NULL and stream.windowed


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
    cdef int64_t ahead, extras = shape.extras_length, head = HEADER_SIZE + extras
    cdef int seqno_at = shape.seqno_at, meta_at = shape.meta_at
    cdef const int* where = w.at
    cdef Columns* columns = &w.columns
    cdef Bytes keys = columns.bytes[where[<int>KEY]]
    cdef Bytes values = columns.bytes[where[<int>VALUE]]
    # In both, 4 bytes a row where they are offsets, 16 where they are views.
    cdef uint8_t* key_cells = columns.fixed[where[<int>KEY]]
    cdef uint8_t* value_cells = columns.fixed[where[<int>VALUE]]
    cdef const uint8_t* key
    cdef bint views = w.views, prefixed = w.collections and shape.prefixed
    cdef int prefix = 0
    cdef int64_t collection = 0
    cdef uint64_t* starts = NULL
    cdef uint64_t* ends = NULL
    cdef Lane lanes[MAX_COLUMNS]
    cdef Lane* last8 = lanes + open_lanes(columns, shape, COPY8, lanes)
    cdef Lane* last4 = last8 + open_lanes(columns, shape, COPY4, last8)
    cdef Lane* last2 = last4 + open_lanes(columns, shape, COPY2, last4)
    cdef Lane* last1 = last2 + open_lanes(columns, shape, COPY1, last2)
    cdef Lane* last = last1
    cdef Lane* lane
    cdef int move
    cdef Stream* stream
    if n >= stop:
        return 0
    for move in range(<int>WIDEN4_TO_8, <int>MOVES if shape.widens else <int>WIDEN4_TO_8):
        last += open_lanes(columns, shape, <Move>move, last)
    if where[<int>SNAPSHOT_START] != NOWHERE:
        starts = <uint64_t*>columns.fixed[where[<int>SNAPSHOT_START]]
    if where[<int>SNAPSHOT_END] != NOWHERE:
        ends = <uint64_t*>columns.fixed[where[<int>SNAPSHOT_END]]
    if views and feed.number == NOWHERE and not add_source(w, feed.memory, &feed.number):
        return 0
    left = min(<int64_t>(end - at), max(w.max_bytes - w.data, <int64_t>0))
    while n < stop and left >= head:
        word, tail = load64(at), load64(at + BODY_LENGTH_AT)
        if word & mask != look:
            break
        body, key_size = tail >> 32, word >> 32 & 0xFFFF
        size = HEADER_SIZE + body
        body -= extras + key_size
        if size > left or <uint64_t>size > w.max_frame or body < 0 or key_size == 0:
            break
        if meta_at != NOWHERE and load16(at + meta_at):
            break
        stream = stream_of(w, tail << 32 | (word & 0xFFFF) << 16)
        if stream == NULL or not stream.windowed:
            break
        seqno = load64(at + seqno_at)
        if stream.begun and seqno <= stream.last:
            break
        key = at + head
        if prefixed:
            prefix = collection_in(key, key_size, &collection)
            if prefix == 0:
                break
            key += prefix
            key_size -= prefix
        if views:
            write_view(key_cells + 16 * n, key, key_size, feed.number, key - feed.memory.data)
            write_view(value_cells + 16 * n, key + key_size, body, feed.number, key + key_size - feed.memory.data)
        else:
            if keys.room - keys.used < key_size + 1 and not reserve_bytes(&keys, key_size + 1):
                break
            if values.room - values.used < body and not reserve_bytes(&values, body):
                break
            (<int32_t*>key_cells)[n], (<int32_t*>value_cells)[n] = <int32_t>keys.used, <int32_t>values.used
            # What the next row writes into is seldom in a cache: it comes there while this one is copied.
            ahead = body
            while ahead < 2 * body and ahead < body + <int64_t>FAR_AHEAD:
                prefetch(values.data + values.used + ahead)
                ahead += LINE
            copy_bytes(keys.data + keys.used, key, key_size, end)
            if body:
                copy_bytes(values.data + values.used, key + key_size, body, end)
            keys.used += key_size
            values.used += body
        if prefixed and where[<int>COLLECTION] != NOWHERE:
            put_number(w, where[<int>COLLECTION], n, collection)
        stream.last, stream.begun = seqno, True
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
        while lane < last:
            widen(lane, at, n)
            lane += 1
        n += 1
        at += size
        left -= size
    columns.bytes[where[<int>KEY]], columns.bytes[where[<int>VALUE]] = keys, values
    if n > w.rows:
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
        lanes[n] = Lane(columns.fixed[op[n].column], op[n].offset, move)
        n += 1
    return n


cdef inline void widen(const Lane* lane, const uint8_t* at, int64_t n) noexcept nogil:
    """A number whose column is wider than it is."""
    at += lane.offset
    if lane.move == WIDEN4_TO_8:
        (<uint64_t*>lane.cells)[n] = load32(at)
    elif lane.move == WIDEN2_TO_8:
        (<uint64_t*>lane.cells)[n] = load16(at)
    elif lane.move == WIDEN1_TO_8:
        (<uint64_t*>lane.cells)[n] = at[0]
    elif lane.move == WIDEN2_TO_4:
        (<uint32_t*>lane.cells)[n] = load16(at)
    else:
        (<uint32_t*>lane.cells)[n] = at[0]


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
