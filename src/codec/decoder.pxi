# The decoder object: takes bytes, runs the loop of scan.pxi without the GIL, and delivers batches.
#
# Bytes wait in two places: `_own`, a chunk of ours that sockets are received into and partial frames are kept in, and
# `_lent`, a bytes object of the caller that is read where it is. The bytes of `_own` always come first.

_DETAILS = {
    BAD_COLLECTION: "expected a collection id of at most 32 bits as the shortest LEB128 before it",
    BAD_KEY: "expected UTF-8, as keys=\"utf8\" requires",
    BAD_SNAPPY: "value: expected a valid snappy block",
    BAD_SIZE: "value: expected at most max_value bytes after decompression, found more",
    BAD_DATATYPE: f"datatype: expected the bits of JSON, snappy and xattrs at most, found one of {UNKNOWN_BITS:#04x}",
    BAD_XATTRS: "value: expected a valid section of xattrs at its beginning",
    BAD_TEXT: "value: expected UTF-8, found other bytes",
    SEQNO_NOT_RISING: "seqno: expected one above {detail}, the last before it",
    BEYOND_SNAPSHOT: "seqno: expected {detail} at most, the end of its snapshot",
    NO_STREAM: "expected rows of an open stream only, found none with this opaque, vbucket and stream id",
    NO_SNAPSHOT: "expected a snapshot of its stream before it, found none",
    TOO_MANY_STREAMS: f"opaque: expected no more than {MOST_STREAMS} streams on one connection",
}


