# Values: inflated, and their xattrs split off.

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
    if status == MORE and row.value_size and datatype & XATTR_BIT and w.split_xattrs:
        if not cut_xattrs(row, w.map_xattrs):
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
        if w.arena == NULL or w.arena_room - w.arena_used < length:
            if not grow(&w.arena, max(2 * w.arena_room, w.arena_used + <int64_t>length)):
                return NO_MEMORY
            w.arena_room = max(2 * w.arena_room, w.arena_used + <int64_t>length)
        out = w.arena + w.arena_used
    else:
        if w.scratch == NULL or w.scratch_room < length:
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
