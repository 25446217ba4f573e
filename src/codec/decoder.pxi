# The decoder: what is fed, what is handed out. The work is done in scan.pxi.

_DETAILS = {
    BAD_COLLECTION: "key: expected a collection id of at most 32 bits as the shortest LEB128 before it",
    BAD_KEY: "key: expected UTF-8; ask for binary keys",
    BAD_SNAPPY: "value: expected a sound snappy block",
    BAD_SIZE: "value: inflates to more than max_value",
    BAD_XATTRS: "value: expected a sound section of xattrs at its beginning",
    SEQNO_FELL: "seqno: expected one above {detail}, the last of the same snapshot",
    STREAMS_ABOUND: f"opaque: expected no more than {MOST_STREAMS} streams on one connection",
}


cdef class Decoder:
    """Bytes in any chunks to columns, as a plan says. Not for two threads at once."""

    cdef readonly Plan plan
    # What came and is not decoded: first the rest in our own chunk, then a caller's bytes.
    cdef Feed _own
    cdef Feed _lent
    # How much of the last `buffer` can still be received.
    cdef Py_ssize_t _handed
    cdef Work _work
    cdef Status _status
    cdef long _busy
    # Memory ran out while a batch was handed over: some of its columns are gone.
    cdef bint _torn

    def __cinit__(self, Plan plan not None, *, Py_ssize_t max_frame, Py_ssize_t max_value, bint collections=False,
                  bint inflate=True, bint split_xattrs=True, bint check_keys=False, bint quarantine=False,
                  bint views=False):
        cdef Work* w = &self._work
        for name, bound in (("max_frame", max_frame), ("max_value", max_value)):
            if not HEADER_SIZE <= bound <= MOST_DATA // 2:
                raise UsageError(f"{name}: expected {HEADER_SIZE} to {MOST_DATA // 2} bytes, found {bound}")
        self.plan = plan
        w.shapes, w.specs, w.routes, w.at = plan.shapes, plan.specs, plan.routes, plan.at
        w.n_columns = plan.n_columns
        w.max_frame, w.max_value = max_frame, max_value
        w.collections, w.inflate, w.split_xattrs = collections, inflate, split_xattrs
        w.check_keys, w.quarantine, w.views = check_keys, quarantine, views
        w.map_xattrs = plan.at[<int>XATTRS] != NOWHERE and plan.specs[plan.at[<int>XATTRS]].mapped
        if plan.at[<int>VALUE] != NOWHERE or plan.at[<int>XATTRS] != NOWHERE:
            w.opened = (SNAPPY_BIT | XATTR_BIT) if split_xattrs else SNAPPY_BIT
        w.runs = not check_keys and plan.at[<int>KEY] != NOWHERE \
            and plan.at[<int>VALUE] != NOWHERE and plan.at[<int>TIMESTAMP] == NOWHERE
        w.hint = FEWEST_ROWS
        self._own.number = self._lent.number = NOWHERE

    def __dealloc__(self):
        cdef Work* w = &self._work
        cdef int i
        memory_release(self._own.memory)
        memory_release(self._lent.memory)
        for i in range(MAX_COLUMNS):
            free(w.columns.fixed[i])
            free(w.columns.valid[i])
            free(w.columns.bytes[i].data)
        for i in range(w.n_sources):
            memory_release(w.sources[i])
        free(w.sources)
        drop_pairs(&w.columns.pairs)
        free(w.arena)
        free(w.scratch)
        free(w.notes)
        free(w.noted)
        free(w.streams.slots)

    # ------------------------------------------------------------------------------------ bytes

    @property
    def max_frame(self):
        return self._work.max_frame

    @property
    def pending(self):
        """How many bytes were fed and are not decoded yet."""
        return self._own.end - self._own.begin + self._lent.end - self._lent.begin

    @property
    def offset(self):
        """How many bytes of the stream are decoded."""
        return self._work.offset

    @property
    def flow_bytes(self):
        """The bytes for flow control of what is in the batch in work: whole frames of requests, noops left out."""
        return self._work.counted

    @property
    def rows(self):
        """How many rows the batch in work has."""
        return self._work.rows

    def feed(self, data not None):
        """Take the next bytes of the stream, of any length. `bytes` are read where they are, without a copy."""
        cdef const uint8_t[::1] view
        self._enter()
        try:
            self._return_lent()
            if type(data) is bytes:
                self._lend(data)
                return
            view = data
            if view.shape[0]:
                self._append(&view[0], view.shape[0])
        finally:
            atomic_give(&self._busy)

    def buffer(self):
        """Where the next bytes of the stream may be written. Say with `received` how many were."""
        cdef Feed* own = &self._own
        self._enter()
        try:
            self._return_lent()
            self._make_room(0)
            self._handed = own.memory.size - own.end
            return memoryview(View.of(own.memory, own.memory.data + own.end, self._handed, True))
        finally:
            atomic_give(&self._busy)

    def received(self, Py_ssize_t count):
        """`count` bytes were written to the last `buffer`."""
        self._enter()
        try:
            if not 0 <= count <= self._handed:
                raise UsageError(
                    f"received: expected 0 to {self._handed} bytes, what the last buffer has left, found {count}"
                )
            self._own.end += count
            self._handed -= count
        finally:
            atomic_give(&self._busy)

    def _receive(self, int fd, int bell, seconds, int64_t max_rows, int64_t max_bytes):
        """See `receive` of the class for users: how many bytes came, and whether the connection is closed."""
        cdef Line line = Line(fd, bell, -1, 0, False, 0)
        if not RECEIVES:
            raise UsageError("receive: expected a system of the POSIX family; use `buffer` and `received`")
        self._enter()
        try:
            if seconds is not None:
                line.until = clock_now() + <int64_t>(1e6 * min(max(<double>seconds, 0.0), 1e9) + 0.999)
            self._return_lent()
            # Pieces go where a buffer that was handed out before would have its own.
            self._handed = 0
            self._work.max_rows, self._work.max_bytes = max_rows, max_bytes
            if self._status == MORE or self._status == FULL:
                with nogil:
                    self._status = pull(&self._work, &self._own, &line)
            if self._status == NO_MEMORY:
                raise MemoryError
        finally:
            atomic_give(&self._busy)
        if line.error:
            raise OSError(line.error, strerror(line.error))
        return line.count, line.closed

    cdef int _enter(self) except -1:
        """The loop lets go of the GIL: nobody else may touch what it works on."""
        if self._torn:
            raise MemoryError("decoder: memory ran out while a batch was handed out, whose rows are lost: begin again")
        if atomic_take(&self._busy):
            raise UsageError("decoder: expected one thread at a time, found two")
        return 0

    cdef int _check_reach(self, Py_ssize_t size) except -1:
        """A view says in 32 bits where in its buffer it points."""
        if self._work.views and size > MOST_DATA:
            raise UsageError(f"feed: expected at most {MOST_DATA} bytes at once with views, found {size}")
        return 0

    cdef int _lend(self, bytes data) except -1:
        if not data:
            return 0
        self._check_reach(len(data))
        self._lent.memory = memory_of(<void*><char*>data, len(data), <PyObject*>data)
        if self._lent.memory == NULL:
            raise MemoryError
        Py_INCREF(data)
        self._lent.end = len(data)
        return 0

    cdef int _return_lent(self) except -1:
        """What is left of a caller's bytes moves to our own chunk, where more can follow it."""
        if self._lent.memory == NULL:
            return 0
        if self._lent.end > self._lent.begin:
            self._append(self._lent.memory.data + self._lent.begin, self._lent.end - self._lent.begin)
        memory_release(self._lent.memory)
        self._lent = Feed(NULL, 0, 0, NOWHERE)
        return 0

    cdef int _append(self, const uint8_t* data, Py_ssize_t count) except -1:
        self._make_room(count)
        # Where these go, a buffer that was handed out before would have its own.
        self._handed = 0
        memcpy(self._own.memory.data + self._own.end, data, count)
        self._own.end += count
        return 0

    cdef int _make_room(self, Py_ssize_t count) except -1:
        """Room for `count` bytes behind the pending ones; for 0, as much as is worth a call to receive."""
        cdef Py_ssize_t wanted = count or <Py_ssize_t>CHUNK // 4
        self._check_reach(larger_chunk(&self._own, wanted))
        if not make_room(&self._own, wanted):
            raise MemoryError
        return 0

    # ------------------------------------------------------------------------------------- work

    def _advance(self, int64_t max_rows, int64_t max_bytes):
        """Decodes what was fed until a limit is reached; True if one is. What is wrong is in `_problem`."""
        self._enter()
        try:
            self._work.max_rows, self._work.max_bytes = max_rows, max_bytes
            if self._status == MORE or self._status == FULL:
                self._status = self._run()
            if self._status == NO_MEMORY:
                raise MemoryError
            if self._status == MORE:
                self._return_lent()
            return self._status == FULL
        finally:
            atomic_give(&self._busy)

    cdef Status _run(self) except *:
        cdef Status status
        if self._lent.memory != NULL and self._own.end > self._own.begin:
            status = self._stitch()
            if status != MORE or self._own.end > self._own.begin:
                return status
        with nogil:
            status = scan(&self._work, &self._own if self._lent.memory == NULL else &self._lent)
        return status

    cdef Status _stitch(self) except *:
        """Completes the partial frame in our chunk from the caller's bytes, and decodes it."""
        cdef Feed* own = &self._own
        cdef Feed* lent = &self._lent
        cdef uint64_t size
        cdef Py_ssize_t missing
        cdef Status status
        while own.end > own.begin:
            if check_frame(own.memory.data + own.begin, own.end - own.begin, self._work.max_frame, &size) != INCOMPLETE:
                with nogil:
                    status = scan(&self._work, own)
                if status != MORE:
                    return status
                continue
            missing = min(<Py_ssize_t>size - (own.end - own.begin), lent.end - lent.begin)
            if missing == 0:
                break
            self._append(lent.memory.data + lent.begin, missing)
            lent.begin += missing
        return MORE

    # ------------------------------------------------------------------------------- handing out

    def _controls(self):
        """The frames that became no rows since the last call: their bytes, and what came before them.

        (rows in the batch, last seqno of its stream, bytes of the connection, bytes for flow control, bytes)
        """
        cdef Work* w = &self._work
        cdef Note* note
        self._enter()
        try:
            found = []
            for i in range(w.n_notes):
                note = &w.notes[<int64_t>i]
                raw = PyBytes_FromStringAndSize(<char*>w.noted + note.at, note.size)
                found.append((note.row, note.last, note.offset, note.counted, raw))
            w.n_notes = w.noted_used = 0
            return found
        finally:
            atomic_give(&self._busy)

    def _cut(self, int64_t row, int64_t flow_bytes):
        """Forgets the rows from `row` on, and counts only what came before: there is a control that is wrong."""
        cdef Work* w = &self._work
        cdef Bytes* bytes
        cdef int i
        self._enter()
        try:
            w.forgot = True
            w.counted = flow_bytes
            if not 0 <= row < w.rows:
                return
            for i in range(w.n_columns):
                bytes = &w.columns.bytes[i]
                if w.specs[i].width == 0:
                    if w.specs[i].nullable:
                        fill_offsets(&w.columns, i, w.rows)
                    bytes.used = (<int32_t*>w.columns.fixed[i])[row]
                    bytes.filled = min(bytes.filled, row)
            w.rows = row
        finally:
            atomic_give(&self._busy)

    def _last_seqnos(self):
        """(opaque, vbucket, stream id, last seqno) of each stream that rows came of since the last call.

        Nothing once rows were forgotten: of those, streams know too much.
        """
        cdef Streams* streams = &self._work.streams
        cdef Stream* stream
        cdef uint64_t i
        self._enter()
        try:
            found = []
            for i in range(streams.mask + 1 if streams.slots != NULL and not self._work.forgot else 0):
                stream = &streams.slots[i]
                if stream.used and stream.last != stream.told:
                    found.append((stream.key >> 32, stream.key >> 16 & 0xFFFF, stream.key & 0xFFFF, stream.last))
                    stream.told = stream.last
            return found
        finally:
            atomic_give(&self._busy)

    def _finish(self):
        """The batch in work, as rows of its own; the next one begins."""
        cdef Work* w = &self._work
        cdef Rows rows = Rows.__new__(Rows, FINISHED)
        cdef int i
        self._enter()
        self._torn = True
        try:
            rows.plan, rows.num_rows = self.plan, w.rows
            if w.room == 0 and not grow_rows(w):
                raise MemoryError
            for i in range(w.n_columns):
                blank_nulls(&w.columns, i, &w.specs[i], w.rows)
            if w.views:
                self._finish_sources(rows)
            if w.map_xattrs:
                self._finish_pairs(rows)
            i = w.at[<int>EVENT]
            if i != NOWHERE and is_spelled(&w.specs[i]) and not self._spell(i):
                raise MemoryError
            for i in range(w.n_columns):
                if not finish_column(&w.columns, i, &w.specs[i], w.rows, w.room, &rows.built[i]):
                    raise MemoryError
            w.hint = max(<int64_t>FEWEST_ROWS, w.rows + w.rows // 8)
            w.rows = w.room = w.data = w.counted = 0
            self._torn = False
            return rows
        finally:
            atomic_give(&self._busy)

    cdef bint _spell(self, int i) noexcept:
        cdef const int32_t* ends = <const int32_t*>self.plan.event_offsets.data
        return spell_events(&self._work.columns, i, self._work.rows, ends, self.plan.event_data.data)

    cdef int _finish_sources(self, Rows rows) except -1:
        """The buffers that the views point into; what was inflated comes last."""
        cdef Work* w = &self._work
        cdef int number, column
        cdef int64_t n
        cdef int32_t* view
        cdef Memory* arena
        if w.arena_used:
            arena = memory_of(w.arena, w.arena_used)
            if arena == NULL or not add_source(w, arena, &number):
                raise MemoryError
            memory_release(arena)
            w.arena, w.arena_used, w.arena_room = NULL, 0, 0
            for column in (w.at[<int>VALUE], w.at[<int>XATTRS]):
                view = NULL if column == NOWHERE or w.specs[column].width != 16 else <int32_t*>w.columns.fixed[column]
                for n in range(w.rows if view != NULL else 0):
                    if view[4 * n] > 12 and view[4 * n + 2] == NOWHERE:
                        view[4 * n + 2] = number
        rows.sources, rows.n_sources = w.sources, w.n_sources
        w.sources, w.n_sources = NULL, 0
        self._own.number = self._lent.number = NOWHERE
        return 0

    cdef int _finish_pairs(self, Rows rows) except -1:
        cdef Pairs* pairs = &self._work.columns.pairs
        cdef int i
        if pairs.count == 0 and not put_pair(pairs, b"", 0, b"", 0):
            raise MemoryError
        # An entry that nobody counts gives the buffers of a column without entries.
        rows.n_pairs = self._work.columns.bytes[self._work.at[<int>XATTRS]].used
        for i, (data, size) in enumerate((
            (<size_t>pairs.name_ends, 4 * (rows.n_pairs + 1)), (<size_t>pairs.names.data, pairs.names.used),
            (<size_t>pairs.text_ends, 4 * (rows.n_pairs + 1)), (<size_t>pairs.texts.data, pairs.texts.used),
        )):
            rows.pairs[i] = memory_of(<void*><size_t>data, size)
            if rows.pairs[i] == NULL:
                raise MemoryError
        memset(pairs, 0, sizeof(Pairs))
        return 0

    # ------------------------------------------------------------------------------------ errors

    def _problem(self):
        """What stopped the loop: (the frame's bytes as far as they are there, where it starts, detail), or None."""
        cdef Feed* feed = &self._own if self._own.end > self._own.begin else &self._lent
        cdef uint64_t size = 0
        cdef Py_ssize_t end = feed.end
        self._enter()
        try:
            if self._status == MORE or self._status == FULL:
                return None
            if check_frame(feed.memory.data + feed.begin, end - feed.begin, self._work.max_frame, &size) == WHOLE:
                end = feed.begin + <Py_ssize_t>size
            detail = _DETAILS.get(self._status)
            if detail is not None:
                detail = detail.format(detail=self._work.detail)
            raw = PyBytes_FromStringAndSize(<char*>feed.memory.data + feed.begin, end - feed.begin)
            return raw, self._work.offset, detail
        finally:
            atomic_give(&self._busy)
