# Encoder: columns of any Arrow library to frames, by the names of the columns.
#
# A recipe is compiled once for data with the same columns. For each batch a job finds the buffers, and a loop without
# the GIL writes the frames, one row at a time.

cdef enum InputKind:
    ABSENT
    NUMBER
    BYTES

cdef struct InputColumn:
    # A column of the caller. `width` is that of a number, an index, an offset or a view.
    InputKind kind
    int width
    # Shift up and down again that extends the sign of a number to 64 bits; 0 for unsigned ones.
    int sign_shift
    const uint8_t* valid
    const uint8_t* data
    const uint8_t* bytes
    const void** buffers
    int64_t offset

cdef enum:
    # Columns outside the fields of a form, in the order in which a recipe lists them.
    IN_EVENT
    IN_VBUCKET
    IN_CAS
    IN_DATATYPE
    IN_OPAQUE
    IN_KEY
    IN_COLLECTION
    IN_VALUE
    IN_XATTRS
    IN_STREAM_ID
    INPUTS

cdef enum:
    LONGEST_PREFIX = 5

cdef struct FieldWrite:
    # A field of a form: its offset and width in the extras, and its column.
    uint16_t offset
    uint8_t width
    int column

cdef struct RangeCheck:
    # A column whose numbers may be too large for the field, and the bits that the field has.
    int column
    int bits

cdef struct EncodeForm:
    int next
    int opcode
    bint response
    int type
    int extras_length
    int engine_length
    int engine_at
    bint prefixed
    bint key_must
    bint key_may
    bint value_may
    bint defect
    # True if there are bytes of the extras that no column writes: they have to be zeroed.
    bint gaps
    # Fields of 8 bytes whose column is as wide, up to ends[0]; such fields of 4 bytes, up to ends[1]; then all others.
    int ends[2]
    int n_writings
    FieldWrite writings[MAX_COLUMNS]
    # Columns that must not be null in a row with this form.
    int n_needs
    int needs[MAX_COLUMNS]
    int n_fits
    RangeCheck fits[MAX_COLUMNS]

cdef enum EncodeStatus:
    ENCODE_OK
    ROW_NULL
    EVENT_UNKNOWN
    NO_FORM
    KEY_MISSING
    KEY_UNWANTED
    VALUE_UNWANTED
    KEY_TOO_LONG
    BODY_TOO_LONG
    NUMBER_TOO_LARGE
    BUFFER_FULL

_ENCODE_ERRORS = {
    ROW_NULL: "expected a row, found null",
    EVENT_UNKNOWN: "event: expected one of {events}",
    NO_FORM: "event: no form of it has these columns",
    KEY_MISSING: "key: expected at least 1 byte",
    KEY_UNWANTED: "key: expected none with this event",
    VALUE_UNWANTED: "value: expected none with this event",
    KEY_TOO_LONG: "key: expected at most 65535 bytes, 255 with a stream id",
    BODY_TOO_LONG: "value: expected a frame of less than 4 GiB",
    NUMBER_TOO_LARGE: "{column}: expected 0 to {most}, found {number}",
    BUFFER_FULL: "buffer: expected room for {size} bytes",
}


cdef extern from "Python.h":
    PyObject* new_bytes "PyBytes_FromStringAndSize"(const char* data, Py_ssize_t size) except NULL
    int resize_bytes "_PyBytes_Resize"(PyObject** data, Py_ssize_t size) except -1
    char* PyBytes_AS_STRING(object data)


cdef inline bint has_value(const InputColumn* column, int64_t row) noexcept nogil:
    """Return whether the data has the column, and the cell is not null."""
    row += column.offset
    return column.kind != ABSENT and (column.valid == NULL or column.valid[row >> 3] >> (row & 7) & 1)


cdef inline uint64_t number_at(const InputColumn* column, int64_t row) noexcept nogil:
    """Return the number in a cell, with its sign extended to 64 bits; 0 if there is none."""
    if not has_value(column, row):
        return 0
    row += column.offset
    if column.width == 8:
        return (<const uint64_t*>column.data)[row]
    if column.width == 4:
        return signed_number((<const uint32_t*>column.data)[row], column.sign_shift)
    if column.width == 2:
        return signed_number((<const uint16_t*>column.data)[row], column.sign_shift)
    return signed_number(column.data[row], column.sign_shift)


cdef inline uint64_t signed_number(uint64_t number, int shift) noexcept nogil:
    return <uint64_t>(<int64_t>(number << shift) >> shift)


