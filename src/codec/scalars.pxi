# Texts of documents as numbers, times and bytes. Exact, or refused.

cdef struct Number128:
    # Magnitude of a number, in two halves.
    uint64_t high
    uint64_t low

cdef enum NumberCheck:
    NUMBER_EXACT
    # Digits beyond the scale that are not 0, or not a number at all.
    NUMBER_INEXACT
    NUMBER_TOO_LONG

cdef enum:
    # Beyond it, more digits of an exponent change nothing.
    MOST_EXPONENT = 1 << 30


cdef inline bint is_digit(char c) noexcept nogil:
    return c"0" <= c <= c"9"


cdef inline void times_ten(Number128* number, unsigned digit) noexcept nogil:
    """Append a decimal digit."""
    cdef uint64_t low = (number.low & 0xFFFFFFFFU) * 10 + digit
    cdef uint64_t high = (number.low >> 32) * 10 + (low >> 32)
    number.low = high << 32 | (low & 0xFFFFFFFFU)
    number.high = number.high * 10 + (high >> 32)


cdef NumberCheck read_decimal(const char* text, int64_t size, int scale, int precision, bint truncate, bint* negative,
                              Number128* out) noexcept nogil:
    """Read a number as a multiple of 10^-scale, of at most `precision` digits.

    text: a number as JSON has it. Other text gives NUMBER_INEXACT.
    truncate: cut digits beyond the scale, instead of NUMBER_INEXACT if they are not 0.
    """
    cdef const char* at = text
    cdef const char* end = text + size
    cdef const char* begin
    cdef const char* last
    cdef const char* point = NULL
    cdef int64_t exponent = 0, digits, shift
    cdef bint minus = False
    out.high = out.low = 0
    negative[0] = at < end and at[0] == c"-"
    at += negative[0]
    begin = at
    while at < end and (is_digit(at[0]) or (at[0] == c"." and point == NULL)):
        if at[0] == c".":
            point = at
        at += 1
    last = at
    if last - begin - (point != NULL) == 0 or point == begin or point == last - 1:
        return NUMBER_INEXACT
    if at < end and (at[0] == c"e" or at[0] == c"E"):
        at += 1
        if at < end and (at[0] == c"+" or at[0] == c"-"):
            minus = at[0] == c"-"
            at += 1
        if at == end:
            return NUMBER_INEXACT
        while at < end and is_digit(at[0]):
            if exponent < MOST_EXPONENT:
                exponent = 10 * exponent + (at[0] - c"0")
            at += 1
        if minus:
            exponent = -exponent
    if at != end:
        return NUMBER_INEXACT
    # Zeros at both ends say nothing but the place of the point.
    while begin < last and (begin[0] == c"0" or begin[0] == c"."):
        begin += 1
    if begin == last:
        negative[0] = False
        return NUMBER_EXACT
    # Power of ten of the last digit.
    if point != NULL:
        exponent -= last - point - 1
    while (last - 1)[0] == c"0" or (last - 1)[0] == c".":
        last -= 1
        exponent += last[0] == c"0"
        # Zeros in front of the point count, the point itself does not.
    digits = last - begin - (1 if point != NULL and begin < point < last else 0)
    shift = exponent + scale
    if digits + shift > precision:
        return NUMBER_TOO_LONG
    if shift < 0 and not truncate:
        return NUMBER_INEXACT
    # Digits that stay after the cut.
    digits += min(shift, <int64_t>0)
    while begin < last and digits > 0:
        if begin[0] != c".":
            times_ten(out, begin[0] - c"0")
            digits -= 1
        begin += 1
    while shift > 0:
        times_ten(out, 0)
        shift -= 1
    return NUMBER_EXACT


cdef bint read_integer(const char* text, int64_t size, int bits, int64_t* out) noexcept nogil:
    """Read a number that is a whole one of this width, in whatever form: 1000, 1e3, 1000.0."""
    cdef Number128 number
    cdef bint negative = text[0] == c"-"
    cdef uint64_t value = 0
    cdef const char* at = text + negative
    cdef const char* end = text + size
    if end - at <= 18:
        while at < end and is_digit(at[0]):
            value = 10 * value + <uint64_t>(at[0] - c"0")
            at += 1
    if at < end or size == negative:
        # Exponents, points, and more digits than fit for sure.
        if read_decimal(text, size, 0, 19, False, &negative, &number) != NUMBER_EXACT or number.high:
            return False
        value = number.low
    if value > (<uint64_t>1 << (bits - 1)) - 1 + <uint64_t>negative:
        return False
    out[0] = <int64_t>(0 - value if negative else value)
    return True


# Times: days and microseconds since 1970, in the proleptic Gregorian calendar.

cdef int64_t days_of(int64_t year, int64_t month, int64_t day) noexcept nogil:
    """Return the days from 1970-01-01 to a date. Years begin in March here, so that a leap day is the last of one."""
    cdef int64_t shifted = year - (month <= 2), era, of_era, of_year
    era = (shifted if shifted >= 0 else shifted - 399) // 400
    of_era = shifted - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


