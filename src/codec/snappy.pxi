# Snappy's raw block format: https://github.com/google/snappy/blob/main/format_description.txt

cdef Py_ssize_t snappy_length(const uint8_t* at, Py_ssize_t size, uint32_t* length) noexcept nogil:
    """Read the announced length of the decompressed block. Return where its elements begin; -1 if it is malformed."""
    cdef uint64_t number = 0
    cdef Py_ssize_t i
    for i in range(min(size, <Py_ssize_t>5)):
        number |= <uint64_t>(at[i] & 0x7F) << (7 * i)
        if at[i] < 0x80:
            if number >> 32:
                return -1
            length[0] = <uint32_t>number
            return i + 1
    return -1


cdef bint snappy_inflate(const uint8_t* at, const uint8_t* end, uint8_t* out, uint32_t length) noexcept nogil:
    """Decompress the elements to exactly `length` bytes at `out`. Return False if they are malformed.

    Every element is checked against both ends, so malformed ones neither read nor write beyond them.
    """
    cdef uint8_t* start = out
    cdef uint8_t* stop = out + length
    cdef uint32_t tag, size, offset, extra, i
    while at < end:
        tag = at[0]
        at += 1
        # A literal. The tag has its size minus 1; from 60 on, the size minus 1 follows in 1 to 4 bytes.
        if tag & 3 == 0:
            size = (tag >> 2) + 1
            if size > 60:
                extra = size - 60
                if end - at < extra:
                    return False
                size = 0
                for i in range(extra):
                    size |= <uint32_t>at[i] << (8 * i)
                at += extra
                # The next addition would wrap around to 0.
                if size == 0xFFFFFFFFU:
                    return False
                size += 1
            if end - at < size or stop - out < size:
                return False
            memcpy(out, at, size)
            at += size
            out += size
            continue
        # A copy of earlier output, with an offset of 11, 16 or 32 bits.
        extra = 1 if tag & 3 == 1 else 2 if tag & 3 == 2 else 4
        if end - at < extra:
            return False
        if extra == 1:
            size = ((tag >> 2) & 7) + 4
            offset = (tag >> 5) << 8 | at[0]
        else:
            size = (tag >> 2) + 1
            offset = 0
            for i in range(extra):
                offset |= <uint32_t>at[i] << (8 * i)
        at += extra
        if offset == 0 or offset > out - start or stop - out < size:
            return False
        if offset >= size:
            memcpy(out, out - offset, size)
        else:
            # The copy overlaps its own output, which repeats the last `offset` bytes. memcpy may not.
            for i in range(size):
                out[i] = (out - offset)[i]
        out += size
    return out == stop