cdef inline int64_t bytes_at(const InputColumn* column, int64_t row, const uint8_t** data) noexcept nogil:
    """Find the bytes of a cell. Return their length; 0 if there are none."""
    cdef const int32_t* view
    cdef int64_t begin
    if not has_value(column, row):
        return 0
    row += column.offset
    if column.width == 4:
        begin = (<const int32_t*>column.data)[row]
        data[0] = column.bytes + begin
        return (<const int32_t*>column.data)[row + 1] - begin
    if column.width == 8:
        begin = (<const int64_t*>column.data)[row]
        data[0] = column.bytes + begin
        return (<const int64_t*>column.data)[row + 1] - begin
    view = <const int32_t*>column.data + 4 * row
    data[0] = <const uint8_t*>(view + 1) if view[0] <= 12 else <const uint8_t*>column.buffers[2 + view[2]] + view[3]
    return view[0]


cdef struct EncodeJob:
    const EncodeForm* forms
    const int* first_form
    # Our numbers of the events: by those of a dictionary, or by name if the column has no dictionary.
    int* event_of
    int64_t n_numbers
    const int32_t* name_ends
    const uint8_t* names
    int n_names
    InputColumn* columns
    InputColumn inputs[INPUTS]
    # Validity of the rows themselves; NULL if all are valid.
    const uint8_t* valid
    int64_t begin
    int64_t end
    bint opaque_given
    uint32_t opaque
    int opaque_column
    bint inflated
    bint defect
    # The row that cannot be encoded, and the number and its column if they are the reason.
    int64_t row
    int64_t number
    const RangeCheck* fit


cdef struct FrameParts:
    # A row that becomes a frame: the form, the bytes, and their sizes.
    const EncodeForm* form
    const uint8_t* key
    const uint8_t* value
    const uint8_t* xattrs
    int64_t key_size
    int64_t value_size
    int64_t xattrs_size
    int64_t infos
    int64_t body
    int prefix_size
    uint8_t prefix[LONGEST_PREFIX]


cdef inline int event_at(const EncodeJob* job, int64_t row) noexcept nogil:
    """Return our number of the event of a row; NOWHERE if it is unknown."""
    cdef const InputColumn* column = &job.inputs[<int>IN_EVENT]
    cdef const uint8_t* name = NULL
    cdef uint64_t number
    cdef int64_t size
    cdef int i
    if not has_value(column, row):
        return NOWHERE
    if column.kind == NUMBER:
        number = number_at(column, row)
        return job.event_of[number] if number < <uint64_t>job.n_numbers else NOWHERE
    size = bytes_at(column, row, &name)
    for i in range(job.n_names):
        if size == job.name_ends[i + 1] - job.name_ends[i] and memcmp(name, job.names + job.name_ends[i], size) == 0:
            return i
    return NOWHERE


cdef EncodeStatus plan_frame(EncodeJob* job, int64_t row, FrameParts* parts) noexcept nogil:
    """Find the form and the sizes of the frame of a row, or why it cannot be encoded."""
    cdef const EncodeForm* form
    cdef uint64_t collection
    cdef int code, i
    if job.valid != NULL and not job.valid[row >> 3] >> (row & 7) & 1:
        return ROW_NULL
    code = event_at(job, row)
    if code == NOWHERE:
        return EVENT_UNKNOWN
    # The first form whose nullable columns all have a value in this row.
    code = job.first_form[code]
    form = NULL
    while code != NOWHERE:
        form = &job.forms[code]
        for i in range(form.n_needs):
            if not has_value(&job.columns[form.needs[i]], row):
                break
        else:
            break
        code = form.next
    if code == NOWHERE:
        return NO_FORM
    if form.n_fits and not numbers_fit(job, form, row):
        return NUMBER_TOO_LARGE
    parts.form = form
    parts.key_size = bytes_at(&job.inputs[<int>IN_KEY], row, &parts.key)
    parts.value_size = bytes_at(&job.inputs[<int>IN_VALUE], row, &parts.value)
    parts.xattrs_size = bytes_at(&job.inputs[<int>IN_XATTRS], row, &parts.xattrs)
    # Only requests carry stream ids: in responses the same id is that of another info.
    parts.infos = UNCOUNTED_LENGTH if not form.response and has_value(&job.inputs[<int>IN_STREAM_ID], row) else 0
    parts.prefix_size = 0
    if parts.key_size == 0 and form.key_must:
        return KEY_MISSING
    if parts.key_size and not form.key_may:
        return KEY_UNWANTED
    if (parts.value_size or parts.xattrs_size) and not form.value_may:
        return VALUE_UNWANTED
    if form.prefixed and has_value(&job.inputs[<int>IN_COLLECTION], row):
        collection = number_at(&job.inputs[<int>IN_COLLECTION], row) & 0xFFFFFFFFU
        while collection > 0x7F:
            parts.prefix[parts.prefix_size] = collection & 0x7F | 0x80
            parts.prefix_size += 1
            collection >>= 7
        parts.prefix[parts.prefix_size] = <uint8_t>collection
        parts.prefix_size += 1
    if parts.key_size + parts.prefix_size > (0xFF if parts.infos else 0xFFFF):
        return KEY_TOO_LONG
    parts.body = parts.infos + form.extras_length + form.engine_length + parts.prefix_size
    parts.body += parts.key_size + parts.xattrs_size + parts.value_size
    return ENCODE_OK if parts.body <= MOST_DATA else BODY_TOO_LONG


