# Cells: what goes into the columns of the batch in work.

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
    while op < shape.ends[<int>WIDEN4_TO_8]:
        (<uint64_t*>columns.fixed[op.column])[n] = load32(bases[op.behind_infos] + op.offset)
        op += 1
    while op < shape.ends[<int>WIDEN2_TO_8]:
        (<uint64_t*>columns.fixed[op.column])[n] = load16(bases[op.behind_infos] + op.offset)
        op += 1
    while op < shape.ends[<int>WIDEN1_TO_8]:
        (<uint64_t*>columns.fixed[op.column])[n] = (bases[op.behind_infos] + op.offset)[0]
        op += 1
    while op < shape.ends[<int>WIDEN2_TO_4]:
        (<uint32_t*>columns.fixed[op.column])[n] = load16(bases[op.behind_infos] + op.offset)
        op += 1
    while op < shape.ends[<int>WIDEN1_TO_4]:
        (<uint32_t*>columns.fixed[op.column])[n] = (bases[op.behind_infos] + op.offset)[0]
        op += 1


cdef inline void copy_bytes(uint8_t* out, const uint8_t* data, int64_t size, const uint8_t* end) noexcept nogil:
    """Copies a key or value into a column, which has room for SLACK bytes more."""
    if size <= SMALL and end - data >= SMALL:
        # A copy of fixed size is a few instructions; what it copies too much is overwritten by the next row.
        memcpy(out, data, SMALL)
    else:
        memcpy(out, data, size)


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
    if inflated:
        # The number of the buffer with what was inflated is known when the batch is finished.
        write_view(out, data, size, NOWHERE, data - w.arena)
        return True
    if feed.number == NOWHERE and not add_source(w, feed.memory, &feed.number):
        return False
    write_view(out, data, size, feed.number, data - feed.memory.data)
    return True


cdef inline void write_view(uint8_t* out, const uint8_t* data, int64_t size, int number, int64_t place) noexcept nogil:
    """An Arrow view: up to 12 bytes inside it, else their place in a buffer and the first four."""
    cdef int32_t view[4]
    view[0] = <int32_t>size
    if size <= 12:
        view[1] = view[2] = view[3] = 0
        memcpy(view + 1, data, size)
    else:
        memcpy(view + 1, data, 4)
        view[2], view[3] = number, <int32_t>place
    memcpy(out, view, 16)


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
