# Streams of a session, as far as each batch moves them.
#
# Python keeps the rules of a stream. What nearly every batch does to nearly every stream of it is done here, since it
# may be a row or two for each of 1,000 vbuckets: rows arrive in order, and snapshots after whole ones.

cdef enum:
    # Snapshots whose ends a stream keeps before its progress is computed from them.
    MOST_ENDS = 100


cdef object progress_past(object progress, list ends, Py_ssize_t passed, uint64_t start, uint64_t end):
    """Return the progress of a stream after the first `passed` ends of snapshots, in one from `start` to `end`."""
    return progress.passed(ends[:passed], start, end) if passed else progress


# No reference leads back from what it holds, so the garbage collector need not look at it.
@cython.final
@cython.no_gc
@cython.freelist(1024)
cdef class LazyPosition:
    """Position of a stream at one moment, computed only when it is read.

    A batch has one for each of its vbuckets, but most of them are replaced by the next batch's before anyone asks.

    progress: progress up to the last control message, or passed snapshot, that was applied to it.
    last_seqno: seqno of the last row since then.
    """

    cdef readonly object progress
    cdef readonly uint64_t last_seqno
    # Ends of snapshots that arrived whole since then. The list is the stream's, which only appends to it.
    cdef list _ends
    cdef Py_ssize_t _passed
    # The snapshot after these.
    cdef uint64_t _start
    cdef uint64_t _end

    def __init__(self, progress, last_seqno):
        self.progress, self.last_seqno = progress, last_seqno

    @property
    def position(self):
        """Position to resume from once everything up to here is processed."""
        here = progress_past(self.progress, self._ends, self._passed, self._start, self._end)
        return here.with_rows(self.last_seqno).position


cdef class MovingStream:
    """Progress of a stream: what was applied to `progress`, and what arrived since.

    vbucket: number of the vbucket. key: vbucket, and stream id or None.
    state: a state of the stream's table.
    last_seqno: highest seqno of the rows that arrived. reported: last seqno that the decoder reported: it reports it
        before every control message, also if no row arrived in between.
    highest: highest seqno that may arrive before the next marker.
    """

    cdef readonly unsigned int vbucket
    cdef readonly tuple key
    cdef public str state
    cdef public uint64_t last_seqno
    cdef public uint64_t reported
    cdef readonly uint64_t highest
    cdef object _progress
    # As in LazyPosition. None if there are no ends.
    cdef list _ends
    cdef uint64_t _start
    cdef uint64_t _end

    def __init__(self, progress, stream_id, state):
        self.progress, self.state = progress, state
        self.vbucket, self.last_seqno = progress.position.vbucket, progress.position.seqno
        self.key = self.vbucket, stream_id

    @property
    def progress(self):
        """Progress up to the last control message. Setting it forgets the snapshots that were passed since."""
        return self._progress

    @progress.setter
    def progress(self, value):
        self._progress, self._ends = value, None
        self.highest = value.end

    @property
    def lazy_position(self):
        """Position now, to be computed later."""
        return self._lazy_position()

    cdef LazyPosition _lazy_position(self):
        cdef LazyPosition here = LazyPosition.__new__(LazyPosition)
        here.progress, here.last_seqno = self._progress, self.last_seqno
        if self._ends is not None:
            here._ends, here._passed, here._start, here._end = self._ends, len(self._ends), self._start, self._end
        return here

    cdef inline bint _takes(self, uint64_t last_seqno, str in_order):
        """Return whether a row in order has this seqno. Sets `last_seqno` if so."""
        if last_seqno == self.reported:
            return True
        if self.state is not in_order or not self.last_seqno < last_seqno <= self.highest:
            return False
        self.reported = self.last_seqno = last_seqno
        return True

    def pass_snapshots(self, list ends, uint64_t start, uint64_t end):
        """Record that the snapshots before the one from `start` to `end` arrived whole."""
        for seqno in ends:
            self._pass(seqno, start, end)

    cdef int _pass(self, uint64_t seqno, uint64_t start, uint64_t end) except -1:
        if self._ends is None:
            self._ends = []
        self._ends.append(seqno)
        self._start, self._end = start, end
        self.reported = self.last_seqno = seqno
        self.highest = end
        if len(self._ends) > MOST_ENDS:
            self.settle_passed()
        return 0

    def settle_passed(self):
        """Bring `progress` up to the last snapshot marker."""
        if self._ends is not None:
            self.progress = progress_past(self._progress, self._ends, len(self._ends), self._start, self._end)