cdef bint numbers_fit(EncodeJob* job, const EncodeForm* form, int64_t row) noexcept nogil:
    """Return whether all numbers of a row fit their fields. If not, `job` has the number and its column."""
    cdef uint64_t number
    cdef int i
    for i in range(form.n_fits):
        job.fit = &form.fits[i]
        if job.opaque_given and job.fit.column == job.opaque_column:
            continue
        number = number_at(&job.columns[job.fit.column], row)
        if number >> job.fit.bits:
            job.number = <int64_t>number
            return False
    return True


cdef EncodeStatus write_rows(EncodeJob* job, uint8_t* out, int64_t* size) noexcept nogil:
    """Write the frames of all rows, or only count their bytes if `out` is NULL.

    `out` must have room for them: `most_bytes` is an upper bound.
    """
    cdef FrameParts parts
    cdef EncodeStatus refusal
    cdef int64_t row
    size[0] = 0
    for row in range(job.begin, job.end):
        refusal = plan_frame(job, row, &parts)
        if refusal != ENCODE_OK:
            job.row = row
            return refusal
        if out != NULL:
            write_row(job, row, &parts, out + size[0])
        size[0] += HEADER_SIZE + parts.body
    return ENCODE_OK


cdef int64_t most_bytes(const EncodeJob* job, int64_t longest_form) noexcept nogil:
    """Return an upper bound of the bytes of the frames."""
    cdef int64_t total = (job.end - job.begin) * (HEADER_SIZE + UNCOUNTED_LENGTH + LONGEST_PREFIX + longest_form)
    cdef int i
    for i in range(IN_KEY, IN_STREAM_ID):
        if job.inputs[i].kind == BYTES:
            total += bytes_in_column(&job.inputs[i], job.begin, job.end)
    return total


cdef int64_t bytes_in_column(const InputColumn* column, int64_t begin, int64_t end) noexcept nogil:
    """Return the bytes of the cells in a range of rows."""
    cdef int64_t row, total = 0
    begin, end = begin + column.offset, end + column.offset
    if column.width == 4:
        return (<const int32_t*>column.data)[end] - (<const int32_t*>column.data)[begin]
    if column.width == 8:
        return (<const int64_t*>column.data)[end] - (<const int64_t*>column.data)[begin]
    for row in range(begin, end):
        # The view of a null may be anything.
        if column.valid == NULL or column.valid[row >> 3] >> (row & 7) & 1:
            total += (<const int32_t*>column.data)[4 * row]
    return total


