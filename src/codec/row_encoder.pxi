# Encoder of rows that are Python tuples, for servers that keep documents one by one.
#
# A tuple is loaded into columns of one row, so that the functions of encoder.pxi write its frame.

cdef extern from "Python.h":
    uint64_t PyLong_AsUnsignedLongLong(object number) except? 0xFFFFFFFFFFFFFFFF


cdef class RowWriter:
    """Encoder of tuples to frames.

    The items of a tuple are the first columns of the recipe. Its last columns are the same for all rows of a call.
    """

    cdef Recipe _recipe
    cdef tuple _events
    cdef int _n_columns
    cdef InputColumn* _columns
    # A cell of each column: a number, or the two offsets of bytes.
    cdef uint64_t* _cells
    cdef int* _event_of
    cdef uint8_t _nothing

    def __cinit__(self, Recipe recipe not None):
        cdef int i
        self._recipe = recipe
        self._events = recipe.events
        self._n_columns = len(recipe._formats)
        self._columns = <InputColumn*>zeroed_memory((self._n_columns + 1) * sizeof(InputColumn))
        self._cells = <uint64_t*>zeroed_memory((self._n_columns + 1) * sizeof(uint64_t))
        self._event_of = <int*>zeroed_memory((len(self._events) + 1) * sizeof(int))
        for i in range(len(self._events)):
            self._event_of[i] = i
        for i in range(self._n_columns):
            self._columns[i].data = <const uint8_t*>&self._cells[i]
            if recipe._formats[i][1] == "z":
                self._columns[i].kind, self._columns[i].width = BYTES, 4
            elif recipe._formats[i][1]:
                self._columns[i].kind, self._columns[i].width = NUMBER, 8

    def __dealloc__(self):
        free(self._columns)
        free(self._cells)
        free(self._event_of)

    def write(self, uint8_t[::1] out, Py_ssize_t at, list rows not None, Py_ssize_t begin, Py_ssize_t enough,
              uint32_t opaque, tuple others not None, bint defect):
        """Write the frames of rows[begin:] to out[at:]. Return (index of the next row, offset of its frame).

        It stops before a row of another type than the first, before one whose frame does not fit, and once `enough`
        bytes were written. `others` are the cells of the last columns.
        """
        cdef EncodeJob job
        cdef FrameParts parts
        cdef EncodeStatus refusal
        cdef Py_ssize_t row = begin, start = at, count = len(rows)
        cdef int i
        if not 0 <= at <= out.shape[0] or not 0 <= begin <= count:
            raise IndexError("expected a place in the buffer, and a row")
        if begin == count:
            return row, at
        row_type = type(rows[begin])
        self._open(&job, opaque, defect)
        while row < count and at - start < enough:
            cells = rows[row]
            if type(cells) is not row_type:
                break
            if not isinstance(cells, tuple):
                raise TypeError(f"row {row}: expected a tuple, found {row_type.__name__}")
            self._load(<tuple>cells, others)
            for i in range(<int>INPUTS):
                if self._recipe._special[i] != NOWHERE:
                    job.inputs[i] = self._columns[self._recipe._special[i]]
            refusal, job.row = plan_frame(&job, 0, &parts), row
            self._recipe._check(refusal, &job, 0)
            if HEADER_SIZE + parts.body > out.shape[0] - at:
                break
            write_row(&job, 0, &parts, &out[at])
            at += HEADER_SIZE + parts.body
            row += 1
        return row, at

    cdef void _open(self, EncodeJob* job, uint32_t opaque, bint defect) noexcept:
        memset(job, 0, sizeof(EncodeJob))
        job.forms, job.first_form = self._recipe._forms, self._recipe._first_form
        job.event_of, job.n_numbers = self._event_of, len(self._events)
        job.columns = self._columns
        job.opaque_given, job.opaque, job.defect = True, opaque, defect
        job.opaque_column = self._recipe._special[<int>IN_OPAQUE]

    cdef int _load(self, tuple cells, tuple others) except -1:
        """Load a tuple into the columns, which have one row."""
        cdef int i, n = len(cells)
        if n + len(others) != self._n_columns:
            raise ValueError(f"expected {self._n_columns} cells, found {n} and {len(others)}")
        for i in range(self._n_columns):
            if self._columns[i].kind != ABSENT:
                self._load_cell(i, cells[i] if i < n else others[i - n])
        return 0

    cdef inline int _load_cell(self, int i, cell) except -1:
        cdef InputColumn* column = &self._columns[i]
        column.valid = &self._nothing if cell is None else NULL
        if cell is None:
            return 0
        if column.kind == BYTES:
            if len(<bytes?>cell) > MOST_DATA:
                raise UsageError(f"expected a frame of less than 4 GiB, found {len(cell)} bytes")
            column.bytes = <const uint8_t*>PyBytes_AS_STRING(cell)
            (<int32_t*>&self._cells[i])[1] = <int32_t>len(<bytes>cell)
        elif i == self._recipe._special[<int>IN_EVENT]:
            self._cells[i] = self._number_of(cell)
        else:
            self._cells[i] = PyLong_AsUnsignedLongLong(cell)
        return 0

    cdef inline uint64_t _number_of(self, event):
        cdef uint64_t i
        for i in range(<uint64_t>len(self._events)):
            # Names are nearly always the same objects as in the table, so identity is tried first.
            if self._events[i] is event:
                return i
        return self._events.index(event) if event in self._events else len(self._events)