cdef class Decoder:
    """Decoder of bytes in any chunks to columns, as a plan says. One thread at a time may use it."""

    cdef readonly Plan plan
    cdef Selection _selection
    # Bytes that are not decoded yet, in this order.
    cdef ReadBuffer _own
    cdef ReadBuffer _lent
    # Bytes of the last `buffer` that `received` may still report.
    cdef Py_ssize_t _buffer_left
    cdef DecodeState _state
    cdef Status _status
    # 1 while a method runs. The loop releases the GIL, so the GIL does not keep a second thread out.
    cdef long _busy
    # True if memory ran out while a batch was finished: some of its columns are gone.
    cdef bint _torn

    def __cinit__(self, Plan plan not None, *, Py_ssize_t max_frame, Py_ssize_t max_value, bint collections=False,
                  bint inflate=True, bint split_xattrs=True, bint check_keys=False, bint check_values=False,
                  bint quarantine=False, bint views=False, bint keep_bad_documents=True, Selection selection=None):
        cdef DecodeState* state = &self._state
        for name, bound in (("max_frame", max_frame), ("max_value", max_value)):
            if not HEADER_SIZE <= bound <= MOST_DATA // 2:
                raise UsageError(f"{name}: expected {HEADER_SIZE} to {MOST_DATA // 2} bytes, found {bound}")
        self.plan = plan
        state.shapes, state.specs, state.routes, state.column_of = plan.shapes, plan.specs, plan.routes, plan.column_of
        state.n_columns = plan.n_columns
        state.max_frame, state.max_value = max_frame, max_value
        state.collections, state.inflate, state.split_xattrs = collections, inflate, split_xattrs
        state.check_keys, state.quarantine, state.views = check_keys, quarantine, views
        state.map_xattrs = plan.column_of[<int>XATTRS] != NOWHERE and plan.specs[plan.column_of[<int>XATTRS]].mapped
        state.check_values, state.keep_bad_documents = check_values, keep_bad_documents
        self._selection = selection
        if selection is not None:
            state.selected = &selection.rows
        state.reads_documents = plan.document is not None or (selection is not None and selection.rows.n_tests > 0)
        if plan.document is not None and not start_builder(&state.documents, plan.document, &state.json):
            raise MemoryError
        state.documents.reader = &state.json
        if state.reads_documents or check_values:
            state.examine = examine_row
        if plan.column_of[<int>VALUE] != NOWHERE or plan.column_of[<int>XATTRS] != NOWHERE or state.reads_documents:
            state.unpack_bits = (SNAPPY_BIT | XATTR_BIT if split_xattrs else SNAPPY_BIT) | UNKNOWN_BITS
        state.fast_path = not check_keys and plan.column_of[<int>KEY] != NOWHERE \
            and plan.column_of[<int>VALUE] != NOWHERE and plan.column_of[<int>TIMESTAMP] == NOWHERE \
            and not check_values and not state.reads_documents and selection is None
        state.checks_rows = check_keys or selection is not None or state.examine != NULL
        state.expected_rows = FEWEST_ROWS
        self._own.number = self._lent.number = NOWHERE

    def __dealloc__(self):
        cdef DecodeState* state = &self._state
        cdef int i
        memory_release(self._own.memory)
        memory_release(self._lent.memory)
        for i in range(MAX_COLUMNS):
            free(state.columns.fixed[i])
            free(state.columns.valid[i])
            free(state.columns.bytes[i].data)
        for i in range(state.n_sources):
            memory_release(state.sources[i])
        free(state.sources)
        free_entries(&state.columns.entries)
        free_builder(&state.documents)
        json_free(&state.json)
        free(state.arena)
        free(state.scratch)
        free(state.controls)
        free(state.passed)
        free(state.control_bytes)
        free(state.streams.slots)

    # ------------------------------------------------------------------------------------ bytes

    @property
    def max_frame(self):
        return self._state.max_frame

    @property
    def pending(self):
        """Number of bytes that were fed and are not decoded yet."""
        return self._own.end - self._own.begin + self._lent.end - self._lent.begin

    @property
    def offset(self):
        """Number of bytes of the connection that are decoded."""
        return self._state.stream_offset

    @property
    def flow_bytes(self):
        """Bytes of the current batch for flow control: whole frames of requests, without noops."""
        return self._state.flow_bytes

    @property
    def stray_rows(self):
        """Number of rows of closed streams, which were dropped."""
        return self._state.stray_rows

    @property
    def has_arrivals(self):
        """True if the current batch has rows, or moves streams past rows that were not selected."""
        return has_arrivals(&self._state)

    @property
    def batch_bytes(self):
        """Bytes of the current batch: those of its frames, and those of decompressed values."""
        return self._state.batch_bytes

    @property
    def rows(self):
        """Number of rows in the current batch."""
        return self._state.rows

    def feed(self, data not None):
        """Take the next bytes of the connection, of any length. `bytes` objects are read in place, without a copy.

        Raises UsageError with views if there are more bytes than a view can address, or if another thread is using
        the decoder.
        """
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
        """Return writable memory for the next bytes of the connection. Report with `received` how many were written.

        Only the last buffer counts, and it is void once bytes are fed or received in another way.
        """
        cdef ReadBuffer* own = &self._own
        self._enter()
        try:
            self._return_lent()
            self._make_room(0)
            self._buffer_left = own.memory.size - own.end
            return memoryview(View.of(own.memory, own.memory.data + own.end, self._buffer_left, True))
        finally:
            atomic_give(&self._busy)

    def received(self, Py_ssize_t count):
        """Take `count` bytes that were written to the beginning of the last `buffer`.

        Raises UsageError if that is more than the buffer has left.
        """
        self._enter()
        try:
            if not 0 <= count <= self._buffer_left:
                raise UsageError(
                    f"received: expected 0 to {self._buffer_left} bytes, what the last buffer has left, found {count}"
                )
            self._own.end += count
            self._buffer_left -= count
        finally:
            atomic_give(&self._busy)

    def _receive(self, int fd, int bell, seconds, int64_t max_rows, int64_t max_bytes):
        """Receive from a socket and decode: see `receive` of dcp.Decoder."""
        cdef Receiver receiver = Receiver(fd, bell, -1, 0, False, 0)
        if not RECEIVES:
            raise UsageError("receive: expected a system of the POSIX family; use `buffer` and `received`")
        self._enter()
        try:
            if seconds is not None:
                receiver.until = clock_now() + <int64_t>(1e6 * min(max(<double>seconds, 0.0), 1e9) + 0.999)
            self._return_lent()
            # Pieces overwrite the memory of a buffer that was returned before.
            self._buffer_left = 0
            self._state.max_rows, self._state.max_bytes = max_rows, max_bytes
            if self._may_go_on():
                with nogil:
                    self._status = receive_and_decode(&self._state, &self._own, &receiver)
            if self._status == NO_MEMORY:
                raise MemoryError
        finally:
            atomic_give(&self._busy)
        if receiver.error:
            raise OSError(receiver.error, strerror(receiver.error))
        return receiver.count, receiver.closed

    cdef int _enter(self) except -1:
        """Take the lock of the decoder. Raise instead of waiting: a second thread is a mistake of the caller."""
        if self._torn:
            raise MemoryError("decoder: memory ran out while a batch was finished, whose rows are lost: begin again")
        if atomic_take(&self._busy):
            raise UsageError("decoder: expected one thread at a time, found two")
        return 0

    cdef int _check_reach(self, Py_ssize_t size) except -1:
        """Raise if views could not address this many bytes: their offsets have 32 bits."""
        if self._state.views and size > MOST_DATA:
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
        """Move what is left of a caller's bytes to our own chunk, where more bytes can follow."""
        if self._lent.memory == NULL:
            return 0
        if self._lent.end > self._lent.begin:
            self._append(self._lent.memory.data + self._lent.begin, self._lent.end - self._lent.begin)
        memory_release(self._lent.memory)
        self._lent = ReadBuffer(NULL, 0, 0, NOWHERE)
        return 0

    cdef int _append(self, const uint8_t* data, Py_ssize_t count) except -1:
        self._make_room(count)
        # These overwrite the memory of a buffer that was returned before.
        self._buffer_left = 0
        memcpy(self._own.memory.data + self._own.end, data, count)
        self._own.end += count
        return 0

    cdef int _make_room(self, Py_ssize_t count) except -1:
        """Make room for `count` bytes after the pending ones; for 0, for those of one large recv."""
        cdef Py_ssize_t wanted = count or <Py_ssize_t>CHUNK // 4
        self._check_reach(larger_chunk(&self._own, wanted))
        if not make_room(&self._own, wanted):
            raise MemoryError
        return 0

    # ---------------------------------------------------------------------------------- streams

    def expect_open_streams(self):
        """Refuse rows of streams that were not opened with `open_stream`, and markers of such streams do nothing.

        A marker after a snapshot that arrived whole is no control frame from then on: `_passed_snapshots` reports it.
        """
        self._enter()
        self._state.only_open = self._state.passes_snapshots = True
        atomic_give(&self._busy)

    def open_stream(self, uint32_t opaque, uint16_t vbucket, uint16_t stream_id, uint64_t seqno):
        """Expect rows of a stream: in snapshots, with rising seqnos above `seqno`. `stream_id` is 0 for none.

        Does nothing before `expect_open_streams`. Raises UsageError if there are too many streams.
        """
        cdef StreamState* stream
        self._enter()
        try:
            if not self._state.only_open:
                return
            self._state.last_stream = NULL
            stream = stream_open(&self._state.streams, stream_key(opaque, vbucket, stream_id))
            if stream == NULL:
                raise UsageError(f"open_stream: expected no more than {MOST_STREAMS} streams on one connection")
            stream.floor, stream.above_zero = seqno, True
        finally:
            atomic_give(&self._busy)

    def close_stream(self, uint32_t opaque, uint16_t vbucket, uint16_t stream_id):
        """Drop the rows of a stream from now on: the consumer has closed it."""
        self._leave(stream_key(opaque, vbucket, stream_id), False)

    def forget_stream(self, uint32_t opaque, uint16_t vbucket, uint16_t stream_id):
        """Refuse the rows of a stream from now on: its request was refused, or it has ended."""
        self._leave(stream_key(opaque, vbucket, stream_id), True)

    cdef int _leave(self, uint64_t key, bint refused) except -1:
        cdef StreamState* stream
        self._enter()
        stream = stream_find(&self._state.streams, key)
        if stream != NULL:
            stream.closed, stream.refused = not refused, refused
            stream.has_window, stream.highest = False, 0
        atomic_give(&self._busy)
        return 0

    # ------------------------------------------------------------------------------------- work

    def _advance(self, int64_t max_rows, int64_t max_bytes):
        """Decode what was fed into the current batch. Return True if it reached a limit. `_problem` returns errors."""
        self._enter()
        try:
            self._state.max_rows, self._state.max_bytes = max_rows, max_bytes
            if self._may_go_on():
                self._status = self._run()
            if self._status == NO_MEMORY:
                raise MemoryError
            if self._status == MORE:
                self._return_lent()
            return self._status == FULL
        finally:
            atomic_give(&self._busy)

    cdef inline bint _may_go_on(self) noexcept:
        """Return whether nothing is wrong with the next frame."""
        return self._status == MORE or self._status == FULL or self._status == UNREPORTED

    cdef Status _run(self) except *:
        cdef Status status
        if self._lent.memory != NULL and self._own.end > self._own.begin:
            status = self._stitch()
            if status != MORE or self._own.end > self._own.begin:
                return status
        with nogil:
            status = scan(&self._state, &self._own if self._lent.memory == NULL else &self._lent)
        return status

    cdef Status _stitch(self) except *:
        """Complete the partial frame in our own chunk from the caller's bytes, and decode it.

        Only the missing bytes of one frame are copied: all further frames are read where they are.
        """
        cdef ReadBuffer* own = &self._own
        cdef ReadBuffer* lent = &self._lent
        cdef uint64_t size
        cdef Py_ssize_t missing
        cdef Check check
        cdef Status status
        while own.end > own.begin:
            check = check_frame(own.memory.data + own.begin, own.end - own.begin, self._state.max_frame, &size)
            if check != INCOMPLETE:
                with nogil:
                    status = scan(&self._state, own)
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
        """Return the control frames since the last call, as tuples.

        (rows of the batch before it, seqno of its stream's last row before it, bytes of the connection before it,
        bytes for flow control before it, bytes of the frame)
        """
        cdef DecodeState* state = &self._state
        cdef ControlEntry* entry
        self._enter()
        try:
            found = []
            for i in range(state.n_controls):
                entry = &state.controls[<int64_t>i]
                raw = PyBytes_FromStringAndSize(<char*>state.control_bytes + entry.data_at, entry.size)
                found.append((entry.row, entry.last_seqno, entry.stream_offset, entry.flow_bytes, raw))
            state.n_controls = state.control_bytes_used = 0
            return found
        finally:
            atomic_give(&self._busy)

    def _passed_snapshots(self):
        """Return and forget the passed snapshots, as (opaque, vbucket, stream id, ends, start, end) of each stream.

        It has received whole snapshots that end at `ends`, and is in one from `start` to `end`. Empty once rows were
        removed.
        """
        cdef DecodeState* state = &self._state
        cdef StreamState* stream
        cdef int64_t i
        cdef dict ends = {}
        self._enter()
        try:
            for i in range(state.n_passed):
                ends.setdefault(state.passed[i].stream, []).append(state.passed[i].end)
            state.n_passed = 0
            found = []
            for key in ends:
                stream = stream_find(&state.streams, key)
                if stream != NULL and not state.rows_removed:
                    found.append((key >> 32, key >> 16 & 0xFFFF, key & 0xFFFF, ends[key], stream.start, stream.end))
                if stream != NULL:
                    stream.has_passed = False
            return found
        finally:
            atomic_give(&self._busy)

    @property
    def _waits_for_report(self):
        """True if the next frame is decoded only after `_passed_snapshots` was called."""
        return self._status == UNREPORTED

    def _remove_rows(self, int64_t row, int64_t flow_bytes):
        """Remove the rows from number `row` on: a control frame before them is malformed."""
        cdef DecodeState* state = &self._state
        cdef ByteColumn* bytes
        cdef int i
        self._enter()
        try:
            state.rows_removed = True
            state.flow_bytes = flow_bytes
            if not 0 <= row < state.rows:
                return
            if state.documents.n_nodes:
                truncate_document(&state.documents, 0, row)
            for i in range(state.n_columns):
                bytes = &state.columns.bytes[i]
                if state.specs[i].source == DOCUMENT:
                    continue
                if state.specs[i].width == 0:
                    if has_gaps(&state.specs[i]):
                        fill_offsets(&state.columns, i, state.rows)
                    bytes.used = (<int32_t*>state.columns.fixed[i])[row]
                    bytes.filled = min(bytes.filled, row)
            state.rows = row
        finally:
            atomic_give(&self._busy)

    def _last_seqnos(self):
        """Return (opaque, vbucket, stream id, last seqno) of each stream with rows since the last call.

        Empty once rows were removed: the streams' last seqnos may be those of removed rows.
        """
        cdef StreamTable* streams = &self._state.streams
        cdef StreamState* stream
        cdef uint64_t i
        self._enter()
        try:
            found, refused = [], []
            for i in range(streams.mask + 1 if streams.slots != NULL and not self._state.rows_removed else 0):
                stream = &streams.slots[i]
                if stream.used and stream.last_seqno != stream.reported:
                    found.append((stream.key >> 32, stream.key >> 16 & 0xFFFF, stream.key & 0xFFFF, stream.last_seqno))
                    stream.reported = stream.last_seqno
                if stream.used and stream.refused:
                    refused.append(stream.key)
            # After the loop, since entries move.
            for key in refused:
                self._state.last_stream = NULL
                stream_close(streams, key)
            return found
        finally:
            atomic_give(&self._busy)

    def _moved(self, dict streams, str in_order, find):
        """Advance the streams that moved since the last call. Return their positions by key, and their last seqnos.

        As `_last_seqnos` and `_passed_snapshots` together, which need not be called then.

        streams: those of the session, by opaque. find: returns the stream of an opaque, vbucket and stream id that are
            not in it. in_order: state in which rows arrive in order. In any other, and if the seqno of the last row is
            none that may come, the stream's own methods decide.
        """
        cdef DecodeState* state = &self._state
        cdef StreamTable* table = &state.streams
        cdef StreamState* slot
        cdef MovingStream stream
        cdef dict positions = {}
        cdef list found = [], refused = []
        cdef uint64_t i
        cdef int64_t j
        self._enter()
        try:
            for j in range(state.n_passed):
                slot = stream_find(table, state.passed[j].stream)
                if slot != NULL:
                    slot.has_passed, slot.moved = False, True
                    # Held against the window already: only a whole snapshot is passed.
                    if not state.rows_removed:
                        self._moving(streams, find, slot.key)._pass(state.passed[j].end, slot.start, slot.end)
            state.n_passed = 0
            for i in range(table.mask + 1 if table.slots != NULL and not state.rows_removed else 0):
                slot = &table.slots[i]
                if slot.used and (slot.last_seqno != slot.reported or slot.moved):
                    stream = self._moving(streams, find, slot.key)
                    if slot.last_seqno != slot.reported:
                        found.append((slot.key >> 32, slot.key >> 16 & 0xFFFF, slot.key & 0xFFFF, slot.last_seqno))
                        slot.reported = slot.last_seqno
                        if not stream._takes(slot.last_seqno, in_order):
                            stream.rows_arrived(slot.last_seqno)
                    slot.moved = False
                    plain = stream.state is in_order
                    positions[stream.key] = stream._lazy_position() if plain else stream.lazy_position
                if slot.used and slot.refused:
                    refused.append(slot.key)
            # After the loop, since entries move.
            for key in refused:
                state.last_stream = NULL
                stream_close(table, key)
            return positions, found
        finally:
            atomic_give(&self._busy)

    cdef MovingStream _moving(self, dict streams, find, uint64_t key):
        """Return the stream with this key."""
        cdef MovingStream stream = streams.get(key >> 32)
        if stream is None or stream.vbucket != (key >> 16 & 0xFFFF) or (stream.key[1] or 0) != (key & 0xFFFF):
            stream = find(key >> 32, key >> 16 & 0xFFFF, key & 0xFFFF)
        return stream

    def _finish(self):
        """Return the current batch as Rows, and begin the next.

        Memory moves from the decoder to the Rows column by column. If memory runs out in between, the decoder is torn.
        """
        cdef DecodeState* state = &self._state
        cdef Rows rows = Rows.__new__(Rows, FINISHED)
        cdef int i
        self._enter()
        self._torn = True
        try:
            rows.plan, rows.num_rows = self.plan, state.rows
            if state.room == 0 and not grow_rows(state):
                raise MemoryError
            if state.documents.n_nodes:
                self._finish_documents(rows)
            for i in range(state.n_columns):
                zero_null_cells(&state.columns, i, &state.specs[i], state.rows)
            if state.views:
                self._finish_sources(rows)
            if state.map_xattrs:
                self._finish_entries(rows)
            i = state.column_of[<int>EVENT]
            if i != NOWHERE and events_as_text(&state.specs[i]) and not self._write_event_names(i):
                raise MemoryError
            for i in range(state.n_columns):
                if state.specs[i].source == DOCUMENT:
                    continue
                if not finish_column(&state.columns, i, &state.specs[i], state.rows, state.room, &rows.built[i]):
                    raise MemoryError
            state.expected_rows = max(<int64_t>FEWEST_ROWS, state.rows + state.rows // 8)
            rows.bad_rows, rows.unselected_rows = state.bad_rows, state.unselected_rows
            state.rows = state.room = state.batch_bytes = state.flow_bytes = 0
            state.bad_rows = state.unselected_rows = 0
            self._torn = False
            return rows
        finally:
            atomic_give(&self._busy)

    cdef int _finish_documents(self, Rows rows) except -1:
        """Move the columns of documents to the Rows."""
        cdef DocumentBuilder* builder = &self._state.documents
        cdef int i
        # A row that failed half-way may have left cells.
        truncate_document(builder, 0, self._state.rows)
        rows.documents = <FinishedDocument*>zeroed_memory(builder.n_nodes * sizeof(FinishedDocument))
        rows.n_documents = builder.n_nodes
        for i in range(builder.n_nodes):
            if not finish_document_column(builder, i, &rows.documents[i]):
                raise MemoryError
        for i in range(builder.n_nodes):
            builder.columns[i].length = 0
        return 0

    cdef bint _write_event_names(self, int i) noexcept:
        cdef const int32_t* ends = <const int32_t*>self.plan.event_offsets.data
        return write_event_names(&self._state.columns, i, self._state.rows, ends, self.plan.event_data.data)

    cdef int _finish_sources(self, Rows rows) except -1:
        """Move the buffers that views point into to the Rows. The arena is the last; its views get its number now."""
        cdef DecodeState* state = &self._state
        cdef int number, column
        cdef int64_t n
        cdef int32_t* view
        cdef Memory* arena
        if state.arena_used:
            arena = memory_of(state.arena, state.arena_used)
            if arena == NULL or not add_source(state, arena, &number):
                raise MemoryError
            memory_release(arena)
            state.arena, state.arena_used, state.arena_room = NULL, 0, 0
            for column in (state.column_of[<int>VALUE], state.column_of[<int>XATTRS]):
                if column == NOWHERE or state.specs[column].width != 16:
                    continue
                view = <int32_t*>state.columns.fixed[column]
                for n in range(state.rows):
                    if view[4 * n] > 12 and view[4 * n + 2] == NOWHERE:
                        view[4 * n + 2] = number
        rows.sources, rows.n_sources = state.sources, state.n_sources
        state.sources, state.n_sources = NULL, 0
        self._own.number = self._lent.number = NOWHERE
        return 0

    cdef int _finish_entries(self, Rows rows) except -1:
        cdef MapEntries* entries = &self._state.columns.entries
        cdef int i
        # Without any entry, one that is not counted gives the column its buffers.
        if entries.count == 0 and not put_entry(entries, b"", 0, b"", 0):
            raise MemoryError
        rows.n_entries = self._state.columns.bytes[self._state.column_of[<int>XATTRS]].used
        for i, (data, size) in enumerate((
            (<size_t>entries.name_ends, 4 * (rows.n_entries + 1)), (<size_t>entries.names.data, entries.names.used),
            (<size_t>entries.text_ends, 4 * (rows.n_entries + 1)), (<size_t>entries.texts.data, entries.texts.used),
        )):
            rows.entries[i] = memory_of(<void*><size_t>data, size)
            if rows.entries[i] == NULL:
                raise MemoryError
        memset(entries, 0, sizeof(MapEntries))
        return 0

    # ------------------------------------------------------------------------------------ errors

    def _problem(self):
        """Return what stopped the loop, or None.

        (bytes of the frame as far as they are there, its offset, detail, whether only the document is wrong)
        """
        cdef ReadBuffer* buf = &self._own if self._own.end > self._own.begin else &self._lent
        cdef uint64_t size = 0
        cdef Py_ssize_t end = buf.end
        self._enter()
        try:
            if self._may_go_on():
                return None
            if check_frame(buf.memory.data + buf.begin, end - buf.begin, self._state.max_frame, &size) == WHOLE:
                end = buf.begin + <Py_ssize_t>size
            detail = _DETAILS.get(self._status)
            if self._status == BAD_DOCUMENT:
                detail = self._state.documents.error[:self._state.documents.error_size].decode()
            elif detail is not None:
                detail = detail.format(detail=self._state.error_detail)
            raw = PyBytes_FromStringAndSize(<char*>buf.memory.data + buf.begin, end - buf.begin)
            return raw, self._state.stream_offset, detail, self._status in (BAD_DOCUMENT, BAD_TEXT)
        finally:
            atomic_give(&self._busy)
