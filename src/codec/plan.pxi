# Plans: the tables as C structures. Which frames are rows, and which of their bytes go into which column.
#
# dcp.columns.plan compiles them from the tables. Nothing here knows the meaning of an opcode or a column.

cpdef enum Source:
    FIELD
    EVENT
    TIMESTAMP
    COLLECTION
    KEY
    VALUE
    XATTRS
    SNAPSHOT_START
    SNAPSHOT_END
    STREAM_ID
    ERROR
    BAD_VALUE
    DOCUMENT

cpdef enum Effect:
    NOTHING
    SNAPSHOT
    DISORDER
    STREAM_END
    UNCOUNTED
    ADVANCE

# How a field gets into a column: copied, written as 0 because the frame lacks it, or widened. The order matters:
# `FieldMove`s of a shape are sorted by it, and `Shape.ends` is indexed by it.
cdef enum MoveKind:
    COPY8
    COPY4
    COPY2
    COPY1
    ZERO8
    ZERO4
    ZERO2
    ZERO1
    WIDEN4_TO_8
    WIDEN2_TO_8
    WIDEN1_TO_8
    WIDEN2_TO_4
    WIDEN1_TO_4
    MOVES

cdef enum:
    MAX_COLUMNS = 64
    SOURCES = <int>DOCUMENT + 1
    NOWHERE = -1
    ANY_LENGTH = -2
    # Not above the smallest frame, so that event names as text never exceed the size of the batch's frames, and 32-bit
    # offsets suffice for them.
    LONGEST_EVENT = HEADER_SIZE

cdef struct FieldMove:
    # A field of a frame and its column. `after_infos`: the offset counts from after the framing extras.
    uint16_t offset
    uint8_t column
    bint after_infos

cdef struct Condition:
    # A value that a field of the extras must have.
    int offset
    int width
    uint64_t number

cdef struct Shape:
    # One form of one message, as far as the loop has to know it. An offset or length is NOWHERE if the form has none.
    # `next` is the shape to try next, of those with the same opcode.
    int next
    int type
    int event
    int effect
    int extras_length
    int engine_at
    int engine_length
    int meta_at
    int seqno_at
    int start_at
    int end_at
    # True for a marker that has a window and flags, and nothing else.
    bint only_window
    # Values that fields of the extras must have for this form, and the length of the value then.
    int n_conditions
    Condition conditions[2]
    int content_length
    bint prefixed
    bint key_must
    bint key_may
    bint value_must
    bint value_may
    # True if a selection may leave its rows out.
    bint selectable
    # True if the value is a document; `document_may_lack`: if there is one.
    bint document
    bint document_may_lack
    bint defect
    # True if magic, opcode and extras length are not enough to tell it from its siblings.
    bint ambiguous
    # True if `decode_run` can store its frames.
    bint plain
    bint widens
    # Ends of the moves of each kind in `ops`. They begin where those of the kind before end.
    const FieldMove* ends[MOVES]
    int n_valid
    uint8_t valid[MAX_COLUMNS]
    FieldMove* ops

cdef struct ColumnSpec:
    int source
    # Bytes of a row in the fixed part of the current batch; 0 for an offset, which has 4. An event is a number there,
    # whatever it becomes later.
    int width
    bint binary
    bint mapped
    bint nullable


cdef int stored_width(str format, int source) except -1:
    """Return the bytes of a row in the fixed part of a column of this Arrow type; 0 for columns with offsets."""
    if format in ("L", "l") or format.startswith("ts"):
        return 8
    if format in ("vz", "vu"):
        return 16
    if format in ("I", "i"):
        return 4
    if format in ("S", "s"):
        return 2
    if format in ("C", "c"):
        return 1
    if format in ("z", "u", "+m") or source == DOCUMENT:
        return 0
    raise ValueError(f"no column can have the Arrow type {format!r}")


cdef MoveKind move_of(int wire, int stored) except? MOVES:
    if wire == stored:
        return {8: COPY8, 4: COPY4, 2: COPY2, 1: COPY1}[wire]
    return {
        (4, 8): WIDEN4_TO_8, (2, 8): WIDEN2_TO_8, (1, 8): WIDEN1_TO_8, (2, 4): WIDEN2_TO_4, (1, 4): WIDEN1_TO_4,
    }[wire, stored]


