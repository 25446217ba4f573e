# Writes into the columns of the current batch: one cell each, of row `n`.

cdef inline void move_fields(Columns* columns, const Shape* shape, const uint8_t* const* bases,
                             int64_t n) noexcept nogil:
    """Copy the fields of fixed width, sorted by kind so that each loop has no branch in it."""
    cdef const FieldMove* op = shape.ops
    cdef int i
    while op < shape.ends[<int>COPY8]:
        (<uint64_t*>columns.fixed[op.column])[n] = load64(bases[op.after_infos] + op.offset)
        op += 1
    while op < shape.ends[<int>COPY4]:
        (<uint32_t*>columns.fixed[op.column])[n] = load32(bases[op.after_infos] + op.offset)
        op += 1
    while op < shape.ends[<int>COPY2]:
        (<uint16_t*>columns.fixed[op.column])[n] = load16(bases[op.after_infos] + op.offset)
        op += 1
    while op < shape.ends[<int>COPY1]:
        columns.fixed[op.column][n] = (bases[op.after_infos] + op.offset)[0]
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
    """Copy the fields whose column is wider than the field."""
    cdef const FieldMove* op = shape.ends[<int>ZERO1]
    while op < shape.ends[<int>WIDEN4_TO_8]:
        (<uint64_t*>columns.fixed[op.column])[n] = load32(bases[op.after_infos] + op.offset)
        op += 1
    while op < shape.ends[<int>WIDEN2_TO_8]:
        (<uint64_t*>columns.fixed[op.column])[n] = load16(bases[op.after_infos] + op.offset)
        op += 1
    while op < shape.ends[<int>WIDEN1_TO_8]:
        (<uint64_t*>columns.fixed[op.column])[n] = (bases[op.after_infos] + op.offset)[0]
        op += 1
    while op < shape.ends[<int>WIDEN2_TO_4]:
        (<uint32_t*>columns.fixed[op.column])[n] = load16(bases[op.after_infos] + op.offset)
        op += 1
    while op < shape.ends[<int>WIDEN1_TO_4]:
        (<uint32_t*>columns.fixed[op.column])[n] = (bases[op.after_infos] + op.offset)[0]
        op += 1


cdef inline void copy_bytes(uint8_t* out, const uint8_t* data, int64_t size, const uint8_t* end) noexcept nogil:
    """Copy a key or value into a column.

    Both sides may be overrun: the column has SLACK bytes beyond its room, and `end` says how far the input reaches.
    """
    if size <= SMALL and end - data >= SMALL:
        # A copy of constant size is a few instructions without a call. The next row overwrites the excess.
        memcpy(out, data, SMALL)
    else:
        memcpy(out, data, size)


cdef inline void set_valid(Columns* columns, int column, int64_t n) noexcept nogil:
    """Mark a cell as not null. Most columns are null at first."""
    columns.valid[column][n >> 3] |= 1 << (n & 7)


cdef inline void set_null(Columns* columns, int column, int64_t n) noexcept nogil:
    """Mark a cell as null, in a column that is valid at first."""
    columns.valid[column][n >> 3] &= ~(1 << (n & 7))


cdef inline void put_snapshot_bound(Columns* columns, int column, int64_t n, const StreamState* stream,
                                    uint64_t seqno) noexcept nogil:
    """Write a bound of the snapshot. These columns are valid at first, since rows outside of a snapshot are rare."""
    (<uint64_t*>columns.fixed[column])[n] = seqno
    if stream == NULL or not stream.has_window:
        set_null(columns, column, n)


cdef inline void put_number(DecodeState* state, int column, int64_t n, uint64_t number) noexcept nogil:
    """Write a number that is not a field of the extras into a nullable column."""
    cdef int width = state.specs[column].width
    if width == 8:
        (<uint64_t*>state.columns.fixed[column])[n] = number
    elif width == 4:
        (<uint32_t*>state.columns.fixed[column])[n] = <uint32_t>number
    else:
        (<uint16_t*>state.columns.fixed[column])[n] = <uint16_t>number
    set_valid(&state.columns, column, n)


cdef inline bint put_bytes(DecodeState* state, int column, int64_t n, const uint8_t* data, int64_t size,
                           const uint8_t* end, ReadBuffer* buf, bint inflated) noexcept nogil:
    """Write key, value or xattrs: as a view, or as an offset and a copy. Return False if there is no memory.

    end: end of the received bytes, for `copy_bytes`.
    inflated: True if `data` is in our own memory, which `end` says nothing about.
    """
    cdef ByteColumn* bytes = &state.columns.bytes[column]
    cdef int64_t used = bytes.used
    if state.views:
        return put_view(state, state.columns.fixed[column] + 16 * n, data, size, buf, inflated)
    (<int32_t*>state.columns.fixed[column])[n] = <int32_t>used
    if bytes.room - used < size or bytes.data == NULL:
        if not reserve_bytes(bytes, max(size, <int64_t>1)):
            return False
    bytes.used = used + size
    if inflated:
        memcpy(bytes.data + used, data, size)
    else:
        copy_bytes(bytes.data + used, data, size, end)
    return True


