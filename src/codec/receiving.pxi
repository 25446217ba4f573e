# Receiving: from a socket into the memory of a decoder, and on into columns, without the GIL.
#
# Bytes are received in pieces that are decoded while they are still in the processor's cache; each piece overwrites the
# one before. A batch takes many pieces, and a return to Python after each would cost more than to decode it.
#
# The "bell" is a second socket by which another thread wakes up this one.

cdef extern from *:
    """
    #if defined(_WIN32)
      #define RECEIVES 0
      static int64_t clock_now(void) { return 0; }
      static Py_ssize_t receive_piece(int fd, void *to, Py_ssize_t room, int *error) {
        (void)fd, (void)to, (void)room, (void)error; return 0;
      }
      static int should_stop(int bell, int64_t until) { (void)bell, (void)until; return 1; }
      static int wait_readable(int fd, int bell, int64_t until, int *error) {
        (void)fd, (void)bell, (void)until, (void)error; return 0;
      }
    #else
      #include <errno.h>
      #include <poll.h>
      #include <sys/socket.h>
      #include <time.h>
      #define RECEIVES 1
      static int64_t clock_now(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
      }
      static Py_ssize_t receive_piece(int fd, void *to, Py_ssize_t room, int *error) {
        Py_ssize_t count = recv(fd, to, room, MSG_DONTWAIT);
        if (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) *error = errno;
        return count;
      }
      static int drain_bell(struct pollfd *bell) {
        char rings[256];
        if (!bell->revents) return 0;
        while (recv(bell->fd, rings, sizeof rings, MSG_DONTWAIT) == (Py_ssize_t)sizeof rings) {}
        return 1;
      }
      static int should_stop(int bell, int64_t until) {
        struct pollfd one = {bell, POLLIN, 0};
        return (poll(&one, 1, 0) > 0 && drain_bell(&one)) || (until >= 0 && clock_now() >= until);
      }
      static int wait_readable(int fd, int bell, int64_t until, int *error) {
        struct pollfd both[2] = {{fd, POLLIN, 0}, {bell, POLLIN, 0}};
        /* poll() takes milliseconds: rounded up, so that the wait never ends before its time. */
        int64_t left = until < 0 ? -1 : (until - clock_now() + 999) / 1000;
        int count = poll(both, 2, until < 0 ? -1 : left < 0 ? 0 : left < INT32_MAX ? (int)left : INT32_MAX);
        if (count < 0 && errno != EINTR) *error = errno;
        return count > 0 && !drain_bell(&both[1]);
      }
    #endif
    """
    bint RECEIVES
    int64_t clock_now() noexcept nogil
    # Returns the number of bytes received; 0 if the peer closed the connection; a negative number if there are none,
    # with `error` set if the connection broke.
    Py_ssize_t receive_piece(int fd, void* to, Py_ssize_t room, int* error) noexcept nogil
    # Returns True if the bell rang, or the time is up.
    bint should_stop(int bell, int64_t until) noexcept nogil
    # Waits. Returns True if there is something to receive; False if the bell rang, the time is up, or poll failed.
    bint wait_readable(int fd, int bell, int64_t until, int* error) noexcept nogil

# True if `Decoder.receive` works on this system.
CAN_RECEIVE = bool(RECEIVES)

cdef enum:
    # Memory of a decoder: one chunk, unless a frame is larger.
    CHUNK = 1 << 20
    # Bytes of one recv: they stay in the L2 cache of any processor until they are decoded.
    PIECE = 1 << 16
    # Pieces between two checks of bell and clock while bytes arrive without a pause. Each check is a system call.
    PIECES_PER_CHECK = 4

# ------------------------------------------------------------------------------------------------ memory

