# Columns: being built, and built.

cdef enum:
    MOST_DATA = 0x7FFFFFFF
    FEWEST_ROWS = 256

cdef struct Bytes:
    # The bytes of a column of variable length in the batch in work; `filled` rows have their offset.
    uint8_t* data
    int64_t used
    int64_t room
    int64_t filled
    # How much the batch before had.
    int64_t hint

cdef struct Pairs:
    # The entries of a column of maps: names and texts.
    Bytes names
    Bytes texts
    uint8_t* name_ends
    uint8_t* text_ends
    int64_t count
    int64_t room

cdef struct Columns:
    # The batch in work. `fixed` has a row's part of fixed width: a number, an offset or a view.
    uint8_t* fixed[MAX_COLUMNS]
    uint8_t* valid[MAX_COLUMNS]
    Bytes bytes[MAX_COLUMNS]
    Pairs pairs


cdef bint grow(uint8_t** data, int64_t size) noexcept nogil:
    cdef uint8_t* larger = <uint8_t*>realloc(data[0], size + SLACK)
    if larger == NULL:
        return False
    data[0] = larger
    return True


cdef bint reserve_bytes(Bytes* bytes, int64_t count) noexcept nogil:
    """Room for `count` bytes more."""
    cdef int64_t room
    if bytes.room - bytes.used >= count:
        return True
    room = min(max(max(2 * bytes.room, bytes.hint), bytes.used + count), <int64_t>MOST_DATA + SLACK)
    if not grow(&bytes.data, room):
        return False
    bytes.room = room
    return True


cdef struct Built:
    Memory* valid
    Memory* data
    Memory* bytes
    int64_t nulls
    int64_t used


cdef bint put_pair(Pairs* pairs, const uint8_t* name, int64_t name_size, const uint8_t* text,
                   int64_t text_size) noexcept nogil:
    cdef int64_t room = max(2 * pairs.room, <int64_t>FEWEST_ROWS)
    if pairs.count == pairs.room:
        if not grow(&pairs.name_ends, 4 * (room + 1)) or not grow(&pairs.text_ends, 4 * (room + 1)):
            return False
        (<int32_t*>pairs.name_ends)[pairs.count] = <int32_t>pairs.names.used
        (<int32_t*>pairs.text_ends)[pairs.count] = <int32_t>pairs.texts.used
        pairs.room = room
    # One byte more, so that there is memory even for nothing.
    if not reserve_bytes(&pairs.names, name_size + 1) or not reserve_bytes(&pairs.texts, text_size + 1):
        return False
    memcpy(pairs.names.data + pairs.names.used, name, name_size)
    memcpy(pairs.texts.data + pairs.texts.used, text, text_size)
    pairs.names.used += name_size
    pairs.texts.used += text_size
    pairs.count += 1
    (<int32_t*>pairs.name_ends)[pairs.count] = <int32_t>pairs.names.used
    (<int32_t*>pairs.text_ends)[pairs.count] = <int32_t>pairs.texts.used
    return True


cdef void drop_pairs(Pairs* pairs) noexcept nogil:
    free(pairs.names.data)
    free(pairs.texts.data)
    free(pairs.name_ends)
    free(pairs.text_ends)
    memset(pairs, 0, sizeof(Pairs))


# What only a decoder has.
cdef object FINISHED = object()


