# Table of the connection's streams: the snapshot that each is in, and its last seqno.
#
# A hash table with open addressing and linear probing. Entries move when the table grows and when one is removed, so a
# pointer to an entry holds only until the next `stream_open` or `stream_close`.

cdef struct StreamState:
    uint64_t key
    # The window of the snapshot, if it has one.
    uint64_t start
    uint64_t end
    # Seqno of the last row; out of order, the highest one.
    uint64_t last_seqno
    # The last seqno that `_last_seqnos` has reported.
    uint64_t reported
    # Bounds of the next row's seqno: above `floor`, up to `highest`, which is 0 outside of snapshots. `misplaced` looks
    # closer at a row that is not between them: out of order, they do not hold.
    uint64_t floor
    uint64_t highest
    # One byte each, so that an entry takes a cache line.
    uint8_t used
    # True if the next row may not have seqno 0: a floor of 0 does not tell.
    uint8_t above_zero
    uint8_t has_window
    uint8_t out_of_order
    # True once the consumer has closed the stream: rows that were on their way are dropped.
    uint8_t closed
    # True once its request was refused. `_last_seqnos` removes it, after it has reported rows that arrived anyway.
    uint8_t refused
    # True if it has passed snapshots that `_passed_snapshots` has not reported. A control frame of it has to wait.
    uint8_t has_passed
    # True if it has passed snapshots since `_moved` was called.
    uint8_t moved

cdef struct StreamTable:
    StreamState* slots
    uint64_t mask
    uint64_t count

cdef enum:
    FEWEST_STREAMS = 64
    # More than any node has vbuckets. A peer that opens more wants to fill the memory.
    MOST_STREAMS = 1 << 18


cdef inline uint64_t stream_key(uint32_t opaque, uint32_t vbucket, uint32_t stream_id) noexcept nogil:
    """Return the key of a stream.

    The opaque alone identifies a stream, if the consumer gave each its own. Vbucket and stream id tell apart the
    streams of a consumer that did not.
    """
    return <uint64_t>opaque << 32 | vbucket << 16 | stream_id


cdef inline uint64_t home_slot(const StreamTable* streams, uint64_t key) noexcept nogil:
    """Return the slot where the search for a key starts. Fibonacci hashing: keys differ in few bits."""
    return (key * 0x9E3779B97F4A7C15ULL) >> 32 & streams.mask


cdef inline StreamState* stream_find(const StreamTable* streams, uint64_t key) noexcept nogil:
    """Return the stream with this key; NULL if there is none."""
    cdef uint64_t i
    if streams.count == 0:
        return NULL
    i = home_slot(streams, key)
    # Ends: `stream_open` keeps a quarter of the slots free.
    while streams.slots[i].used:
        if streams.slots[i].key == key:
            return &streams.slots[i]
        i = (i + 1) & streams.mask
    return NULL


cdef bint streams_grow(StreamTable* streams) noexcept nogil:
    """Double the table. Return False if there is no memory."""
    cdef uint64_t size = FEWEST_STREAMS if streams.slots == NULL else 2 * (streams.mask + 1)
    cdef StreamState* old = streams.slots
    cdef uint64_t i, j, n = 0 if old == NULL else streams.mask + 1
    cdef StreamState* slots = <StreamState*>calloc(size, sizeof(StreamState))
    if slots == NULL:
        return False
    streams.slots, streams.mask = slots, size - 1
    for i in range(n):
        if old[i].used:
            j = home_slot(streams, old[i].key)
            while slots[j].used:
                j = (j + 1) & streams.mask
            slots[j] = old[i]
    free(old)
    return True


cdef StreamState* stream_open(StreamTable* streams, uint64_t key) noexcept nogil:
    """Return the stream with this key, a new one if there is none. NULL if there are too many, or no memory."""
    cdef StreamState* stream = stream_find(streams, key)
    cdef uint64_t i
    if stream != NULL:
        return stream
    if streams.count >= MOST_STREAMS:
        return NULL
    if streams.slots == NULL or 4 * (streams.count + 1) > 3 * (streams.mask + 1):
        if not streams_grow(streams):
            return NULL
    i = home_slot(streams, key)
    while streams.slots[i].used:
        i = (i + 1) & streams.mask
    memset(&streams.slots[i], 0, sizeof(StreamState))
    streams.slots[i].used, streams.slots[i].key = True, key
    streams.count += 1
    return &streams.slots[i]


cdef void stream_close(StreamTable* streams, uint64_t key) noexcept nogil:
    """Remove a stream, if it is there.

    Entries after it whose home slot is not after the hole move back into it, so that searches never have to pass a
    removed entry.
    """
    cdef StreamState* stream = stream_find(streams, key)
    cdef uint64_t hole, i, home
    if stream == NULL:
        return
    hole = stream - streams.slots
    i = hole
    while True:
        i = (i + 1) & streams.mask
        if not streams.slots[i].used:
            break
        home = home_slot(streams, streams.slots[i].key)
        if ((i - home) & streams.mask) >= ((i - hole) & streams.mask):
            streams.slots[hole] = streams.slots[i]
            hole = i
    streams.slots[hole].used = False
    streams.count -= 1