cdef bint make_room(ReadBuffer* own, Py_ssize_t wanted) noexcept nogil:
    """Make room for `wanted` bytes after the pending ones. Return False if there is no memory.

    Pending bytes, which are a partial frame, move to the front of the chunk or to a larger chunk.
    """
    cdef Py_ssize_t pending = own.end - own.begin, size = larger_chunk(own, wanted)
    cdef Memory* chunk
    if size:
        chunk = memory_new(size)
        if chunk == NULL:
            return False
        if pending:
            memcpy(chunk.data, own.memory.data + own.begin, pending)
        memory_release(own.memory)
        own.memory, own.number = chunk, NOWHERE
    elif is_shared(own) or (pending and own.memory.size - own.end >= wanted):
        return True
    else:
        memmove(own.memory.data, own.memory.data + own.begin, pending)
    own.begin, own.end = 0, pending
    return True


cdef Py_ssize_t larger_chunk(const ReadBuffer* own, Py_ssize_t wanted) noexcept nogil:
    """Return the size of the chunk that has to replace this one; 0 if this one has room.

    It is at most twice the bytes that are there: a length that a peer only announces allocates nothing.
    """
    cdef Py_ssize_t pending = own.end - own.begin
    if own.memory != NULL:
        if own.memory.size - (pending if not is_shared(own) else own.end) >= wanted:
            return 0
    return max(<Py_ssize_t>CHUNK, pending + max(pending, wanted))


cdef bint is_shared(const ReadBuffer* own) noexcept nogil:
    """Return whether a batch with views, or a buffer given to a caller, points into this chunk: then nothing may move.

    Other threads may release their share at any time, but no thread can take one of memory that only the decoder owns.
    So False stays true; True may be out of date, which costs a new chunk at worst.
    """
    return atomic_get(&own.memory.owners) > 1


cdef bint room_for_piece(ReadBuffer* own) noexcept nogil:
    """Make room for a piece. Return False if there is no memory.

    Few pending bytes move to the front even if there is room after them, so that all pieces share the same memory.
    """
    cdef Py_ssize_t pending = own.end - own.begin
    if own.memory != NULL and pending <= own.begin and not is_shared(own):
        memcpy(own.memory.data, own.memory.data + own.begin, pending)
        own.begin, own.end = 0, pending
    return make_room(own, PIECE)


# --------------------------------------------------------------------------------------------- a socket

cdef struct Receiver:
    # The socket, the bell, and the time in microseconds of the clock until which to wait; negative for no limit.
    int fd
    int bell
    int64_t until
    # Results: bytes received, whether the peer closed the connection, errno if it broke.
    Py_ssize_t count
    bint closed
    int error


cdef inline bint has_arrivals(const DecodeState* state) noexcept nogil:
    """Return whether streams have moved since the batch began: by its rows, or by rows that were not selected."""
    return state.rows > 0 or state.unselected_rows > 0


cdef Status receive_and_decode(DecodeState* state, ReadBuffer* own, Receiver* receiver) noexcept nogil:
    """Receive and decode until a limit is reached, a control frame arrived, or the socket has no more bytes.

    If it has none, wait for more; but not if the rows of the batch arrived during this call: the caller decides how
    long the first rows of a batch may wait.
    """
    cdef bint begun = has_arrivals(state)
    cdef Status status
    cdef Py_ssize_t count
    cdef int pieces = 0
    while True:
        status = scan(state, own)
        if status != MORE or state.n_controls:
            return status
        if not room_for_piece(own):
            return NO_MEMORY
        count = receive_piece(
            receiver.fd, own.memory.data + own.end, min(<Py_ssize_t>PIECE, own.memory.size - own.end), &receiver.error
        )
        if count > 0:
            own.end += count
            receiver.count += count
            pieces += 1
            if pieces % PIECES_PER_CHECK == 0 and should_stop(receiver.bell, receiver.until):
                return MORE
            continue
        receiver.closed = count == 0
        if receiver.closed or receiver.error or (has_arrivals(state) and not begun):
            return MORE
        # Markers without rows: the node may wait for their acknowledgement.
        if state.flow_bytes and not has_arrivals(state):
            return MORE
        if not wait_readable(receiver.fd, receiver.bell, receiver.until, &receiver.error):
            return MORE
