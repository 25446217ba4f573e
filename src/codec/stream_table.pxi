# The snapshot that each stream is in: a hash table with open addressing.

cdef struct Stream:
    uint64_t key
    uint64_t start
    uint64_t end
    uint64_t last
    # The last seqno that was told.
    uint64_t told
    bint used
    bint begun
    bint windowed
    bint disorder

cdef struct Streams:
    Stream* slots
    uint64_t mask
    uint64_t count

cdef enum:
    FEWEST_STREAMS = 64
    # More than any node has vbuckets: what comes beyond is not an honest peer.
    MOST_STREAMS = 1 << 18


cdef inline uint64_t stream_key(uint32_t opaque, uint32_t vbucket, uint32_t stream_id) noexcept nogil:
    """A stream has an opaque of its own; those of careless consumers differ in vbucket or stream id at least."""
    return <uint64_t>opaque << 32 | vbucket << 16 | stream_id


cdef inline uint64_t stream_home(const Streams* streams, uint64_t key) noexcept nogil:
    return (key * 0x9E3779B97F4A7C15ULL) >> 32 & streams.mask


cdef inline Stream* stream_find(const Streams* streams, uint64_t key) noexcept nogil:
    cdef uint64_t i
    if streams.count == 0:
        return NULL
    i = stream_home(streams, key)
    while streams.slots[i].used:
        if streams.slots[i].key == key:
            return &streams.slots[i]
        i = (i + 1) & streams.mask
    return NULL


cdef bint streams_grow(Streams* streams) noexcept nogil:
    cdef uint64_t size = FEWEST_STREAMS if streams.slots == NULL else 2 * (streams.mask + 1)
    cdef Stream* old = streams.slots
    cdef uint64_t i, j, n = 0 if old == NULL else streams.mask + 1
    cdef Stream* slots = <Stream*>calloc(size, sizeof(Stream))
    if slots == NULL:
        return False
    streams.slots, streams.mask = slots, size - 1
    for i in range(n):
        if old[i].used:
            j = stream_home(streams, old[i].key)
            while slots[j].used:
                j = (j + 1) & streams.mask
            slots[j] = old[i]
    free(old)
    return True


cdef Stream* stream_open(Streams* streams, uint64_t key) noexcept nogil:
    """The stream with this key, made if there is none. NULL if there are too many, or no room."""
    cdef Stream* stream = stream_find(streams, key)
    cdef uint64_t i
    if stream != NULL:
        return stream
    if streams.count >= MOST_STREAMS:
        return NULL
    if streams.slots == NULL or 4 * (streams.count + 1) > 3 * (streams.mask + 1):
        if not streams_grow(streams):
            return NULL
    i = stream_home(streams, key)
    while streams.slots[i].used:
        i = (i + 1) & streams.mask
    memset(&streams.slots[i], 0, sizeof(Stream))
    streams.slots[i].used, streams.slots[i].key = True, key
    streams.count += 1
    return &streams.slots[i]


cdef void stream_close(Streams* streams, uint64_t key) noexcept nogil:
    """Forgets a stream; those that were pushed on by it move back."""
    cdef Stream* stream = stream_find(streams, key)
    cdef uint64_t hole, i, home
    if stream == NULL:
        return
    hole = stream - streams.slots
    i = hole
    while True:
        i = (i + 1) & streams.mask
        if not streams.slots[i].used:
            break
        home = stream_home(streams, streams.slots[i].key)
        if ((i - home) & streams.mask) >= ((i - hole) & streams.mask):
            streams.slots[hole] = streams.slots[i]
            hole = i
    streams.slots[hole].used = False
    streams.count -= 1
