# UTF-8, checked as in RFC 3629: no surrogates, nothing overlong, nothing above U+10FFFF.

cdef bint is_utf8(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Return whether the bytes are UTF-8. ASCII is checked 8 bytes at a time."""
    cdef uint64_t word
    cdef uint8_t lead, second
    cdef int more
    while at < end:
        while end - at >= 8:
            memcpy(&word, at, 8)
            if word & 0x8080808080808080ULL:
                break
            at += 8
        if at == end:
            return True
        lead = at[0]
        at += 1
        if lead < 0x80:
            continue
        if lead < 0xC2 or lead > 0xF4:
            return False
        more = 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
        if end - at < more:
            return False
        second = at[0]
        if (lead == 0xE0 and second < 0xA0) or (lead == 0xED and second > 0x9F):
            return False
        if (lead == 0xF0 and second < 0x90) or (lead == 0xF4 and second > 0x8F):
            return False
        while more:
            if at[0] & 0xC0 != 0x80:
                return False
            at += 1
            more -= 1
    return True