cdef bint put_rare_bytes(Columns* columns, int column, int64_t n, const uint8_t* data, int64_t size) noexcept nogil:
    """Write bytes into a column that few rows have, as a copy. Return False if there is no memory."""
    cdef ByteColumn* bytes = &columns.bytes[column]
    fill_offsets(columns, column, n)
    (<int32_t*>columns.fixed[column])[n] = <int32_t>bytes.used
    if not reserve_bytes(bytes, max(size, <int64_t>1)):
        return False
    memcpy(bytes.data + bytes.used, data, size)
    bytes.used += size
    set_valid(columns, column, n)
    return True


cdef bint put_map(DecodeState* state, int column, int64_t n, const Row* row) noexcept nogil:
    """Write the xattrs as a map. `split_xattrs_off` has checked them: each is a length, a name, 00, a text, 00."""
    cdef const uint8_t* at = row.xattrs + 4
    cdef const uint8_t* end = row.xattrs + row.xattrs_size
    cdef int64_t length, name
    fill_offsets(&state.columns, column, n)
    (<int32_t*>state.columns.fixed[column])[n] = <int32_t>state.columns.entries.count
    while at < end:
        length = load32(at)
        at += 4
        name = <const uint8_t*>memchr(at, 0, length) - at
        if not put_entry(&state.columns.entries, at, name, at + name + 1, length - name - 2):
            return False
        at += length
    # The offsets of a column of maps count entries.
    state.columns.bytes[column].used = state.columns.entries.count
    return True


cdef bint put_view(DecodeState* state, uint8_t* out, const uint8_t* data, int64_t size, ReadBuffer* buf,
                   bint inflated) noexcept nogil:
    """Write an Arrow view of bytes in the receive buffer, or in the arena. Return False if there is no memory."""
    if inflated:
        # The arena may still move. Its buffer number is filled in when the batch is finished.
        write_view(out, data, size, NOWHERE, data - state.arena)
        return True
    # The first view of the batch into this buffer.
    if buf.number == NOWHERE and not add_source(state, buf.memory, &buf.number):
        return False
    write_view(out, data, size, buf.number, data - buf.memory.data)
    return True


cdef inline void write_view(uint8_t* out, const uint8_t* data, int64_t size, int number, int64_t offset) noexcept nogil:
    """Write an Arrow view: the size, then up to 12 bytes; or the first 4, the number of a buffer and the offset there.

    The 32-bit offset is why a buffer with views is limited to MOST_DATA bytes.
    """
    cdef int32_t* view = <int32_t*>out
    view[0] = <int32_t>size
    # Arrow requires the unused bytes of a short view to be zero.
    if size <= 12:
        view[1] = view[2] = view[3] = 0
        memcpy(view + 1, data, size)
    else:
        memcpy(view + 1, data, 4)
        view[2], view[3] = number, <int32_t>offset


cdef bint add_source(DecodeState* state, Memory* memory, int* number) noexcept nogil:
    """Make the batch an owner of memory that its views point into. Return False if there is no memory for that."""
    cdef Memory** sources = <Memory**>realloc(state.sources, (state.n_sources + 1) * sizeof(Memory*))
    if sources == NULL:
        return False
    state.sources = sources
    sources[state.n_sources] = memory_share(memory)
    number[0] = state.n_sources
    state.n_sources += 1
    return True


cdef bint put_error(DecodeState* state, int column, int64_t n, Status problem) noexcept nogil:
    """Write why a value, or its document, could not be read. Return False if there is no memory."""
    cdef const char* text = "xattrs: not a valid section"
    cdef int64_t size
    if problem == BAD_SNAPPY:
        text = "snappy: not a valid block"
    elif problem == BAD_SIZE:
        text = "snappy: inflates to more than max_value"
    elif problem == BAD_DATATYPE:
        text = "datatype: unknown bits"
    elif problem == BAD_TEXT:
        text = "value: not UTF-8"
    size = strlen(text)
    if problem == BAD_DOCUMENT:
        text, size = state.documents.error, state.documents.error_size
    state.batch_bytes += size
    return put_rare_bytes(&state.columns, column, n, <const uint8_t*>text, size)


cdef bint grow_rows(DecodeState* state) noexcept nogil:
    """Make room for more rows in all columns. Return False if there is no memory.

    The columns may have grown partly then. That is harmless: `room` still has the old number.
    """
    cdef int64_t room = max(2 * state.room, state.expected_rows), old = (state.room + 7) // 8
    cdef const ColumnSpec* spec
    cdef int i
    for i in range(state.n_columns):
        spec = &state.specs[i]
        if spec.source == DOCUMENT:
            # Its columns grow by themselves.
            continue
        if not grow(&state.columns.fixed[i], (room + 1) * (spec.width or 4)):
            return False
        if spec.nullable:
            if not grow(&state.columns.valid[i], (room + 7) // 8):
                return False
            memset(state.columns.valid[i] + old, 0xFF if is_valid_at_first(spec) else 0, (room + 7) // 8 - old)
    state.room = room
    return True


cdef inline bint is_valid_at_first(const ColumnSpec* spec) noexcept nogil:
    """Return whether few rows lack a cell: a bound of the snapshot, or a value that is text."""
    return spec.source == SNAPSHOT_START or spec.source == SNAPSHOT_END or spec.source == VALUE
