# The fast path: runs of rows that differ only in their numbers, keys and values.
#
# `decode_run` does what `put_row` does, with everything that is the same for all rows of a run done once. It stops at
# the first frame that is out of the ordinary or malformed, without touching it, and `put_row` handles that one. So the
# fast path never decides that something is wrong. Tests hold the two against each other, byte by byte.

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
    # Bytes that one prefetch loads.
    CACHE_LINE = 64
    # How far beyond a value to prefetch. The processor's own prefetcher takes over within a longer copy.
    PREFETCH_BYTES = 2048


cdef inline void prefetch_beyond(const uint8_t* value, int64_t size) noexcept nogil:
    """Load as many bytes beyond a value as it has: those of the next row's value, if it is as long."""
    cdef int64_t ahead = size
    while ahead < 2 * size and ahead < size + <int64_t>PREFETCH_BYTES:
        prefetch(value + ahead)
        ahead += CACHE_LINE


cdef struct FieldCopy:
    # A field that is copied to a column during a run: the column's cells, the field's offset in the frame, and how the
    # number is widened, if it is.
    uint8_t* cells
    int64_t offset
    MoveKind kind


cdef inline bint may_start_run(DecodeState* state, const uint8_t* at) noexcept nogil:
    """Return whether a run can begin at this frame. To prepare one costs more than to store a single row."""
    cdef StreamState* stream
    if at[0] != 0x80 or at[DATATYPE_AT] & state.unpack_bits:
        return False
    stream = stream_of(state, stream_key(load32(at + OPAQUE_AT), load16(at + VBUCKET_AT), 0))
    return stream != NULL and stream.has_window


cdef int64_t decode_run(DecodeState* state, ReadBuffer* buf, const uint8_t* end, const Shape* shape) noexcept nogil:
    """Store a run of frames of one shape that need no work on key or value. Return the number of rows.

    A frame ends the run if it has another magic, opcode or extras length, if its value has to be unpacked, if its
    stream is not in a snapshot with a window, if its seqno does not rise or leaves the window, if its lengths are
    wrong, or if memory or a limit of the batch is reached. `put_row` finds out what is to be done with it.
    """
    # Magic, opcode, extras length, and the bits of the datatype for which a value has to be unpacked: one comparison
    # of the first 8 bytes of the header checks them all.
    cdef uint64_t mask = 0xFFFF0000FF000000ULL | <uint64_t>state.unpack_bits << 16
    cdef const uint8_t* at = buf.memory.data + buf.begin
    cdef const uint8_t* first = at
    cdef uint64_t pattern = load64(at) & 0xFFFF0000FF000000ULL, word, tail, seqno
    cdef int64_t n = state.rows, stop = min(state.room, state.max_rows), left, size, body, key_size
    cdef int64_t extras = shape.extras_length, head = HEADER_SIZE + extras
    cdef int seqno_at = shape.seqno_at, meta_at = shape.meta_at
    cdef const int* column_of = state.column_of
    cdef Columns* columns = &state.columns
    cdef ByteColumn keys = columns.bytes[column_of[<int>KEY]]
    cdef ByteColumn values = columns.bytes[column_of[<int>VALUE]]
    # Offsets of 4 bytes, or views of 16. Local copies of `keys` and `values` stay in registers; they are written back
    # at the end.
    cdef uint8_t* key_cells = columns.fixed[column_of[<int>KEY]]
    cdef uint8_t* value_cells = columns.fixed[column_of[<int>VALUE]]
    cdef const uint8_t* key
    cdef bint views = state.views, prefixed = state.collections and shape.prefixed
    cdef int prefix = 0
    cdef int64_t collection = 0
    cdef uint64_t* starts = NULL
    cdef uint64_t* ends = NULL
    cdef FieldCopy copies[MAX_COLUMNS]
    cdef FieldCopy* last8 = copies + prepare_copies(columns, shape, COPY8, copies)
    cdef FieldCopy* last4 = last8 + prepare_copies(columns, shape, COPY4, last8)
    cdef FieldCopy* last2 = last4 + prepare_copies(columns, shape, COPY2, last4)
    cdef FieldCopy* last1 = last2 + prepare_copies(columns, shape, COPY1, last2)
    cdef FieldCopy* last = last1
    cdef FieldCopy* copy
    cdef int move
    cdef StreamState* stream
    if n >= stop:
        return 0
    for move in range(<int>WIDEN4_TO_8, <int>MOVES if shape.widens else <int>WIDEN4_TO_8):
        last += prepare_copies(columns, shape, <MoveKind>move, last)
    if column_of[<int>SNAPSHOT_START] != NOWHERE:
        starts = <uint64_t*>columns.fixed[column_of[<int>SNAPSHOT_START]]
    if column_of[<int>SNAPSHOT_END] != NOWHERE:
        ends = <uint64_t*>columns.fixed[column_of[<int>SNAPSHOT_END]]
    if views and buf.number == NOWHERE and not add_source(state, buf.memory, &buf.number):
        return 0
    # Bytes that the run may take: what is there, and what the batch may still have.
    left = min(<int64_t>(end - at), max(state.max_bytes - state.batch_bytes, <int64_t>0))
    # `left` bounds every frame: header and extras by the loop's condition, the rest by `size > left`.
    while n < stop and left >= head:
        word, tail = load64(at), load64(at + BODY_LENGTH_AT)
        if word & mask != pattern:
            break
        body, key_size = tail >> 32, word >> 32 & 0xFFFF
        size = HEADER_SIZE + body
        body -= extras + key_size
        if size > left or <uint64_t>size > state.max_frame or body < 0 or key_size == 0:
            break
        # A trailer after the value, which servers 4.0 to 6.6 send on request.
        if meta_at != NOWHERE and load16(at + meta_at):
            break
        stream = stream_of(state, tail << 32 | (word & 0xFFFF) << 16)
        if stream == NULL or not stream.has_window:
            break
        seqno = load64(at + seqno_at)
        if seqno <= stream.floor or seqno > stream.highest:
            break
        key = at + head
        if prefixed:
            prefix = collection_in(key, key_size, &collection)
            if prefix == 0:
                break
            key += prefix
            key_size -= prefix
        if views:
            write_view(key_cells + 16 * n, key, key_size, buf.number, key - buf.memory.data)
            write_view(value_cells + 16 * n, key + key_size, body, buf.number, key + key_size - buf.memory.data)
        else:
            # One byte more, so that a column of empty keys has memory, too.
            if keys.room - keys.used < key_size + 1 and not reserve_bytes(&keys, key_size + 1):
                break
            if values.room - values.used < body and not reserve_bytes(&values, body):
                break
            (<int32_t*>key_cells)[n], (<int32_t*>value_cells)[n] = <int32_t>keys.used, <int32_t>values.used
            # The memory that the next row is written to is rarely in the cache: load it while this one is copied.
            prefetch_beyond(values.data + values.used, body)
            copy_bytes(keys.data + keys.used, key, key_size, end)
            if body:
                copy_bytes(values.data + values.used, key + key_size, body, end)
            keys.used += key_size
            values.used += body
        # From here on nothing can fail: the stream may be moved on.
        if prefixed and column_of[<int>COLLECTION] != NOWHERE:
            put_number(state, column_of[<int>COLLECTION], n, collection)
        stream.last_seqno = stream.floor = seqno
        if starts != NULL:
            starts[n] = stream.start
        if ends != NULL:
            ends[n] = stream.end
        copy = copies
        while copy < last8:
            (<uint64_t*>copy.cells)[n] = load64(at + copy.offset)
            copy += 1
        while copy < last4:
            (<uint32_t*>copy.cells)[n] = load32(at + copy.offset)
            copy += 1
        while copy < last2:
            (<uint16_t*>copy.cells)[n] = load16(at + copy.offset)
            copy += 1
        while copy < last1:
            copy.cells[n] = at[copy.offset]
            copy += 1
        while copy < last:
            widen(copy, at, n)
            copy += 1
        n += 1
        at += size
        left -= size
    columns.bytes[column_of[<int>KEY]], columns.bytes[column_of[<int>VALUE]] = keys, values
    if n > state.rows:
        fill_constants(state, shape, state.rows, n)
    size, key_size = at - first, n - state.rows
    buf.begin += size
    state.stream_offset += size
    state.flow_bytes += size
    state.batch_bytes += size
    state.rows = n
    return key_size