cdef inline int digits_at(const char* at, int count) noexcept nogil:
    """Return the number that these digits are; -1 if one of them is no digit."""
    cdef int number = 0, i
    for i in range(count):
        if not is_digit(at[i]):
            return -1
        number = 10 * number + (at[i] - c"0")
    return number


cdef bint read_date(const char* text, int64_t size, int64_t* days) noexcept nogil:
    """Read YYYY-MM-DD."""
    cdef int year, month, day, last
    if size != 10 or text[4] != c"-" or text[7] != c"-":
        return False
    year, month, day = digits_at(text, 4), digits_at(text + 5, 2), digits_at(text + 8, 2)
    if year < 1 or not 1 <= month <= 12 or day < 1:
        return False
    if month == 2:
        last = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    else:
        last = 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31
    if day > last:
        return False
    days[0] = days_of(year, month, day)
    return True


cdef bint read_time(const char* text, int64_t size, bint local, int64_t* micros) noexcept nogil:
    """Read an ISO 8601 time: YYYY-MM-DDTHH:MM[:SS[.fraction]], then Z or an offset such as +02:00.

    Digits beyond microseconds are cut, since nothing here could keep them. A leap second is refused.

    local: True for a time without zone.
    """
    cdef int64_t days, offset = 0
    cdef const char* at = text + 10
    cdef const char* end = text + size
    cdef int hour, minute, second = 0, digits = 0, fraction = 0, sign
    if size < 16 or not read_date(text, 10, &days) or (at[0] != c"T" and at[0] != c"t" and at[0] != c" "):
        return False
    hour, minute = digits_at(at + 1, 2), digits_at(at + 4, 2)
    if not 0 <= hour <= 23 or not 0 <= minute <= 59 or at[3] != c":":
        return False
    at += 6
    if end - at >= 3 and at[0] == c":":
        second = digits_at(at + 1, 2)
        if not 0 <= second <= 59:
            return False
        at += 3
        if at < end and (at[0] == c"." or at[0] == c","):
            at += 1
            if at == end or not is_digit(at[0]):
                return False
            while at < end and is_digit(at[0]):
                if digits < 6:
                    fraction = 10 * fraction + (at[0] - c"0")
                    digits += 1
                at += 1
    while digits < 6:
        fraction *= 10
        digits += 1
    if local:
        if at != end:
            return False
    elif end - at == 1 and (at[0] == c"Z" or at[0] == c"z"):
        pass
    elif end - at >= 3 and (at[0] == c"+" or at[0] == c"-"):
        sign = -1 if at[0] == c"-" else 1
        at += 1
        offset = digits_at(at, 2)
        if not 0 <= offset <= 23:
            return False
        offset *= 60
        at += 2
        if at < end:
            at += at[0] == c":"
            if end - at != 2 or not 0 <= digits_at(at, 2) <= 59:
                return False
            offset += digits_at(at, 2)
        offset *= sign
    else:
        return False
    micros[0] = (((days * 24 + hour) * 60 + minute - offset) * 60 + second) * 1000000 + fraction
    return True


cdef bint read_epoch(const char* text, int64_t size, int scale, int64_t* micros) noexcept nogil:
    """Read a number of seconds (scale 6), milliseconds (3) or microseconds (0) since 1970."""
    cdef Number128 number
    cdef bint negative
    if read_decimal(text, size, scale, 19, True, &negative, &number) != NUMBER_EXACT:
        return False
    if number.high or number.low >> 63:
        return False
    micros[0] = -<int64_t>number.low if negative else <int64_t>number.low
    return True


cdef inline int base64_digit(uint8_t c) noexcept nogil:
    if c"A" <= c <= c"Z":
        return c - c"A"
    if c"a" <= c <= c"z":
        return c - c"a" + 26
    if c"0" <= c <= c"9":
        return c - c"0" + 52
    return 62 if c == c"+" else 63 if c == c"/" else -1


cdef int64_t read_base64(const uint8_t* text, int64_t size, uint8_t* out) noexcept nogil:
    """Decode base64 with padding (RFC 4648). Return the number of bytes; NOWHERE if it is malformed.

    out: room for 3 bytes for each 4 of the text.
    """
    cdef int64_t i, used = 0
    cdef int a, b, c, d
    if size % 4:
        return NOWHERE
    for i in range(0, size, 4):
        a, b, c, d = (
            base64_digit(text[i]), base64_digit(text[i + 1]), base64_digit(text[i + 2]), base64_digit(text[i + 3])
        )
        if a < 0 or b < 0:
            return NOWHERE
        if c >= 0 and d >= 0:
            out[used], out[used + 1], out[used + 2] = a << 2 | b >> 4, (b & 15) << 4 | c >> 2, (c & 3) << 6 | d
            used += 3
            continue
        # Padding, at the end only, over bits that are 0.
        if i + 4 != size or text[i + 3] != c"=":
            return NOWHERE
        out[used] = a << 2 | b >> 4
        if c >= 0 and c & 3 == 0:
            out[used + 1] = (b & 15) << 4 | c >> 2
            return used + 2
        return used + 1 if text[i + 2] == c"=" and b & 15 == 0 else NOWHERE
    return used
