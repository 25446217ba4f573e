# Runs: the fast lane for frames that look alike.

cdef enum:
    # So many frames, whose heads are still in the cache, give their numbers to one column after the other.
    BLOCK = 16


cdef inline bint starts_run(Work* w, const uint8_t* at) noexcept nogil:
    """Whether a run can begin here: to open one costs more than a row."""
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
    cdef int64_t extras = shape.extras_length, head = HEADER_SIZE + extras
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
    cdef const uint8_t* frames[BLOCK]
    cdef int64_t moved = n
    cdef Stream* stream
    if n >= stop:
        return 0
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
        frames[n - moved] = at
        n += 1
        at += size
        left -= size
        if n - moved == BLOCK:
            move_block(columns, shape, frames, moved, BLOCK)
            moved = n
    move_block(columns, shape, frames, moved, n - moved)
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


cdef void move_block(Columns* columns, const Shape* shape, const uint8_t* const* frames, int64_t begin,
                     int64_t count) noexcept nogil:
    """The numbers of some frames that look alike, and have no framing extras, to the rows from `begin` on."""
    cdef const Op* op = shape.ops
    cdef uint64_t* cells8
    cdef uint32_t* cells4
    cdef uint16_t* cells2
    cdef uint8_t* cells1
    cdef int64_t i
    while op < shape.ends[<int>COPY8]:
        cells8 = <uint64_t*>columns.fixed[op.column] + begin
        for i in range(count):
            cells8[i] = load64(frames[i] + op.offset)
        op += 1
    while op < shape.ends[<int>COPY4]:
        cells4 = <uint32_t*>columns.fixed[op.column] + begin
        for i in range(count):
            cells4[i] = load32(frames[i] + op.offset)
        op += 1
    while op < shape.ends[<int>COPY2]:
        cells2 = <uint16_t*>columns.fixed[op.column] + begin
        for i in range(count):
            cells2[i] = load16(frames[i] + op.offset)
        op += 1
    while op < shape.ends[<int>COPY1]:
        cells1 = columns.fixed[op.column] + begin
        for i in range(count):
            cells1[i] = frames[i][op.offset]
        op += 1
    # Fields that such a message lacks are for `close_run`.
    op = shape.ends[<int>ZERO1]
    while op < shape.ends[<int>WIDEN4_TO_8]:
        cells8 = <uint64_t*>columns.fixed[op.column] + begin
        for i in range(count):
            cells8[i] = load32(frames[i] + op.offset)
        op += 1
    while op < shape.ends[<int>WIDEN2_TO_8]:
        cells8 = <uint64_t*>columns.fixed[op.column] + begin
        for i in range(count):
            cells8[i] = load16(frames[i] + op.offset)
        op += 1
    while op < shape.ends[<int>WIDEN1_TO_8]:
        cells8 = <uint64_t*>columns.fixed[op.column] + begin
        for i in range(count):
            cells8[i] = frames[i][op.offset]
        op += 1
    while op < shape.ends[<int>WIDEN2_TO_4]:
        cells4 = <uint32_t*>columns.fixed[op.column] + begin
        for i in range(count):
            cells4[i] = load16(frames[i] + op.offset)
        op += 1
    while op < shape.ends[<int>WIDEN1_TO_4]:
        cells4 = <uint32_t*>columns.fixed[op.column] + begin
        for i in range(count):
            cells4[i] = frames[i][op.offset]
        op += 1


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
