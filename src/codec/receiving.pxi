# Receiving: from a socket into the memory of a decoder, and on into columns, without the GIL.
#
# In pieces that are decoded while they are in the processor's cache, each into the memory of the one before. A batch
# takes many of them: between two, Python would have to be waited for.

cdef extern from *:
    """
    #if defined(_WIN32)
      #define RECEIVES 0
      static int64_t clock_now(void) { return 0; }
      static Py_ssize_t receive_piece(int fd, void *to, Py_ssize_t room, int *error) {
        (void)fd, (void)to, (void)room, (void)error; return 0;
      }
      static int is_over(int bell, int64_t until) { (void)bell, (void)until; return 1; }
      static int wait_for(int fd, int bell, int64_t until, int *error) {
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
      static int silence(struct pollfd *bell) {
        char rings[256];
        if (!bell->revents) return 0;
        while (recv(bell->fd, rings, sizeof rings, MSG_DONTWAIT) == (Py_ssize_t)sizeof rings) {}
        return 1;
      }
      static int is_over(int bell, int64_t until) {
        struct pollfd one = {bell, POLLIN, 0};
        return (poll(&one, 1, 0) > 0 && silence(&one)) || (until >= 0 && clock_now() >= until);
      }
      static int wait_for(int fd, int bell, int64_t until, int *error) {
        struct pollfd both[2] = {{fd, POLLIN, 0}, {bell, POLLIN, 0}};
        /* In milliseconds, of which a part counts as a whole one: it is not over before its time. */
        int64_t left = until < 0 ? -1 : (until - clock_now() + 999) / 1000;
        int count = poll(both, 2, until < 0 ? -1 : left < 0 ? 0 : left < INT32_MAX ? (int)left : INT32_MAX);
        if (count < 0 && errno != EINTR) *error = errno;
        return count > 0 && !silence(&both[1]);
      }
    #endif
    """
    bint RECEIVES
    int64_t clock_now() noexcept nogil
    # How many bytes came; 0 where the connection is closed; negative if there are none, with the error if that is why.
    Py_ssize_t receive_piece(int fd, void* to, Py_ssize_t room, int* error) noexcept nogil
    # Whether the bell rang, or time is over.
    bint is_over(int bell, int64_t until) noexcept nogil
    # Whether there is something to receive, before the bell rings, time is over or something is wrong.
    bint wait_for(int fd, int bell, int64_t until, int* error) noexcept nogil

# Whether `Decoder.receive` works on this system.
CAN_RECEIVE = bool(RECEIVES)

cdef enum:
    CHUNK = 1 << 20
    PIECE = 1 << 16
    # After so many, it looks whether it has to stop although more is there.
    PIECES = 4

# ------------------------------------------------------------------------------------------------ memory

cdef bint make_room(Feed* own, Py_ssize_t wanted) noexcept nogil:
    """Room for so many bytes behind the pending ones: a partial frame moves to the front, or to a larger chunk."""
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


cdef Py_ssize_t larger_chunk(const Feed* own, Py_ssize_t wanted) noexcept nogil:
    """The size of the chunk that has to take the place of this one; 0 if there is room in this one.

    Never more than twice what is there: a length that is only announced takes no memory.
    """
    cdef Py_ssize_t pending = own.end - own.begin
    if own.memory != NULL:
        if own.memory.size - (pending if not is_shared(own) else own.end) >= wanted:
            return 0
    return max(<Py_ssize_t>CHUNK, pending + max(pending, wanted))


cdef bint is_shared(const Feed* own) noexcept nogil:
    """Whether somebody else looks at this chunk, too: what is in it has to stay where it is."""
    return atomic_get(&own.memory.owners) > 1


cdef bint room_for_piece(Feed* own) noexcept nogil:
    """What is pending moves to the front, if that is little and nobody else looks at it."""
    cdef Py_ssize_t pending = own.end - own.begin
    if own.memory != NULL and pending <= own.begin and not is_shared(own):
        memcpy(own.memory.data, own.memory.data + own.begin, pending)
        own.begin, own.end = 0, pending
    return make_room(own, PIECE)


# --------------------------------------------------------------------------------------------- a socket

cdef struct Line:
    # A socket, what ends waiting for it, and until when that lasts, in microseconds of the clock; never, if negative.
    int fd
    int bell
    int64_t until
    # What was found there.
    Py_ssize_t count
    bint closed
    int error


cdef Status pull(Work* w, Feed* own, Line* line) noexcept nogil:
    """Receives and decodes until a limit is reached, a control came, or the socket has no more to give.

    It waits for more unless these are the first rows of a batch: how long those may wait is not known here.
    """
    cdef bint begun = w.rows > 0
    cdef Status status
    cdef Py_ssize_t count
    cdef int pieces = 0
    while True:
        status = scan(w, own)
        if status != MORE or w.n_notes:
            return status
        if not room_for_piece(own):
            return NO_MEMORY
        count = receive_piece(
            line.fd, own.memory.data + own.end, min(<Py_ssize_t>PIECE, own.memory.size - own.end), &line.error
        )
        if count > 0:
            own.end += count
            line.count += count
            pieces += 1
            if pieces % PIECES == 0 and is_over(line.bell, line.until):
                return MORE
            continue
        line.closed = count == 0
        if line.closed or line.error or (w.rows > 0 and not begun):
            return MORE
        if not wait_for(line.fd, line.bell, line.until, &line.error):
            return MORE
