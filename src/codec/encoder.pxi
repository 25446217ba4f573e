# Columns back to frames: any Arrow data whose columns have the names of ours.

cdef enum InputKind:
    ABSENT
    NUMBER
    BYTES

cdef struct Input:
    # A column of a caller's: where its cells are. `width` is that of a number, an index, an offset or a view.
    InputKind kind
    int width
    # What a number of 64 bits is moved up and down again by to get the sign of this one; 0 if it has none.
    int sign_shift
    const uint8_t* valid
    const uint8_t* data
    const uint8_t* bytes
    const void** buffers
    int64_t offset

cdef enum:
    # The columns that are no fields of a form, in the order in which a recipe lists them.
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

cdef struct Writing:
    # A field of a form: where it goes, and the column it comes from.
    uint16_t offset
    uint8_t width
    int column

cdef struct Fit:
    # A column that can have numbers which its place on the wire has no room for.
    int column
    int bits

cdef struct Form:
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
    # Whether there are bytes that no column writes.
    bint gaps
    # Those of 8 bytes, then of 4, whose column is as wide, come first; then all others.
    int ends[2]
    int n_writings
    Writing writings[MAX_COLUMNS]
    # A form with a column that is null in a row is not for that row.
    int n_needs
    int needs[MAX_COLUMNS]
    int n_fits
    Fit fits[MAX_COLUMNS]

cdef enum Refusal:
    FINE
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