cdef inline void write_row(const EncodeJob* job, int64_t row, const FrameParts* parts, uint8_t* out) noexcept nogil:
    """Write the frame of a row. `plan_frame` has checked that it fits."""
    cdef const EncodeForm* form = parts.form
    cdef uint64_t keys = parts.prefix_size + parts.key_size
    cdef uint64_t magic = 0x81 if form.response else 0x80
    cdef uint64_t datatype = number_at(&job.inputs[<int>IN_DATATYPE], row) & 0xFF
    cdef uint64_t opaque = job.opaque if job.opaque_given else number_at(&job.inputs[<int>IN_OPAQUE], row) & 0xFFFFFFFFU
    if parts.infos:
        magic = 0x08
        keys |= 0 if form.defect and job.defect else <uint64_t>UNCOUNTED_LENGTH << 8
    if job.inflated and parts.value_size + parts.xattrs_size:
        datatype &= ~<uint64_t>SNAPPY_BIT
    if form.type != NOWHERE:
        datatype = form.type
    # The header as three numbers of 8 bytes: a single store each.
    store64(out, magic << 56 | <uint64_t>form.opcode << 48 | keys << 32 | <uint64_t>form.extras_length << 24
            | datatype << 16 | number_at(&job.inputs[<int>IN_VBUCKET], row) & 0xFFFF)
    store64(out + BODY_LENGTH_AT, <uint64_t>parts.body << 32 | opaque)
    store64(out + CAS_AT, number_at(&job.inputs[<int>IN_CAS], row))
    out += HEADER_SIZE
    if parts.infos:
        out[0] = UNCOUNTED_HEAD
        store16(out + 1, <uint16_t>number_at(&job.inputs[<int>IN_STREAM_ID], row))
        out += UNCOUNTED_LENGTH
    if form.gaps:
        memset(out, 0, form.extras_length + form.engine_length)
    write_fields(job, form, row, out)
    if form.engine_at != NOWHERE:
        store16(out + form.engine_at, <uint16_t>form.engine_length)
    out += form.extras_length + form.engine_length
    if parts.prefix_size:
        memcpy(out, parts.prefix, parts.prefix_size)
        out += parts.prefix_size
    if parts.key_size:
        memcpy(out, parts.key, parts.key_size)
        out += parts.key_size
    if parts.xattrs_size:
        memcpy(out, parts.xattrs, parts.xattrs_size)
        out += parts.xattrs_size
    if parts.value_size:
        # Values of neighbouring rows are neighbours: load the next one while this one is copied.
        prefetch_beyond(parts.value, parts.value_size)
        memcpy(out, parts.value, parts.value_size)


cdef inline void write_fields(const EncodeJob* job, const EncodeForm* form, int64_t row, uint8_t* out) noexcept nogil:
    """Write the fields of the extras, those that need no conversion first."""
    cdef const FieldWrite* writing = <const FieldWrite*>form.writings
    cdef const FieldWrite* first = writing
    cdef const InputColumn* column
    cdef uint64_t number
    while writing < first + form.ends[0]:
        column = &job.columns[writing.column]
        number = (<const uint64_t*>column.data)[row + column.offset]
        store64(out + writing.offset, number if column.valid == NULL or has_value(column, row) else 0)
        writing += 1
    while writing < first + form.ends[1]:
        column = &job.columns[writing.column]
        number = (<const uint32_t*>column.data)[row + column.offset]
        store32(out + writing.offset, <uint32_t>number if column.valid == NULL or has_value(column, row) else 0)
        writing += 1
    while writing < first + form.n_writings:
        number = number_at(&job.columns[writing.column], row)
        if writing.width == 8:
            store64(out + writing.offset, number)
        elif writing.width == 4:
            store32(out + writing.offset, <uint32_t>number)
        elif writing.width == 2:
            store16(out + writing.offset, <uint16_t>number)
        else:
            out[writing.offset] = <uint8_t>number
        writing += 1


def arrow_columns(schema):
    """Return (name, format, format of the dictionary's values or None) of each column in a schema capsule."""
    cdef ArrowSchema* root = <ArrowSchema*>PyCapsule_GetPointer(schema, "arrow_schema")
    cdef ArrowSchema* child
    cdef int64_t i
    found = []
    if root.format != NULL and root.format != b"+s":
        raise ValueError(f"expected rows in columns, found the Arrow type {root.format.decode()!r}")
    for i in range(root.n_children):
        child = root.children[i]
        values = None if child.dictionary == NULL else child.dictionary.format.decode()
        name = "" if child.name == NULL else child.name.decode()
        found.append((name, child.format.decode(), values))
    return found


