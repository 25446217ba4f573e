# Values that have to be unpacked: decompressed, then split from their xattrs.

cdef Status unpack_value(DecodeState* state, Row* row, uint8_t datatype) noexcept nogil:
    """Decompress a value and split its xattrs off. One of unknown datatype cannot be read.

    In quarantine, a value that cannot be unpacked stays as it arrived, and `row.problem` says why.
    """
    cdef const uint8_t* value = row.value
    cdef int64_t size = row.value_size
    cdef Status status = BAD_DATATYPE if datatype & UNKNOWN_BITS else MORE
    if status == MORE and datatype & SNAPPY_BIT:
        if not state.inflate:
            return MORE
        status = inflate_value(state, row)
        if status == FULL or status == NO_MEMORY:
            return status
    # An empty value has no xattrs: servers keep the bit where they leave the value out.
    if status == MORE and row.value_size and datatype & XATTR_BIT and state.split_xattrs:
        if not split_xattrs_off(row, state.map_xattrs):
            status = BAD_XATTRS
    if status != MORE and state.quarantine:
        # It may be decompressed already.
        row.value, row.value_size, row.inflated = value, size, False
        row.problem = status
        return MORE
    return status


cdef Status examine_row(DecodeState* state, Row* row, const Shape* shape, uint8_t datatype) noexcept nogil:
    """Write the document of an unpacked value, and check that it is text, as far as the plan asks.

    Return DROPPED if the row is not selected.
    """
    cdef Status status
    cdef bint parsed = False
    # Not prepared deletions, which have no value.
    if state.reads_documents and shape.document and (row.value_size or not shape.document_may_lack):
        status = read_document(state, row, datatype if shape.type == NOWHERE else 0, &parsed)
        if status != MORE:
            return status
    if state.documents.n_nodes:
        status = put_document(state, row, parsed)
        if status != MORE:
            return status
    if state.check_values and not is_utf8(row.value, row.value + row.value_size):
        if not state.quarantine:
            return BAD_TEXT
        row.bad_text_size, row.value_size = row.value_size, 0
        # A value may be wrong in two ways, and the column of errors has the first.
        if row.problem == MORE:
            row.problem = BAD_TEXT
    return MORE


cdef Status read_document(DecodeState* state, Row* row, uint8_t datatype, bint* parsed) noexcept nogil:
    """Parse a value, and hold it against the condition. Return DROPPED if that is not true.

    A value that is no JSON cannot be held against it, so it is delivered rather than lost: `row.problem` says why.
    """
    cdef const SelectedRows* selected = state.selected
    cdef Status status = row.problem
    if status == MORE:
        status = json_read(&state.json, row.value, row.value_size)
        if status == BAD_DOCUMENT:
            describe_no_json(&state.documents, datatype)
    if status == NO_MEMORY or (status == BAD_DOCUMENT and not state.keep_bad_documents):
        return status
    row.problem, parsed[0] = status, status == MORE
    if parsed[0] and selected != NULL and selected.n_tests:
        if evaluate(selected.tests, selected.steps, 0, state.json.root) != IS_TRUE:
            json_trim(&state.json)
            return DROPPED
    if not parsed[0] or state.documents.n_nodes == 0:
        # No column needs the parsed value: `put_document` gives its memory back otherwise.
        json_trim(&state.json)
    return MORE


cdef Status put_document(DecodeState* state, Row* row, bint parsed) noexcept nogil:
    """Write the parsed value as the document of the next row, or null.

    Return FULL if it takes much more than its bytes and the batch would exceed max_bytes: the frame is decoded again
    for the next batch.
    """
    cdef DocumentBuilder* builder = &state.documents
    cdef int64_t n = state.rows, excess
    cdef Status status
    if not parsed:
        truncate_document(builder, 0, n)
        return MORE if put_null(builder, 0) else NO_MEMORY
    status = write_document(builder, n)
    excess = builder.taken - row.value_size
    json_trim(&state.json)
    if status == NO_MEMORY:
        return status
    if status == BAD_DOCUMENT:
        if not state.keep_bad_documents:
            truncate_document(builder, 0, n)
            return status
        row.problem = status
    if excess > 0:
        if n and state.batch_bytes + excess > state.max_bytes:
            truncate_document(builder, 0, n)
            return FULL
        state.batch_bytes += excess
    return MORE


cdef bint is_selected(const SelectedRows* selected, const Row* row, int event) noexcept nogil:
    """Return whether rows of this event with this key are wanted."""
    if not selected.events >> event & 1:
        return False
    return selected.all_keys or selects_key(selected, row.key, row.key_size)


cdef Status inflate_value(DecodeState* state, Row* row) noexcept nogil:
    """Decompress a value into the arena (with views, which point to it) or into the scratch memory.

    Return FULL if the batch would exceed max_bytes: the frame is decoded again for the next batch.
    """
    cdef uint32_t length = 0
    cdef Py_ssize_t head = snappy_length(row.value, row.value_size, &length)
    cdef uint8_t* out
    # The announced length allocates nothing before it is plausible, and within the limit.
    if head < 0 or <uint64_t>length > SNAPPY_RATIO * <uint64_t>row.value_size:
        return BAD_SNAPPY
    if <int64_t>length > state.max_value:
        return BAD_SIZE
    # Not for the first row: a batch takes at least one, however large.
    if state.rows and state.batch_bytes + <int64_t>length > state.max_bytes:
        return FULL
    if state.views:
        if state.arena == NULL or state.arena_room - state.arena_used < length:
            if not grow(&state.arena, max(2 * state.arena_room, state.arena_used + <int64_t>length)):
                return NO_MEMORY
            state.arena_room = max(2 * state.arena_room, state.arena_used + <int64_t>length)
        out = state.arena + state.arena_used
    else:
        if state.scratch == NULL or state.scratch_room < length:
            if not grow(&state.scratch, max(2 * state.scratch_room, <int64_t>length)):
                return NO_MEMORY
            state.scratch_room = max(2 * state.scratch_room, <int64_t>length)
        out = state.scratch
    if not snappy_inflate(row.value + head, row.value + row.value_size, out, length):
        return BAD_SNAPPY
    if state.views:
        state.arena_used += length
    state.batch_bytes += length
    row.value, row.value_size, row.inflated = out, length, True
    return MORE


cdef bint split_xattrs_off(Row* row, bint text) noexcept nogil:
    """Split the section of xattrs off the beginning of a value. Return False if it is malformed.

    The section is a length, then pairs, each a length, a name, 00, a text, 00.

    text: True to require UTF-8, since names and texts become Arrow strings.
    """
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
