# Columns: those of the current batch, and finished ones.
#
# All memory of columns has SLACK bytes beyond its room, so that copies of constant size may overrun.

cdef enum:
    # Offsets of Arrow columns are signed 32-bit numbers.
    MOST_DATA = 0x7FFFFFFF
    FEWEST_ROWS = 256

cdef struct ByteColumn:
    # The bytes of a column of variable length.
    uint8_t* data
    int64_t used
    int64_t room
    # Rows whose offset was written. Columns that few rows have are filled up later, see `fill_offsets`.
    int64_t filled
    # Bytes that the batch before suggests.
    int64_t hint

cdef struct MapEntries:
    # The entries of a column of maps: names and texts, each with offsets.
    ByteColumn names
    ByteColumn texts
    uint8_t* name_ends
    uint8_t* text_ends
    int64_t count
    int64_t room

cdef struct Columns:
    # The current batch. `fixed` has what is of fixed width in each row: a number, an offset or a view. `valid` has one
    # bit for each row, 1 if the cell is not null.
    uint8_t* fixed[MAX_COLUMNS]
    uint8_t* valid[MAX_COLUMNS]
    ByteColumn bytes[MAX_COLUMNS]
    MapEntries entries


cdef bint grow(uint8_t** data, int64_t size) noexcept nogil:
    """Resize memory, with SLACK. Return False if there is none; the old memory stays then."""
    cdef uint8_t* larger = <uint8_t*>realloc(data[0], size + SLACK)
    if larger == NULL:
        return False
    data[0] = larger
    return True


cdef bint reserve_bytes(ByteColumn* bytes, int64_t count) noexcept nogil:
    """Make room for `count` bytes more. Return False if there is no memory."""
    cdef int64_t room
    if bytes.room - bytes.used >= count:
        return True
    room = min(max(max(2 * bytes.room, bytes.hint), bytes.used + count), <int64_t>MOST_DATA + SLACK)
    if not grow(&bytes.data, room):
        return False
    bytes.room = room
    return True


cdef struct FinishedColumn:
    # Buffers of an Arrow array; NULL where the column has none.
    Memory* valid
    Memory* data
    Memory* bytes
    int64_t nulls
    int64_t used


cdef struct FinishedDocument:
    # Buffers of one type of the schema of documents; NULL where it has none.
    Memory* valid
    Memory* data
    Memory* bytes
    int64_t nulls
    int64_t length


cdef bint put_entry(MapEntries* entries, const uint8_t* name, int64_t name_size, const uint8_t* text,
                    int64_t text_size) noexcept nogil:
    """Add an entry to a column of maps. Return False if there is no memory."""
    cdef int64_t room = max(2 * entries.room, <int64_t>FEWEST_ROWS)
    if entries.count == entries.room:
        if not grow(&entries.name_ends, 4 * (room + 1)) or not grow(&entries.text_ends, 4 * (room + 1)):
            return False
        (<int32_t*>entries.name_ends)[entries.count] = <int32_t>entries.names.used
        (<int32_t*>entries.text_ends)[entries.count] = <int32_t>entries.texts.used
        entries.room = room
    # One byte more, so that there is memory even for empty names and texts.
    if not reserve_bytes(&entries.names, name_size + 1) or not reserve_bytes(&entries.texts, text_size + 1):
        return False
    memcpy(entries.names.data + entries.names.used, name, name_size)
    memcpy(entries.texts.data + entries.texts.used, text, text_size)
    entries.names.used += name_size
    entries.texts.used += text_size
    entries.count += 1
    (<int32_t*>entries.name_ends)[entries.count] = <int32_t>entries.names.used
    (<int32_t*>entries.text_ends)[entries.count] = <int32_t>entries.texts.used
    return True


cdef void free_entries(MapEntries* entries) noexcept nogil:
    """Free the memory of a column of maps."""
    free(entries.names.data)
    free(entries.texts.data)
    free(entries.name_ends)
    free(entries.text_ends)
    memset(entries, 0, sizeof(MapEntries))


# Argument that only a decoder has, so that nothing else makes Rows.
cdef object FINISHED = object()