cdef class Recipe:
    """Compiled encoder of rows with certain columns to frames of a dialect. Immutable, so threads may share it."""

    cdef readonly tuple events
    cdef tuple _formats
    cdef bytes _names
    cdef int32_t* _name_ends
    cdef int _special[INPUTS]
    cdef EncodeForm* _forms
    cdef int _n_forms, _longest_form
    cdef int* _first_form

    def __cinit__(self, columns, special, events, forms):
        """Compile a recipe.

        columns: as `arrow_columns` returns them; with an empty format if they are not needed.
        special: for each of IN_EVENT to IN_STREAM_ID the number of its column, or -1.
        events: names of the events.
        forms: (event, mapping) pairs, see dcp.columns.encoder; forms of one event in the order to try them.
        """
        cdef int i
        cdef int* at
        self.events, self._formats = tuple(events), tuple(columns)
        for i in range(<int>INPUTS):
            self._special[i] = special[i]
        self._forms = <EncodeForm*>zeroed_memory((len(forms) + 1) * sizeof(EncodeForm))
        self._first_form = <int*>zeroed_memory((len(self.events) + 1) * sizeof(int))
        self._name_ends = <int32_t*>zeroed_memory((len(self.events) + 1) * sizeof(int32_t))
        self._names = "".join(self.events).encode()
        for i in range(len(self.events)):
            self._first_form[i] = NOWHERE
            self._name_ends[i + 1] = self._name_ends[i] + len(self.events[i])
        for event, row in forms:
            self._add(row)
            at = &self._first_form[<int>event]
            while at[0] != NOWHERE:
                at = &self._forms[at[0]].next
            at[0] = self._n_forms - 1

    def __dealloc__(self):
        free(self._forms)
        free(self._first_form)
        free(self._name_ends)

    cdef int _add(self, row) except -1:
        cdef EncodeForm* form = &self._forms[self._n_forms]
        form.next = NOWHERE
        form.opcode, form.response, form.type = row["opcode"], row["response"], row["type"]
        form.extras_length, form.engine_length = row["extras_length"], row["engine_length"]
        form.engine_at, form.defect = row["engine_at"], row["defect"]
        form.prefixed = row["prefixed"]
        form.key_must, form.key_may, form.value_may = row["key_must"], row["key_may"], row["value_may"]
        as_wide = {width: [] for width in (8, 4, 0)}
        for offset, width, column in row["writings"]:
            same = number_width(self._formats[column][1]) == width
            as_wide[width if same and width >= 4 else 0].append((offset, width, column))
        for i, writings in enumerate(as_wide.values()):
            for offset, width, column in writings:
                form.writings[form.n_writings] = FieldWrite(offset, width, column)
                form.n_writings += 1
            if i < 2:
                form.ends[<int>i] = form.n_writings
        for column, bits in row["fits"]:
            form.fits[form.n_fits] = RangeCheck(column, bits)
            form.n_fits += 1
        form.gaps = sum(width for _, width, _ in row["writings"]) < form.extras_length + form.engine_length
        for column in row["needs"]:
            form.needs[form.n_needs] = column
            form.n_needs += 1
        self._n_forms += 1
        self._longest_form = max(self._longest_form, form.extras_length + form.engine_length)
        return 0

    def encode(self, array, opaque, bint inflated, bint defect):
        """Return the frames of the rows in an array capsule."""
        cdef EncodeJob job
        cdef int64_t size = 0
        cdef EncodeStatus refusal
        cdef uint8_t* at
        # Not a Python variable: a bytes object can change its length only while it has a single reference.
        cdef PyObject* frames = NULL
        self._open(array, &job, opaque, inflated, defect)
        try:
            # One allocation of the upper bound, shrunk at the end: rows are measured only once.
            frames = new_bytes(NULL, most_bytes(&job, self._longest_form))
            at = <uint8_t*>PyBytes_AS_STRING(<object>frames)
            with nogil:
                refusal = write_rows(&job, at, &size)
            self._check(refusal, &job, size)
            resize_bytes(&frames, size)
            return <object>frames
        finally:
            Py_XDECREF(frames)
            free_job(&job)

    def encode_into(self, uint8_t[::1] out, array, opaque, bint inflated, bint defect):
        """Write the frames of the rows to a buffer. Return their size."""
        cdef EncodeJob job
        cdef int64_t size = 0
        cdef EncodeStatus refusal
        self._open(array, &job, opaque, inflated, defect)
        try:
            if out.shape[0] < most_bytes(&job, self._longest_form):
                self._check(write_rows(&job, NULL, &size), &job, size)
                if out.shape[0] < size:
                    self._check(BUFFER_FULL, &job, size)
            if out.shape[0]:
                with nogil:
                    refusal = write_rows(&job, &out[0], &size)
                self._check(refusal, &job, size)
            return size
        finally:
            free_job(&job)

    cdef int _open(self, array, EncodeJob* job, opaque, bint inflated, bint defect) except -1:
        """Prepare a job for the rows in an array capsule. `free_job` has to end it, also after an error."""
        cdef ArrowArray* root = <ArrowArray*>PyCapsule_GetPointer(array, "arrow_array")
        cdef int i
        memset(job, 0, sizeof(EncodeJob))
        if root.n_children != len(self._formats):
            raise ValueError(f"expected {len(self._formats)} columns, found {root.n_children}")
        job.begin, job.end = root.offset, root.offset + root.length
        job.forms, job.first_form = self._forms, self._first_form
        job.names, job.name_ends = <const uint8_t*><const char*>self._names, self._name_ends
        job.n_names = len(self.events)
        job.opaque_given, job.opaque = opaque is not None, opaque or 0
        job.opaque_column = self._special[<int>IN_OPAQUE]
        if root.null_count != 0:
            job.valid = <const uint8_t*>root.buffers[0]
        job.inflated, job.defect = inflated, defect
        job.columns = <InputColumn*>PyMem_Calloc(root.n_children + 1, sizeof(InputColumn))
        if job.columns == NULL:
            raise MemoryError
        for i in range(root.n_children):
            open_input(&job.columns[i], root.children[i], self._formats[i])
        for i in range(<int>INPUTS):
            # A column that is null in all rows is treated as absent, which costs nothing per row.
            if self._special[i] != NOWHERE and not all_null(root.children[self._special[i]]):
                job.inputs[i] = job.columns[self._special[i]]
        return self._number_events(root.children[self._special[<int>IN_EVENT]], job)

    cdef int _check(self, EncodeStatus refusal, EncodeJob* job, int64_t size) except -1:
        if refusal == ENCODE_OK:
            return 0
        details = {"events": ", ".join(self.events), "size": size}
        if refusal == NUMBER_TOO_LARGE:
            name, format, _ = self._formats[job.fit.column]
            number = job.number
            if not format.islower():
                number %= 1 << 64
            details |= {"column": name, "most": (1 << <object>job.fit.bits) - 1, "number": number}
        text = _ENCODE_ERRORS[refusal].format(**details)
        raise UsageError(text if refusal == BUFFER_FULL else f"row {job.row - job.begin}: {text}")

    cdef int _number_events(self, ArrowArray* array, EncodeJob* job) except -1:
        """Map the numbers of a dictionary of event names to ours, if the column `event` has a dictionary."""
        cdef const uint8_t* text = NULL
        cdef int64_t i, size
        cdef InputColumn names
        if array.dictionary == NULL:
            return 0
        memset(&names, 0, sizeof(InputColumn))
        open_input(&names, array.dictionary, ("event", self._formats[self._special[<int>IN_EVENT]][2], None))
        job.event_of = <int*>PyMem_Malloc((array.dictionary.length + 1) * sizeof(int))
        if job.event_of == NULL:
            raise MemoryError
        job.n_numbers = array.dictionary.length
        for i in range(job.n_numbers):
            size = bytes_at(&names, i, &text)
            name = PyBytes_FromStringAndSize(<const char*>text, size).decode(errors="replace")
            job.event_of[i] = self.events.index(name) if name in self.events else NOWHERE
        return 0


cdef bint all_null(const ArrowArray* array) noexcept nogil:
    return array.length > 0 and array.null_count == array.length


cdef void free_job(EncodeJob* job) noexcept:
    PyMem_Free(job.columns)
    PyMem_Free(job.event_of)


cdef int open_input(InputColumn* column, ArrowArray* array, described) except -1:
    """Find the buffers of a column of an Arrow array. One without a format is not needed."""
    _, format, _ = described
    if not format:
        return 0
    column.offset, column.buffers = array.offset, array.buffers
    column.data = <const uint8_t*>array.buffers[1]
    if array.null_count != 0:
        column.valid = <const uint8_t*>array.buffers[0]
    if format in ("vz", "vu"):
        column.kind, column.width = BYTES, 16
    elif format in ("z", "u", "Z", "U"):
        column.kind, column.width = BYTES, 4 if format in ("z", "u") else 8
        column.bytes = <const uint8_t*>array.buffers[2]
    else:
        column.kind, column.width = NUMBER, number_width(format)
        column.sign_shift = 64 - 8 * column.width if format.islower() else 0
    return 0


cdef int number_width(str format) except -1:
    return {"c": 1, "s": 2, "i": 4}.get(format.lower(), 8)
