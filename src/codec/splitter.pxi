# Splitting of a byte stream into frames.

cdef enum Check:
    WHOLE
    INCOMPLETE
    BAD_MAGIC
    BAD_LENGTHS
    TOO_LARGE


cdef inline bint is_magic(uint8_t magic) noexcept nogil:
    return 0x80 <= magic <= 0x83 or magic == 0x08 or magic == 0x18


cdef inline bint is_framed(uint8_t magic) noexcept nogil:
    return magic == 0x08 or magic == 0x18


cdef Check check_frame(const uint8_t* at, Py_ssize_t available, uint64_t max_frame, uint64_t* size) noexcept nogil:
    """Check the frame that begins at `at`, and return its size as far as it is known.

    Each length is checked as soon as its bytes are there: a frame that is too large or malformed is refused before
    anything waits for the rest of it, or allocates memory for it.
    """
    cdef uint64_t body, sections
    size[0] = HEADER_SIZE
    if available < 1:
        return INCOMPLETE
    if not is_magic(at[0]):
        return BAD_MAGIC
    # All lengths are in the first 12 bytes of the header.
    if available < BODY_LENGTH_END:
        return INCOMPLETE
    body = load32(at + BODY_LENGTH_AT)
    sections = <uint64_t>at[EXTRAS_LENGTH_AT]
    # Framing extras take one of the two bytes of the key length.
    if is_framed(at[0]):
        sections += <uint64_t>at[KEY_LENGTH_AT] + at[KEY_LENGTH_AT + 1]
    else:
        sections += load16(at + KEY_LENGTH_AT)
    if sections > body:
        return BAD_LENGTHS
    size[0] = HEADER_SIZE + body
    if size[0] > max_frame:
        return TOO_LARGE
    return WHOLE if <uint64_t>available >= size[0] else INCOMPLETE


cdef class Splitter:
    """Splitter of a byte stream, fed in any chunks, into whole frames.

    Iterate after each `feed`. The iteration ends at the first frame that is not complete yet. It raises FrameError at
    a malformed frame, after the frames before it, and again at each later attempt. It holds no more than what was fed
    since the last whole frame, and never waits for a frame larger than `max_frame` bytes.
    """

    cdef uint8_t* _buffer
    cdef Py_ssize_t _capacity, _start, _end
    cdef uint64_t _max_frame
    cdef readonly object offset
    cdef readonly Py_ssize_t max_frame

    def __cinit__(self, max_frame not None):
        if not HEADER_SIZE <= max_frame <= (1 << 31) - 1:
            raise UsageError(f"max_frame: expected {HEADER_SIZE} to {(1 << 31) - 1} bytes, found {max_frame}")
        self.max_frame = max_frame
        self._max_frame = max_frame
        self.offset = 0

    def __dealloc__(self):
        PyMem_Free(self._buffer)

    @property
    def pending(self):
        """Number of bytes that wait for the rest of their frame."""
        return self._end - self._start

    def feed(self, const uint8_t[::1] data not None):
        """Take the next bytes of the stream. They are copied."""
        cdef Py_ssize_t count = data.shape[0]
        if count == 0:
            return
        self._make_room(count)
        memcpy(self._buffer + self._end, &data[0], count)
        self._end += count

    def __iter__(self):
        return self

    def __next__(self):
        cdef uint64_t size
        cdef Check check
        if self._end == self._start:
            raise StopIteration
        check = check_frame(self._buffer + self._start, self._end - self._start, self._max_frame, &size)
        if check == INCOMPLETE:
            raise StopIteration
        if check != WHOLE:
            raise self._refusal(check, size)
        frame = PyBytes_FromStringAndSize(<char*>self._buffer + self._start, <Py_ssize_t>size)
        self._start += <Py_ssize_t>size
        self.offset += size
        return frame

    def finish(self):
        """End the stream. Raises FrameError if a frame is not complete."""
        cdef uint64_t size
        cdef Py_ssize_t found = self.pending
        cdef Check check
        if not found:
            return
        check = check_frame(self._buffer + self._start, found, self._max_frame, &size)
        if check not in (WHOLE, INCOMPLETE):
            raise self._refusal(check, size)
        if check == INCOMPLETE:
            raise self._error(f"expected {size} bytes, found {found}: the input ends inside the frame")

    cdef int _make_room(self, Py_ssize_t count) except -1:
        """Make room for `count` bytes after the pending ones, which move to the front."""
        cdef Py_ssize_t pending = self._end - self._start
        cdef Py_ssize_t capacity
        cdef uint8_t* buffer
        if self._capacity - self._end >= count:
            return 0
        if self._capacity - pending < count:
            capacity = max(pending + count, 2 * pending)
            buffer = <uint8_t*>PyMem_Malloc(capacity)
            if buffer == NULL:
                raise MemoryError
            if pending:
                memcpy(buffer, self._buffer + self._start, pending)
            PyMem_Free(self._buffer)
            self._buffer, self._capacity = buffer, capacity
        else:
            memmove(self._buffer, self._buffer + self._start, pending)
        self._start, self._end = 0, pending
        return 0

    cdef object _refusal(self, Check check, uint64_t size):
        cdef const uint8_t* at = self._buffer + self._start
        if check == BAD_MAGIC:
            return FrameError(f"magic: expected 0x80 to 0x83, 0x08 or 0x18, found 0x{at[0]:02x}", self.offset)
        if check == TOO_LARGE:
            return self._error(f"frame length: expected at most {self.max_frame} bytes (max_frame), found {size}")
        framing = at[KEY_LENGTH_AT] if is_framed(at[0]) else 0
        key = at[KEY_LENGTH_AT + 1] if is_framed(at[0]) else load16(at + KEY_LENGTH_AT)
        return self._error(
            f"body length: expected at least {framing} bytes of framing extras, {at[EXTRAS_LENGTH_AT]} of extras "
            f"and {key} of key, found {load32(at + BODY_LENGTH_AT)}"
        )

    cdef object _error(self, str problem):
        cdef const uint8_t* at = self._buffer + self._start
        cdef Py_ssize_t found = self._end - self._start
        # Requests alone have a vbucket in bytes 6 and 7; responses have a status.
        opcode = at[OPCODE_AT] if found > OPCODE_AT else None
        vbucket = load16(at + VBUCKET_AT) if found >= VBUCKET_AT + 2 and at[0] in (0x80, 0x08, 0x82) else None
        return FrameError(problem, self.offset, opcode, vbucket)