cdef MoveKind zero_of(int stored) except? MOVES:
    return {8: ZERO8, 4: ZERO4, 2: ZERO2, 1: ZERO1}[stored]


cdef class Plan:
    """A dialect and a choice of columns, ready for the loop. Immutable, so threads may share it."""

    cdef readonly tuple names, formats, events
    cdef int n_columns, n_shapes
    cdef ColumnSpec specs[MAX_COLUMNS]
    cdef int column_of[SOURCES]
    # Schema of the column of documents, if there is one.
    cdef DocumentPlan document
    cdef int routes[4][256]
    cdef Shape* shapes
    cdef ArrowSchema schema
    cdef Memory* event_offsets
    cdef Memory* event_data

    def __cinit__(self, columns, events, shapes, DocumentPlan document=None):
        """Compile a plan.

        columns: (name, Arrow format, source, nullable, declared nullable) of each column.
        events: names of the messages that become rows.
        shapes: a mapping for each form, see dcp.columns.plan; forms of one opcode in the order to try them.
        document: schema of the column of documents.
        """
        cdef int i
        if not 0 < len(columns) <= MAX_COLUMNS:
            raise ValueError(f"columns: expected 1 to {MAX_COLUMNS}, found {len(columns)}")
        self.names = tuple(column[0] for column in columns)
        self.formats = tuple(column[1] for column in columns)
        self.events = tuple(events)
        self.n_columns = len(columns)
        self.document = document
        memset(self.column_of, 0xFF, sizeof(self.column_of))
        memset(self.routes, 0xFF, sizeof(self.routes))
        for i, (_, format, source, nullable, _) in enumerate(columns):
            binary = format in ("z", "u", "vz", "vu")
            width = 1 if source == EVENT else stored_width(format, source)
            self.specs[i] = ColumnSpec(source, width, binary, format == "+m" and source != DOCUMENT, nullable)
            if source != FIELD:
                self.column_of[<int>source] = i
        self._name_events()
        self._describe(columns)
        self.shapes = <Shape*>zeroed_memory((len(shapes) + 1) * sizeof(Shape))
        for row in shapes:
            self._add(row)

    def __dealloc__(self):
        cdef int i
        for i in range(self.n_shapes):
            PyMem_Free(self.shapes[i].ops)
        free(self.shapes)
        if self.schema.release != NULL:
            self.schema.release(&self.schema)
        memory_release(self.event_offsets)
        memory_release(self.event_data)

    def __arrow_c_schema__(self):
        cdef ArrowSchema* schema = <ArrowSchema*>zeroed_memory(sizeof(ArrowSchema))
        capsule = PyCapsule_New(schema, "arrow_schema", drop_schema)
        if copy_schema(&self.schema, schema) < 0:
            raise MemoryError
        return capsule

    cdef int _name_events(self) except -1:
        """Make the dictionary of the column `event`: UTF-8 names."""
        text = "".join(self.events).encode()
        if any(len(name.encode()) > LONGEST_EVENT for name in self.events):
            raise ValueError(f"events: expected names of at most {LONGEST_EVENT} bytes, found {self.events}")
        self.event_offsets = memory_new(4 * (len(self.events) + 1))
        self.event_data = memory_new(len(text))
        if self.event_offsets == NULL or self.event_data == NULL:
            raise MemoryError
        memcpy(self.event_data.data, <const char*>text, len(text))
        position = 0
        for i, name in enumerate(("", *self.events)):
            position += len(name.encode())
            (<int32_t*>self.event_offsets.data)[i] = position
        return 0

    cdef int _describe(self, columns) except -1:
        cdef int i
        cdef ArrowSchema* child
        if start_schema(&self.schema, "+s", "", 0, self.n_columns) == NULL:
            raise MemoryError
        for i, (name, format, source, _, nullable) in enumerate(columns):
            child = <ArrowSchema*>zeroed_memory(sizeof(ArrowSchema))
            self.schema.children[i] = child
            if source == DOCUMENT:
                self.document.describe(child, 0, name.encode())
                continue
            wire_name, wire_format = name.encode(), format.encode()
            flags = ARROW_FLAG_NULLABLE if nullable else 0
            if start_schema(child, wire_format, wire_name, flags, 1 if format == "+m" else 0) == NULL:
                raise MemoryError
            if format == "+m":
                self._describe_entries(child)
            if source == EVENT and format == "c":
                child.dictionary = <ArrowSchema*>zeroed_memory(sizeof(ArrowSchema))
                if start_schema(child.dictionary, "u", "", 0, 0) == NULL:
                    raise MemoryError
        return 0

    cdef int _describe_entries(self, ArrowSchema* map) except -1:
        """Describe a map: a list of entries, each a struct of name and text."""
        cdef ArrowSchema* entries = <ArrowSchema*>zeroed_memory(sizeof(ArrowSchema))
        cdef int i
        map.children[0] = entries
        if start_schema(entries, "+s", "entries", 0, 2) == NULL:
            raise MemoryError
        for i in range(2):
            entries.children[i] = <ArrowSchema*>zeroed_memory(sizeof(ArrowSchema))
        if start_schema(entries.children[0], "u", "key", 0, 0) == NULL:
            raise MemoryError
        if start_schema(entries.children[1], "u", "value", ARROW_FLAG_NULLABLE, 0) == NULL:
            raise MemoryError
        return 0

    cdef int _add(self, row) except -1:
        cdef Shape* shape = &self.shapes[self.n_shapes]
        cdef Shape* sibling
        cdef int* route = &self.routes[<int>row["kind"]][<int>row["opcode"]]
        shape.next = NOWHERE
        shape.type, shape.event, shape.effect = row["type"], row["event"], row["effect"]
        shape.extras_length, shape.seqno_at, shape.meta_at = row["extras_length"], row["seqno_at"], row["meta_at"]
        shape.engine_at, shape.engine_length = row["engine_at"], row["engine_length"]
        shape.start_at, shape.end_at, shape.only_window = row["start_at"], row["end_at"], row["only_window"]
        shape.prefixed = row["prefixed"]
        shape.key_must, shape.key_may = row["key"]
        shape.value_must, shape.value_may = row["value"]
        shape.selectable = row["selectable"]
        shape.document, shape.document_may_lack = row["document"]
        shape.defect = row["defect"]
        shape.content_length = row["content_length"]
        for offset, width, number in row["conditions"]:
            shape.conditions[shape.n_conditions] = Condition(offset, width, number)
            shape.n_conditions += 1
        shape.ambiguous = shape.type != NOWHERE or shape.engine_at != NOWHERE or shape.n_conditions > 0
        self._compile(shape, row["places"])
        shape.plain = shape.event != NOWHERE and not shape.ambiguous and row["kind"] == 0 and shape.key_must \
            and not shape.value_must and shape.value_may and shape.seqno_at != NOWHERE
        while route[0] != NOWHERE:
            sibling = &self.shapes[route[0]]
            # A form without conditions is for what its siblings leave, so it depends on their conditions.
            if sibling.extras_length == shape.extras_length:
                shape.ambiguous = shape.ambiguous or sibling.ambiguous
                sibling.ambiguous = shape.ambiguous
            route = &sibling.next
        shape.plain = shape.plain and not shape.ambiguous
        route[0] = self.n_shapes
        self.n_shapes += 1
        return 0

    cdef int _compile(self, Shape* shape, places) except -1:
        """Sort the fields of this shape by how they get into their columns."""
        cdef int column, kind
        cdef FieldMove* op
        moves = [[] for _ in range(MOVES)]
        for column in range(self.n_columns):
            if self.specs[column].source != FIELD:
                continue
            place = places.get(self.names[column])
            if place is None:
                moves[<int>zero_of(self.specs[column].width)].append((0, column))
                continue
            offset, width = place
            moves[<int>move_of(width, self.specs[column].width)].append((offset, column))
            if self.specs[column].nullable:
                shape.valid[shape.n_valid] = column
                shape.n_valid += 1
        shape.ops = op = <FieldMove*>PyMem_Calloc(self.n_columns + 1, sizeof(FieldMove))
        if op == NULL:
            raise MemoryError
        for kind in range(<int>MOVES):
            for offset, column in moves[kind]:
                op[0] = FieldMove(offset, column, offset >= HEADER_SIZE)
                op += 1
            shape.ends[kind] = op
            shape.widens |= kind >= WIDEN4_TO_8 and len(moves[kind]) > 0
        return 0