_REFUSALS = {
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


cdef inline bint is_there(const Input* column, int64_t row) noexcept nogil:
    row += column.offset
    return column.kind != ABSENT and (column.valid == NULL or column.valid[row >> 3] >> (row & 7) & 1)


cdef inline uint64_t number_at(const Input* column, int64_t row) noexcept nogil:
    if not is_there(column, row):
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


cdef inline int64_t bytes_at(const Input* column, int64_t row, const uint8_t** data) noexcept nogil:
    """The length of a cell, and where it is."""
    cdef const int32_t* view
    cdef int64_t begin
    if not is_there(column, row):
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


cdef struct Job:
    const Form* forms
    const int* first_form
    # Our events: by the numbers of a dictionary, or by name where the column has no dictionary.
    int* event_of
    int64_t n_numbers
    const int32_t* name_ends
    const uint8_t* names
    int n_names
    Input* columns
    Input inputs[INPUTS]
    # Which rows there are; NULL if all.
    const uint8_t* valid
    int64_t begin
    int64_t end
    bint opaque_given
    uint32_t opaque
    int opaque_column
    bint inflated
    bint defect
    # The row that cannot go, and the number and its column if it is for them.
    int64_t row
    int64_t number
    const Fit* fit


cdef struct Parts:
    # A row that becomes a frame.
    const Form* form
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


cdef inline int event_at(const Job* job, int64_t row) noexcept nogil:
    """Our number of a row's event, NOWHERE if it is none of ours."""
    cdef const Input* column = &job.inputs[<int>IN_EVENT]
    cdef const uint8_t* name = NULL
    cdef uint64_t number
    cdef int64_t size
    cdef int i
    if not is_there(column, row):
        return NOWHERE
    if column.kind == NUMBER:
        number = number_at(column, row)
        return job.event_of[number] if number < <uint64_t>job.n_numbers else NOWHERE
    size = bytes_at(column, row, &name)
    for i in range(job.n_names):
        if size == job.name_ends[i + 1] - job.name_ends[i] and memcmp(name, job.names + job.name_ends[i], size) == 0:
            return i
    return NOWHERE


cdef Refusal measure(Job* job, int64_t row, Parts* parts) noexcept nogil:
    """What a row takes on the wire, or why it cannot go there."""
    cdef const Form* form
    cdef uint64_t collection
    cdef int code, i
    if job.valid != NULL and not job.valid[row >> 3] >> (row & 7) & 1:
        return ROW_NULL
    code = event_at(job, row)
    if code == NOWHERE:
        return EVENT_UNKNOWN
    code = job.first_form[code]
    form = NULL
    while code != NOWHERE:
        form = &job.forms[code]
        for i in range(form.n_needs):
            if not is_there(&job.columns[form.needs[i]], row):
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
    # In an answer the same number means something else.
    parts.infos = UNCOUNTED_LENGTH if not form.response and is_there(&job.inputs[<int>IN_STREAM_ID], row) else 0
    parts.prefix_size = 0
    if parts.key_size == 0 and form.key_must:
        return KEY_MISSING
    if parts.key_size and not form.key_may:
        return KEY_UNWANTED
    if (parts.value_size or parts.xattrs_size) and not form.value_may:
        return VALUE_UNWANTED
    if form.prefixed and is_there(&job.inputs[<int>IN_COLLECTION], row):
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
    return FINE if parts.body <= MOST_DATA else BODY_TOO_LONG


cdef bint numbers_fit(Job* job, const Form* form, int64_t row) noexcept nogil:
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


cdef Refusal write_rows(Job* job, uint8_t* out, int64_t* size) noexcept nogil:
    """The frames of the rows, into a buffer with room for `most_bytes` of them; or only how many bytes they are."""
    cdef Parts parts
    cdef Refusal refusal
    cdef int64_t row
    size[0] = 0
    for row in range(job.begin, job.end):
        refusal = measure(job, row, &parts)
        if refusal != FINE:
            job.row = row
            return refusal
        if out != NULL:
            write_row(job, row, &parts, out + size[0])
        size[0] += HEADER_SIZE + parts.body
    return FINE


cdef int64_t most_bytes(const Job* job, int64_t longest_form) noexcept nogil:
    """No less than what the frames of the rows take."""
    cdef int64_t total = (job.end - job.begin) * (HEADER_SIZE + UNCOUNTED_LENGTH + LONGEST_PREFIX + longest_form)
    cdef int i
    for i in range(IN_KEY, IN_STREAM_ID):
        if job.inputs[i].kind == BYTES:
            total += all_bytes(&job.inputs[i], job.begin, job.end)
    return total


cdef int64_t all_bytes(const Input* column, int64_t begin, int64_t end) noexcept nogil:
    cdef int64_t row, total = 0
    begin, end = begin + column.offset, end + column.offset
    if column.width == 4:
        return (<const int32_t*>column.data)[end] - (<const int32_t*>column.data)[begin]
    if column.width == 8:
        return (<const int64_t*>column.data)[end] - (<const int64_t*>column.data)[begin]
    for row in range(begin, end):
        # What stands under a null may be anything.
        if column.valid == NULL or column.valid[row >> 3] >> (row & 7) & 1:
            total += (<const int32_t*>column.data)[4 * row]
    return total


cdef inline void write_row(const Job* job, int64_t row, const Parts* parts, uint8_t* out) noexcept nogil:
    cdef const Form* form = parts.form
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
        memcpy(out, parts.value, parts.value_size)


cdef inline void write_fields(const Job* job, const Form* form, int64_t row, uint8_t* out) noexcept nogil:
    """The numbers of a row, those that need no widening first."""
    cdef const Writing* writing = <const Writing*>form.writings
    cdef const Writing* first = writing
    cdef const Input* column
    cdef uint64_t number
    while writing < first + form.ends[0]:
        column = &job.columns[writing.column]
        number = (<const uint64_t*>column.data)[row + column.offset]
        store64(out + writing.offset, number if column.valid == NULL or is_there(column, row) else 0)
        writing += 1
    while writing < first + form.ends[1]:
        column = &job.columns[writing.column]
        number = (<const uint32_t*>column.data)[row + column.offset]
        store32(out + writing.offset, <uint32_t>number if column.valid == NULL or is_there(column, row) else 0)
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
    """(name, format, format of the dictionary's values) of each column behind a schema capsule."""
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
    """How the rows of data with certain columns become frames of a dialect. Immutable: threads may share it."""

    cdef readonly tuple events
    cdef tuple _formats
    cdef bytes _names
    cdef int32_t* _name_ends
    cdef int _special[INPUTS]
    cdef Form* _forms
    cdef int _n_forms, _longest_form
    cdef int* _first_form

    def __cinit__(self, columns, special, events, forms):
        """`columns`: as `arrow_columns` gives them, without a format if not needed.

        `special`: their numbers for each of IN_*, or -1.
        `forms`: (event, mapping), those of an event in the order in which they are tried.
        """
        cdef int i
        cdef int* at
        self.events, self._formats = tuple(events), tuple(columns)
        for i in range(<int>INPUTS):
            self._special[i] = special[i]
        self._forms = <Form*>room_for((len(forms) + 1) * sizeof(Form))
        self._first_form = <int*>room_for((len(self.events) + 1) * sizeof(int))
        self._name_ends = <int32_t*>room_for((len(self.events) + 1) * sizeof(int32_t))
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
        cdef Form* form = &self._forms[self._n_forms]
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
                form.writings[form.n_writings] = Writing(offset, width, column)
                form.n_writings += 1
            if i < 2:
                form.ends[<int>i] = form.n_writings
        for column, bits in row["fits"]:
            form.fits[form.n_fits] = Fit(column, bits)
            form.n_fits += 1
        form.gaps = sum(width for _, width, _ in row["writings"]) < form.extras_length + form.engine_length
        for column in row["needs"]:
            form.needs[form.n_needs] = column
            form.n_needs += 1
        self._n_forms += 1
        self._longest_form = max(self._longest_form, form.extras_length + form.engine_length)
        return 0

    def encode(self, array, opaque, bint inflated, bint defect):
        """The frames of the rows behind an array capsule."""
        cdef Job job
        cdef int64_t size = 0
        cdef Refusal refusal
        cdef uint8_t* at
        # Not a Python variable: only a bytes object that nobody else has can change its length.
        cdef PyObject* frames = NULL
        self._open(array, &job, opaque, inflated, defect)
        try:
            frames = new_bytes(NULL, most_bytes(&job, self._longest_form))
            at = <uint8_t*>PyBytes_AS_STRING(<object>frames)
            with nogil:
                refusal = write_rows(&job, at, &size)
            self._check(refusal, &job, size)
            resize_bytes(&frames, size)
            return <object>frames
        finally:
            Py_XDECREF(frames)
            close_job(&job)

    def encode_into(self, uint8_t[::1] out, array, opaque, bint inflated, bint defect):
        """The same, into a buffer; says how many bytes they are."""
        cdef Job job
        cdef int64_t size = 0
        cdef Refusal refusal
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
            close_job(&job)

    cdef int _open(self, array, Job* job, opaque, bint inflated, bint defect) except -1:
        """What the loop needs to know of the rows behind an array capsule. `close_job` ends it."""
        cdef ArrowArray* root = <ArrowArray*>PyCapsule_GetPointer(array, "arrow_array")
        cdef int i
        memset(job, 0, sizeof(Job))
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
        job.columns = <Input*>PyMem_Calloc(root.n_children + 1, sizeof(Input))
        if job.columns == NULL:
            raise MemoryError
        for i in range(root.n_children):
            open_input(&job.columns[i], root.children[i], self._formats[i])
        for i in range(<int>INPUTS):
            # What is null in every row need not be asked for in any.
            if self._special[i] != NOWHERE and not all_null(root.children[self._special[i]]):
                job.inputs[i] = job.columns[self._special[i]]
        return self._number_events(root.children[self._special[<int>IN_EVENT]], job)

    cdef int _check(self, Refusal refusal, Job* job, int64_t size) except -1:
        if refusal == FINE:
            return 0
        details = {"events": ", ".join(self.events), "size": size}
        if refusal == NUMBER_TOO_LARGE:
            name, format, _ = self._formats[job.fit.column]
            number = job.number
            if not format.islower():
                number %= 1 << 64
            details |= {"column": name, "most": (1 << <object>job.fit.bits) - 1, "number": number}
        text = _REFUSALS[refusal].format(**details)
        raise UsageError(text if refusal == BUFFER_FULL else f"row {job.row - job.begin}: {text}")

    cdef int _number_events(self, ArrowArray* array, Job* job) except -1:
        """Which of our events each number means, where the column `event` has numbers into a dictionary of names."""
        cdef const uint8_t* text = NULL
        cdef int64_t i, size
        cdef Input names
        if array.dictionary == NULL:
            return 0
        memset(&names, 0, sizeof(Input))
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


cdef void close_job(Job* job) noexcept:
    PyMem_Free(job.columns)
    PyMem_Free(job.event_of)


cdef int open_input(Input* column, ArrowArray* array, described) except -1:
    """A column of an Arrow array. One without a format is not needed."""
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