cdef class Rows:
    """Finished columns. Arrow takes them through the PyCapsule interface, numpy through `buffers`."""

    cdef readonly Plan plan
    cdef readonly Py_ssize_t num_rows
    cdef Built built[MAX_COLUMNS]
    cdef Memory** sources
    cdef int n_sources
    # The entries of a column of maps: where names end, names, where texts end, texts.
    cdef Memory* pairs[4]
    cdef int64_t n_pairs

    def __cinit__(self, finished=None):
        if finished is not FINISHED:
            raise TypeError("rows come from a decoder")

    def __dealloc__(self):
        cdef int i
        for i in range(4):
            memory_release(self.pairs[i])
        for i in range(MAX_COLUMNS):
            memory_release(self.built[i].valid)
            memory_release(self.built[i].data)
            memory_release(self.built[i].bytes)
        for i in range(self.n_sources):
            memory_release(self.sources[i])
        free(self.sources)

    def __len__(self):
        return self.num_rows

    @property
    def nbytes(self):
        """The bytes that the columns take, without what views point at."""
        cdef Py_ssize_t total = 0
        cdef int i
        for i in range(self.plan.n_columns):
            total += fixed_size(&self.plan.specs[i], self.num_rows) + self.built[i].used
            if self.built[i].valid != NULL:
                total += (self.num_rows + 7) // 8
        for i in range(4):
            total += 0 if self.pairs[i] == NULL else self.pairs[i].size
        return total

    def buffers(self, int column):
        """The validity bits (None if no row is null), the fixed part, and the bytes of a column."""
        if not 0 <= column < self.plan.n_columns:
            raise IndexError(column)
        cdef Built* built = &self.built[column]
        fixed = fixed_size(&self.plan.specs[column], self.num_rows)
        return (
            None if built.valid == NULL else View.of(built.valid, built.valid.data, (self.num_rows + 7) // 8, False),
            View.of(built.data, built.data.data, fixed, False),
            None if built.bytes == NULL else View.of(built.bytes, built.bytes.data, built.used, False),
        )

    def __arrow_c_schema__(self):
        return self.plan.__arrow_c_schema__()

    def __arrow_c_array__(self, requested_schema=None):
        cdef ArrowArray* array = <ArrowArray*>room_for(sizeof(ArrowArray))
        capsule = PyCapsule_New(array, "arrow_array", drop_array)
        self._export(array)
        return self.plan.__arrow_c_schema__(), capsule

    def __arrow_c_stream__(self, requested_schema=None):
        cdef ArrowArrayStream* stream = <ArrowArrayStream*>room_for(sizeof(ArrowArrayStream))
        capsule = PyCapsule_New(stream, "arrow_array_stream", drop_stream)
        cdef OneBatch* batch = <OneBatch*>room_for(sizeof(OneBatch))
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
            out.children[i] = <ArrowArray*>room_for(sizeof(ArrowArray))
            if not self._export_column(i, out.children[i]):
                raise MemoryError
        return 0

    cdef bint _export_column(self, int i, ArrowArray* out) noexcept nogil:
        cdef Built* built = &self.built[i]
        cdef Spec* spec = &self.plan.specs[i]
        if spec.width == 16:
            return self._export_views(i, out)
        if spec.mapped:
            return self._export_map(i, out)
        if start_array(out, self.num_rows, built.nulls, 3 if spec.binary else 2, 3, 0) == NULL:
            return False
        array_holds(out, built.valid)
        array_holds(out, built.data)
        array_holds(out, built.bytes)
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
        array_holds(names, self.plan.event_offsets)
        array_holds(names, self.plan.event_data)
        names.buffers[1] = self.plan.event_offsets.data
        names.buffers[2] = self.plan.event_data.data
        return True

    cdef bint _export_map(self, int i, ArrowArray* out) noexcept nogil:
        """A list of entries, each with a name and a text."""
        cdef Built* built = &self.built[i]
        cdef ArrowArray* entries
        cdef ArrowArray* half
        cdef int j
        if start_array(out, self.num_rows, built.nulls, 2, 2, 1) == NULL:
            return False
        array_holds(out, built.valid)
        array_holds(out, built.data)
        out.buffers[0] = NULL if built.valid == NULL else built.valid.data
        out.buffers[1] = built.data.data
        out.children[0] = entries = <ArrowArray*>calloc(1, sizeof(ArrowArray))
        if entries == NULL or start_array(entries, self.n_pairs, 0, 1, 0, 2) == NULL:
            return False
        for j in range(2):
            entries.children[j] = half = <ArrowArray*>calloc(1, sizeof(ArrowArray))
            if half == NULL or start_array(half, self.n_pairs, 0, 3, 2, 0) == NULL:
                return False
            array_holds(half, self.pairs[2 * j])
            array_holds(half, self.pairs[2 * j + 1])
            half.buffers[1] = self.pairs[2 * j].data
            half.buffers[2] = self.pairs[2 * j + 1].data
        return True

    cdef bint _export_views(self, int i, ArrowArray* out) noexcept nogil:
        """Views point into the receive buffers and, last, into what was inflated; their lengths go along."""
        cdef Built* built = &self.built[i]
        cdef int n = self.n_sources, j
        cdef int64_t* lengths
        cdef Memory* sizes
        if start_array(out, self.num_rows, built.nulls, 2 + n + 1, 3 + n, 0) == NULL:
            return False
        sizes = memory_new(8 * (n + 1))
        if sizes == NULL:
            return False
        array_holds(out, sizes)
        memory_release(sizes)
        array_holds(out, built.valid)
        array_holds(out, built.data)
        lengths = <int64_t*>sizes.data
        out.buffers[0] = NULL if built.valid == NULL else built.valid.data
        out.buffers[1] = built.data.data
        for j in range(n):
            array_holds(out, self.sources[j])
            out.buffers[2 + j] = self.sources[j].data
            lengths[j] = self.sources[j].size
        out.buffers[2 + n] = sizes.data
        return True


cdef int64_t count_nulls(const uint8_t* valid, int64_t rows) noexcept nogil:
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


cdef void blank_nulls(Columns* columns, int i, const Spec* spec, int64_t rows) noexcept nogil:
    """Zeros where a cell is null, so that no memory leaves that nobody wrote. Fields have theirs already."""
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


cdef void fill_offsets(Columns* columns, int i, int64_t n) noexcept nogil:
    """Makes up for the offsets of rows that had nothing in this column."""
    cdef Bytes* bytes = &columns.bytes[i]
    while bytes.filled < n:
        (<int32_t*>columns.fixed[i])[bytes.filled] = <int32_t>bytes.used
        bytes.filled += 1
    bytes.filled = n + 1


cdef inline bint is_spelled(const Spec* spec) noexcept nogil:
    """Whether the numbers of events become their names."""
    return spec.source == EVENT and spec.binary


cdef inline int64_t fixed_size(const Spec* spec, int64_t rows) noexcept nogil:
    """The bytes of the fixed part of a column that is finished."""
    return rows * spec.width if spec.width and not is_spelled(spec) else 4 * (rows + 1)


cdef bint spell_events(Columns* columns, int i, int64_t rows, const int32_t* ends, const uint8_t* names) noexcept nogil:
    """The names of events in the place of their numbers. `ends` is where each name ends, behind a 0."""
    cdef const uint8_t* numbers = columns.fixed[i]
    cdef Bytes* text = &columns.bytes[i]
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
        # Of fixed size, as in `copy_bytes`; behind the names there is SLACK too.
        memcpy(text.data + text.used, names + ends[numbers[n]], LONGEST_EVENT)
        text.used += size
    offsets[rows] = <int32_t>text.used
    free(columns.fixed[i])
    columns.fixed[i] = <uint8_t*>offsets
    return True


cdef bint finish_column(Columns* columns, int i, const Spec* spec, int64_t rows, int64_t room,
                        Built* out) noexcept nogil:
    """Hands the memory of a column over. False if there is no room even to say whose it is."""
    cdef Bytes* bytes = &columns.bytes[i]
    cdef int64_t size = fixed_size(spec, rows)
    if spec.nullable:
        out.nulls = count_nulls(columns.valid[i], rows)
    if spec.width == 0:
        if spec.nullable:
            fill_offsets(columns, i, rows)
        (<int32_t*>columns.fixed[i])[rows] = <int32_t>bytes.used
    if (spec.width == 0 or is_spelled(spec)) and bytes.data == NULL and not grow(&bytes.data, 0):
        return False
    if 2 * rows < room:
        if not grow(&columns.fixed[i], size) or (bytes.data != NULL and not grow(&bytes.data, bytes.used)):
            return False
    # What is used of a column of maps is counted in entries, which have their bytes elsewhere.
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
    bytes[0] = Bytes(NULL, 0, 0, 0, out.used + out.used // 8)
    return True