cdef int prepare_copies(Columns* columns, const Shape* shape, MoveKind move, FieldCopy* copies) noexcept nogil:
    """List the fields that are moved in this way. Return their number."""
    cdef const FieldMove* op = shape.ops
    cdef int n = 0
    if move != COPY8:
        op = shape.ends[<int>move - 1]
    while op + n < shape.ends[<int>move]:
        copies[n] = FieldCopy(columns.fixed[op[n].column], op[n].offset, move)
        n += 1
    return n


cdef inline void widen(const FieldCopy* copy, const uint8_t* at, int64_t n) noexcept nogil:
    """Store a number in a wider cell."""
    at += copy.offset
    if copy.kind == WIDEN4_TO_8:
        (<uint64_t*>copy.cells)[n] = load32(at)
    elif copy.kind == WIDEN2_TO_8:
        (<uint64_t*>copy.cells)[n] = load16(at)
    elif copy.kind == WIDEN1_TO_8:
        (<uint64_t*>copy.cells)[n] = at[0]
    elif copy.kind == WIDEN2_TO_4:
        (<uint32_t*>copy.cells)[n] = load16(at)
    else:
        (<uint32_t*>copy.cells)[n] = at[0]


cdef void fill_constants(DecodeState* state, const Shape* shape, int64_t begin, int64_t end) noexcept nogil:
    """Fill what is the same in all rows of a run: the event, and zeros for fields that the message lacks."""
    cdef const FieldMove* op
    cdef int i
    cdef int64_t n
    if state.column_of[<int>EVENT] != NOWHERE:
        memset(state.columns.fixed[state.column_of[<int>EVENT]] + begin, shape.event, end - begin)
    op = shape.ends[<int>COPY1]
    while op < shape.ends[<int>ZERO1]:
        i = state.specs[op.column].width
        memset(state.columns.fixed[op.column] + begin * i, 0, (end - begin) * i)
        op += 1
    for i in range(shape.n_valid):
        for n in range(begin, end):
            set_valid(&state.columns, shape.valid[i], n)