cdef class Rows:
    """Finished columns: for Arrow through the PyCapsule interface, for numpy through `buffers`."""

    cdef readonly Plan plan
    cdef readonly Py_ssize_t num_rows
    # Rows whose value or document is wrong, and rows that were not selected.
    cdef readonly int64_t bad_rows, unselected_rows
    cdef FinishedColumn built[MAX_COLUMNS]
    cdef Memory** sources
    cdef int n_sources
    # The entries of a column of maps: offsets of the names, names, offsets of the texts, texts.
    cdef Memory* entries[4]
    cdef int64_t n_entries
    # The columns of the types of documents. They are counted here, since the garbage collector may take the plan first.
    cdef FinishedDocument* documents
    cdef int n_documents

    def __cinit__(self, finished=None):
        if finished is not FINISHED:
            raise TypeError("Rows: expected a decoder to make them")

    def __dealloc__(self):
        cdef int i
        for i in range(4):
            memory_release(self.entries[i])
        for i in range(MAX_COLUMNS):
            memory_release(self.built[i].valid)
            memory_release(self.built[i].data)
            memory_release(self.built[i].bytes)
        for i in range(self.n_sources):
            memory_release(self.sources[i])
        free(self.sources)
        for i in range(self.n_documents):
            memory_release(self.documents[i].valid)
            memory_release(self.documents[i].data)
            memory_release(self.documents[i].bytes)
        free(self.documents)

    def __len__(self):
        return self.num_rows

    @property
    def nbytes(self):
        """Bytes that the columns take, without those that views point to."""
        cdef Py_ssize_t total = 0
        cdef int i
        for i in range(self.plan.n_columns):
            if self.plan.specs[i].source == DOCUMENT:
                continue
            total += fixed_size(&self.plan.specs[i], self.num_rows) + self.built[i].used
            if self.built[i].valid != NULL:
                total += (self.num_rows + 7) // 8
        for i in range(4):
            total += memory_size(self.entries[i])
        for i in range(self.n_documents):
            total += memory_size(self.documents[i].valid) + memory_size(self.documents[i].data)
            total += memory_size(self.documents[i].bytes)
        return total

    def buffers(self, int column):
        """Return the buffers of a column: validity bits or None, part of fixed width, bytes or None."""
        if not 0 <= column < self.plan.n_columns or self.plan.specs[column].source == DOCUMENT:
            raise IndexError(column)
        cdef FinishedColumn* built = &self.built[column]
        fixed = fixed_size(&self.plan.specs[column], self.num_rows)
        return (
            None if built.valid == NULL else View.of(built.valid, built.valid.data, (self.num_rows + 7) // 8, False),
            View.of(built.data, built.data.data, fixed, False),
            None if built.bytes == NULL else View.of(built.bytes, built.bytes.data, built.used, False),
        )

    def __arrow_c_schema__(self):
        return self.plan.__arrow_c_schema__()

    def __arrow_c_array__(self, requested_schema=None):
        cdef ArrowArray* array = <ArrowArray*>zeroed_memory(sizeof(ArrowArray))
        capsule = PyCapsule_New(array, "arrow_array", drop_array)
        self._export(array)
        return self.plan.__arrow_c_schema__(), capsule

    def __arrow_c_stream__(self, requested_schema=None):
        cdef ArrowArrayStream* stream = <ArrowArrayStream*>zeroed_memory(sizeof(ArrowArrayStream))
        capsule = PyCapsule_New(stream, "arrow_array_stream", drop_stream)
        cdef OneBatch* batch = <OneBatch*>zeroed_memory(sizeof(OneBatch))
        stream.private_data = batch
        stream.get_schema, stream.get_next = stream_schema, stream_next
        stream.get_last_error, stream.release = stream_error, release_stream
        if copy_schema(&self.plan.schema, &batch.schema) < 0:
            raise MemoryError
        self._export(&batch.array)
        return capsule

    cdef int _export(self, ArrowArray* out) except -1:
        cdef int i
        if start_array(out, self.num_rows, 0, 1, 0, self.plan.n_columns) == NULL:
            raise MemoryError
        for i in range(self.plan.n_columns):
            out.children[i] = <ArrowArray*>zeroed_memory(sizeof(ArrowArray))
            if not self._export_column(i, out.children[i]):
                raise MemoryError
        return 0

    cdef bint _export_column(self, int i, ArrowArray* out) noexcept nogil:
        cdef FinishedColumn* built = &self.built[i]
        cdef ColumnSpec* spec = &self.plan.specs[i]
        if spec.source == DOCUMENT:
            return export_document(self.plan.document.nodes, self.documents, 0, out)
        if spec.width == 16:
            return self._export_views(i, out)
        if spec.mapped:
            return self._export_map(i, out)
        if start_array(out, self.num_rows, built.nulls, 3 if spec.binary else 2, 3, 0) == NULL:
            return False
        array_own(out, built.valid)
        array_own(out, built.data)
        array_own(out, built.bytes)
        out.buffers[0] = NULL if built.valid == NULL else built.valid.data
        out.buffers[1] = built.data.data
        if spec.binary:
            out.buffers[2] = NULL if built.bytes == NULL else built.bytes.data
        elif spec.source == EVENT:
            return self._export_events(out)
        return True

    cdef bint _export_events(self, ArrowArray* out) noexcept nogil:
        cdef ArrowArray* names = <ArrowArray*>calloc(1, sizeof(ArrowArray))
        out.dictionary = names
        if names == NULL or start_array(names, self.plan.event_offsets.size // 4 - 1, 0, 3, 2, 0) == NULL:
            return False
        array_own(names, self.plan.event_offsets)
        array_own(names, self.plan.event_data)
        names.buffers[1] = self.plan.event_offsets.data
        names.buffers[2] = self.plan.event_data.data
        return True

    cdef bint _export_map(self, int i, ArrowArray* out) noexcept nogil:
        """Export a map: a list of entries, each a struct of name and text."""
        cdef FinishedColumn* built = &self.built[i]
        cdef ArrowArray* entries
        cdef ArrowArray* half
        cdef int j
        if start_array(out, self.num_rows, built.nulls, 2, 2, 1) == NULL:
            return False
        array_own(out, built.valid)
        array_own(out, built.data)
        out.buffers[0] = NULL if built.valid == NULL else built.valid.data
        out.buffers[1] = built.data.data
        out.children[0] = entries = <ArrowArray*>calloc(1, sizeof(ArrowArray))
        if entries == NULL or start_array(entries, self.n_entries, 0, 1, 0, 2) == NULL:
            return False
        for j in range(2):
            entries.children[j] = half = <ArrowArray*>calloc(1, sizeof(ArrowArray))
            if half == NULL or start_array(half, self.n_entries, 0, 3, 2, 0) == NULL:
                return False
            array_own(half, self.entries[2 * j])
            array_own(half, self.entries[2 * j + 1])
            half.buffers[1] = self.entries[2 * j].data
            half.buffers[2] = self.entries[2 * j + 1].data
        return True

    cdef bint _export_views(self, int i, ArrowArray* out) noexcept nogil:
        """Export views: with the buffers they point into, the arena last, and a buffer with the lengths of those."""
        cdef FinishedColumn* built = &self.built[i]
        cdef int n = self.n_sources, j
        cdef int64_t* lengths
        cdef Memory* sizes
        if start_array(out, self.num_rows, built.nulls, 2 + n + 1, 3 + n, 0) == NULL:
            return False
        sizes = memory_new(8 * (n + 1))
        if sizes == NULL:
            return False
        array_own(out, sizes)
        memory_release(sizes)
        array_own(out, built.valid)
        array_own(out, built.data)
        lengths = <int64_t*>sizes.data
        out.buffers[0] = NULL if built.valid == NULL else built.valid.data
        out.buffers[1] = built.data.data
        for j in range(n):
            array_own(out, self.sources[j])
            out.buffers[2 + j] = self.sources[j].data
            lengths[j] = self.sources[j].size
        out.buffers[2 + n] = sizes.data
        return True


cdef int64_t count_nulls(const uint8_t* valid, int64_t rows) noexcept nogil:
    """Return the number of null cells."""
    cdef int64_t i = 0, nulls = rows
    cdef uint64_t word
    while i + 64 <= rows:
        memcpy(&word, valid + (i >> 3), 8)
        nulls -= count_bits(word)
        i += 64
    while i < rows:
        nulls -= valid[i >> 3] >> (i & 7) & 1
        i += 1
    return nulls


cdef void zero_null_cells(Columns* columns, int i, const ColumnSpec* spec, int64_t rows) noexcept nogil:
    """Write zeros where a cell is null: no uninitialised memory may leave the process. Fields were zeroed already."""
    cdef int64_t n, nulls
    if not spec.nullable or spec.source == FIELD or spec.width == 0:
        return
    nulls = count_nulls(columns.valid[i], rows)
    if nulls == rows:
        memset(columns.fixed[i], 0, rows * spec.width)
    elif nulls:
        for n in range(rows):
            if not columns.valid[i][n >> 3] >> (n & 7) & 1:
                memset(columns.fixed[i] + n * spec.width, 0, spec.width)


cdef inline bint has_gaps(const ColumnSpec* spec) noexcept nogil:
    """Return whether a column of bytes is written for some rows only. Values are, for all, even those that are null."""
    return spec.nullable and spec.source != VALUE


cdef void fill_offsets(Columns* columns, int i, int64_t n) noexcept nogil:
    """Write the offsets of the rows up to `n` that have nothing in this column."""
    cdef ByteColumn* bytes = &columns.bytes[i]
    while bytes.filled < n:
        (<int32_t*>columns.fixed[i])[bytes.filled] = <int32_t>bytes.used
        bytes.filled += 1
    bytes.filled = n + 1


cdef inline bint events_as_text(const ColumnSpec* spec) noexcept nogil:
    """Return whether the column has names of events as text, instead of numbers into a dictionary."""
    return spec.source == EVENT and spec.binary


cdef inline int64_t fixed_size(const ColumnSpec* spec, int64_t rows) noexcept nogil:
    """Return the bytes of the fixed-width part of a finished column."""
    return rows * spec.width if spec.width and not events_as_text(spec) else 4 * (rows + 1)


cdef bint write_event_names(Columns* columns, int i, int64_t rows, const int32_t* ends,
                            const uint8_t* names) noexcept nogil:
    """Replace the numbers of events by their names. Return False if there is no memory.

    ends: 0, then the offset at which each name ends in `names`.
    """
    cdef const uint8_t* numbers = columns.fixed[i]
    cdef ByteColumn* text = &columns.bytes[i]
    cdef int32_t* offsets = <int32_t*>malloc(4 * (rows + 1) + SLACK)
    cdef int64_t n, size
    if offsets == NULL:
        return False
    for n in range(rows):
        offsets[n] = <int32_t>text.used
        size = ends[numbers[n] + 1] - ends[numbers[n]]
        if text.room - text.used < size and not reserve_bytes(text, size):
            free(offsets)
            return False
        # Of constant size, as in `copy_bytes`: both sides have SLACK.
        memcpy(text.data + text.used, names + ends[numbers[n]], LONGEST_EVENT)
        text.used += size
    offsets[rows] = <int32_t>text.used
    free(columns.fixed[i])
    columns.fixed[i] = <uint8_t*>offsets
    return True


cdef bint finish_column(Columns* columns, int i, const ColumnSpec* spec, int64_t rows, int64_t room,
                        FinishedColumn* out) noexcept nogil:
    """Move the memory of a column to a finished one, and clear it. Return False if there is no memory.

    Columns with much unused room are shrunk first.
    """
    cdef ByteColumn* bytes = &columns.bytes[i]
    cdef int64_t size = fixed_size(spec, rows)
    if spec.nullable:
        out.nulls = count_nulls(columns.valid[i], rows)
    if spec.width == 0:
        if has_gaps(spec):
            fill_offsets(columns, i, rows)
        (<int32_t*>columns.fixed[i])[rows] = <int32_t>bytes.used
    if (spec.width == 0 or events_as_text(spec)) and bytes.data == NULL and not grow(&bytes.data, 0):
        return False
    if 2 * rows < room:
        if not grow(&columns.fixed[i], size) or (bytes.data != NULL and not grow(&bytes.data, bytes.used)):
            return False
    # A column of maps counts entries in `used`; their bytes are elsewhere.
    out.data, out.used = memory_of(columns.fixed[i], size), 0 if spec.mapped else bytes.used
    if out.data == NULL:
        return False
    columns.fixed[i] = NULL
    if out.nulls:
        out.valid = memory_of(columns.valid[i], (rows + 7) // 8)
        if out.valid == NULL:
            return False
    else:
        free(columns.valid[i])
    columns.valid[i] = NULL
    if bytes.data != NULL:
        out.bytes = memory_of(bytes.data, out.used)
        if out.bytes == NULL:
            return False
    bytes[0] = ByteColumn(NULL, 0, 0, 0, out.used + out.used // 8)
    return True
