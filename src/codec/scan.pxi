# The decoding loop: frames in, rows and control frames out.
#
# Each frame is read once. Rows are written straight into their columns; all other frames that matter are copied aside
# as control frames, with the number of rows before them. These are plain functions on one structure, without Python
# objects and without the GIL, so that the compiler can inline them into one loop.
#
# Invariant of all lengths: `check_frame` has held the lengths of the header against the body length, and the body
# length against the bytes that are there. Lengths inside a frame are held against the room that is left in it before
# they are used. Beyond the last byte of a buffer, SLACK bytes may be read, never used.

cdef enum Status:
    # No whole frame is left, or nothing is wrong so far.
    MORE
    # A row belongs to a closed stream.
    DROPPED
    # The batch has reached a limit.
    FULL
    # A control frame follows snapshots of its stream that Python does not know of yet.
    UNREPORTED
    NO_MEMORY
    # From here on, the frame at the beginning of the buffer breaks the protocol. For the first two, Python finds out
    # how, by reading the frame again through the tables.
    BAD_FRAME
    BAD_SHAPE
    BAD_COLLECTION
    BAD_KEY
    BAD_SNAPPY
    BAD_SIZE
    BAD_XATTRS
    BAD_DATATYPE
    BAD_TEXT
    BAD_DOCUMENT
    SEQNO_NOT_RISING
    BEYOND_SNAPSHOT
    NO_STREAM
    NO_SNAPSHOT
    TOO_MANY_STREAMS

cdef enum:
    DATATYPE_AT = 5
    OPAQUE_AT = 12
    CAS_AT = 16
    JSON_BIT = 1
    SNAPPY_BIT = 2
    XATTR_BIT = 4
    # Bits that no server has a meaning for: the value may be in any form.
    UNKNOWN_BITS = 0xF8
    # Of framing extras; beside NOWHERE.
    MALFORMED = -2
    # Keys and values up to this size are copied by instructions of fixed size. Not above SLACK.
    SMALL = 32
    # A snappy element of 3 bytes gives 64 at most, so a block that announces more is malformed. Checked before memory
    # is allocated.
    SNAPPY_RATIO = 22

cdef struct ReadBuffer:
    # Received bytes. Those from `begin` to `end` are not decoded yet.
    Memory* memory
    Py_ssize_t begin
    Py_ssize_t end
    # Index among DecodeState.sources; NOWHERE if no view of the current batch points into it.
    int number

cdef struct ControlEntry:
    # Rows of the batch before the frame.
    int64_t row
    # Where its bytes are in DecodeState.control_bytes.
    int64_t data_at
    int64_t size
    # Bytes of the connection before it, and bytes of the batch for flow control before it.
    int64_t stream_offset
    int64_t flow_bytes
    # Seqno of the last row of its stream before it.
    uint64_t last_seqno

cdef struct PassedSnapshot:
    # A snapshot that a stream has received whole, by its end. The marker after it is no control frame.
    uint64_t stream
    uint64_t end

cdef struct Row:
    # Parts of a frame that becomes a row; a size or id is NOWHERE if the frame has no such part.
    # Offsets of fields count from bases[0] for the header, from bases[1] for all after framing extras.
    const uint8_t* bases[2]
    const uint8_t* key
    int64_t key_size
    const uint8_t* value
    int64_t value_size
    const uint8_t* xattrs
    int64_t xattrs_size
    int64_t collection
    uint64_t seqno
    StreamState* stream
    int stream_id
    # True if the value is in our arena or scratch memory, not in the received bytes.
    bint inflated
    # In quarantine, why the value, or its document, could not be read; else MORE.
    Status problem
    # Size of a value that has to be UTF-8 and is not, so that it becomes null, without bytes; else NOWHERE.
    int64_t bad_text_size

cdef struct DecodeState

ctypedef Status (*ExamineRow)(DecodeState* state, Row* row, const Shape* shape, uint8_t datatype) noexcept nogil

cdef struct DecodeState:
    # Options, fixed when the decoder is made.
    const Shape* shapes
    const ColumnSpec* specs
    # By kind of magic and opcode, the index of the first shape; NOWHERE if the plan has none.
    const int (*routes)[256]
    # By Source, the column that has it; NOWHERE if none has.
    const int* column_of
    int n_columns
    uint64_t max_frame
    int64_t max_value
    bint collections
    bint inflate
    bint split_xattrs
    bint map_xattrs
    # True if the options allow `decode_run`.
    bint fast_path
    # True if values have to be parsed, for a column of documents or a condition on them.
    bint reads_documents
    # Looks into unpacked values for documents and for text; NULL if nothing asks for that. A pointer, so that the loop
    # itself stays small.
    ExamineRow examine
    # True if rows have to be looked into: one test for all that few decoders ask for.
    bint checks_rows
    # Bits of a datatype for which the value has to be unpacked. Values without them are copied as they are.
    uint8_t unpack_bits
    bint check_keys
    bint check_values
    bint quarantine
    bint views
    # Columns of documents, if the plan has them, and errors. `keep_bad_documents`: one that is wrong does not stop the
    # loop.
    DocumentBuilder documents
    bint keep_bad_documents
    const SelectedRows* selected
    JsonReader json
    # The current batch: rows in the columns, rows that there is memory for, and rows that the batch before suggests.
    Columns columns
    int64_t rows
    int64_t room
    int64_t expected_rows
    # Bytes of the current batch: all of them, held against max_bytes; and those that count for flow control.
    int64_t batch_bytes
    int64_t flow_bytes
    int64_t max_rows
    int64_t max_bytes
    # Memory that the views of the batch point into. The batch is an owner of each.
    Memory** sources
    int n_sources
    # Inflated values: of the whole batch, with views; else of one row.
    uint8_t* arena
    int64_t arena_used
    int64_t arena_room
    uint8_t* scratch
    int64_t scratch_room
    # Control frames since Python fetched them, and their bytes.
    ControlEntry* controls
    int64_t n_controls
    int64_t controls_room
    uint8_t* control_bytes
    int64_t control_bytes_used
    int64_t control_bytes_room
    # True to pass on from a whole snapshot to the next without Python; and those passed since Python fetched them.
    bint passes_snapshots
    PassedSnapshot* passed
    int64_t n_passed
    int64_t passed_room
    # The connection. `last_stream` is the stream of the last row, or NULL, by `last_key`: a cache of one entry that
    # has to be cleared whenever the table may have moved its entries.
    StreamTable streams
    uint64_t last_key
    StreamState* last_stream
    int64_t stream_offset
    # True to refuse rows of streams that the consumer did not open.
    bint only_open
    # Rows of closed streams, which were dropped.
    int64_t stray_rows
    # Since the batch began: rows that were not selected, and rows with a `problem`.
    int64_t unselected_rows
    int64_t bad_rows
    # Seqno for the text of SEQNO_NOT_RISING and BEYOND_SNAPSHOT.
    uint64_t error_detail
    # True once rows were removed from a batch: the streams' last seqnos may be too high from then on.
    bint rows_removed


cdef Status scan(DecodeState* state, ReadBuffer* buf) noexcept nogil:
    """Decode whole frames until the buffer has no more, a limit is reached, or a frame is malformed.

    On return the buffer begins at the first frame that was not decoded: with FULL, the one that goes into the next
    batch; with an error, the malformed one.
    """
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef const Shape* shape = NULL
    cdef uint32_t head, last_head = 0
    cdef uint64_t size
    cdef int kind, route
    cdef Check check
    cdef Status status
    if buf.memory == NULL:
        return MORE
    end = buf.memory.data + buf.end
    while True:
        at = buf.memory.data + buf.begin
        check = check_frame(at, end - at, state.max_frame, &size)
        if check != WHOLE:
            return MORE if check == INCOMPLETE else BAD_FRAME
        # A batch takes at least one frame, however large: else it would never be delivered.
        if state.rows >= state.max_rows or \
                (state.batch_bytes + <int64_t>size > state.max_bytes and state.batch_bytes > 0):
            return FULL
        # Most frames have the shape of the one before. Magic, opcode and extras length decide it, unless the shape is
        # ambiguous; `head` has these three.
        head = load16(at) | <uint32_t>at[EXTRAS_LENGTH_AT] << 16
        if head != last_head or shape == NULL or shape.ambiguous:
            kind = 0 if at[0] == 0x80 or at[0] == 0x08 else 1 if at[0] == 0x81 or at[0] == 0x18 else at[0] - 0x80
            route = state.routes[kind][at[OPCODE_AT]]
            shape = NULL
            if route != NOWHERE:
                status = find_shape(state, at, route, &shape)
                if status != MORE:
                    return status
            last_head = head
        if shape != NULL and shape.event != NOWHERE:
            if shape.plain and state.fast_path and may_start_run(state, at) and decode_run(state, buf, end, shape):
                continue
            status = put_row(state, at, size, shape, end, buf)
        else:
            status = put_control(state, at, size, shape)
        if status != MORE:
            return status
        # Flow control counts requests, of which noops are none.
        if (at[0] == 0x80 or at[0] == 0x08) and (shape == NULL or shape.effect != UNCOUNTED):
            state.flow_bytes += size
        state.batch_bytes += size
        buf.begin += size
        state.stream_offset += size


cdef Status find_shape(const DecodeState* state, const uint8_t* at, int route, const Shape** found) noexcept nogil:
    """Find the shape of a frame; NULL for a control frame that has none.

    Return BAD_SHAPE for a row that fits no shape. Control frames are checked later, when Python reads them.
    """
    cdef const Shape* shape
    cdef bint row = False
    cdef Py_ssize_t infos = at[KEY_LENGTH_AT] if is_framed(at[0]) else 0
    while route != NOWHERE:
        shape = &state.shapes[route]
        route = shape.next
        if shape.type != NOWHERE and shape.type != at[DATATYPE_AT]:
            continue
        row = shape.event != NOWHERE
        if shape.extras_length != at[EXTRAS_LENGTH_AT]:
            continue
        if shape.engine_at != NOWHERE and shape.engine_length != NOWHERE:
            if load16(at + infos + shape.engine_at) != shape.engine_length:
                continue
        if not conditions_hold(shape, at + infos):
            continue
        found[0] = shape
        return MORE
    return BAD_SHAPE if row else MORE


cdef bint conditions_hold(const Shape* shape, const uint8_t* at) noexcept nogil:
    """Return whether fields of the extras have the values that the shape requires, such as a version."""
    cdef const Condition* condition
    cdef uint64_t number
    cdef int i
    for i in range(shape.n_conditions):
        condition = &shape.conditions[i]
        number = load32(at + condition.offset) if condition.width == 4 else at[condition.offset]
        if number != condition.number:
            return False
    return True


# ------------------------------------------------------------------------------------- controls

cdef Status put_control(DecodeState* state, const uint8_t* at, uint64_t size, const Shape* shape) noexcept nogil:
    """Copy a control frame aside for Python, and apply its effect on the rows that follow."""
    cdef StreamState* stream = stream_find(&state.streams, stream_key_of(at))
    cdef uint64_t last = 0 if stream == NULL else stream.last_seqno
    cdef Status status
    if stream != NULL and state.passes_snapshots:
        if shape != NULL and follows_whole_snapshot(stream, at, size, shape):
            return pass_snapshot(state, stream, at, shape)
        if stream.has_passed:
            return UNREPORTED
    status = apply_effect(state, at, size, shape) if shape != NULL and shape.effect != NOTHING else MORE
    if status != MORE:
        return status
    if state.n_controls == state.controls_room:
        if not grow(<uint8_t**>&state.controls, (2 * state.controls_room + 16) * sizeof(ControlEntry)):
            return NO_MEMORY
        state.controls_room = 2 * state.controls_room + 16
    if state.control_bytes_room - state.control_bytes_used < <int64_t>size:
        if not grow(&state.control_bytes, max(2 * state.control_bytes_room, state.control_bytes_used + <int64_t>size)):
            return NO_MEMORY
        state.control_bytes_room = max(2 * state.control_bytes_room, state.control_bytes_used + <int64_t>size)
    state.controls[state.n_controls] = ControlEntry(
        state.rows, state.control_bytes_used, size, state.stream_offset, state.flow_bytes, last
    )
    memcpy(state.control_bytes + state.control_bytes_used, at, size)
    state.control_bytes_used += size
    state.n_controls += 1
    return MORE


cdef uint64_t stream_key_of(const uint8_t* at) noexcept nogil:
    """Return the key of the stream that a frame belongs to."""
    cdef int infos = at[KEY_LENGTH_AT] if is_framed(at[0]) else 0
    return stream_key(load32(at + OPAQUE_AT), load16(at + VBUCKET_AT), max(stream_id_in(at, infos), 0))


cdef inline bint follows_whole_snapshot(const StreamState* stream, const uint8_t* at, uint64_t size,
                                        const Shape* shape) noexcept nogil:
    """Return whether a marker says no more than that the next snapshot begins, after the last row of the one before.

    So it is between almost all snapshots of a live stream, which are small: a return to Python for each would cost
    more than their rows.
    """
    cdef uint64_t start, end
    if not shape.only_window or at[0] != 0x80 or at[DATATYPE_AT] or size != <uint64_t>HEADER_SIZE + shape.extras_length:
        return False
    if not stream.has_window or stream.closed or stream.refused:
        return False
    start, end = load64(at + shape.start_at), load64(at + shape.end_at)
    return stream.last_seqno == stream.end and stream.floor == stream.end and stream.end < start <= end


cdef Status pass_snapshot(DecodeState* state, StreamState* stream, const uint8_t* at,
                          const Shape* shape) noexcept nogil:
    """Note that a stream has received its snapshot whole, and begin the next one."""
    if state.n_passed == state.passed_room:
        if not grow(<uint8_t**>&state.passed, (2 * state.passed_room + 1024) * sizeof(PassedSnapshot)):
            return NO_MEMORY
        state.passed_room = 2 * state.passed_room + 1024
    state.passed[state.n_passed] = PassedSnapshot(stream.key, stream.end)
    state.n_passed += 1
    stream.has_passed = True
    stream.start = load64(at + shape.start_at)
    stream.end = stream.highest = load64(at + shape.end_at)
    return MORE


cdef Status apply_effect(DecodeState* state, const uint8_t* at, uint64_t size, const Shape* shape) noexcept nogil:
    """Begin a snapshot of a stream, move it on, or remove a stream that ends."""
    cdef int infos = at[KEY_LENGTH_AT] if is_framed(at[0]) else 0
    cdef uint64_t key = stream_key_of(at)
    cdef const uint8_t* extras = at + infos
    cdef StreamState* stream
    # The table is about to change, which moves entries.
    state.last_stream = NULL
    if shape.effect != SNAPSHOT and shape.effect != DISORDER:
        if shape.effect == STREAM_END:
            stream_close(&state.streams, key)
        elif shape.effect == ADVANCE and state.only_open and size >= <uint64_t>(infos + shape.seqno_at + 8):
            stream = stream_find(&state.streams, key)
            if stream != NULL:
                stream.floor = max(stream.floor, load64(extras + shape.seqno_at))
        return MORE
    # A marker that is too short for its window is malformed: Python says so when it reads the frame.
    if size < <uint64_t>(infos + max(shape.end_at + 8, HEADER_SIZE + shape.extras_length)):
        return MORE
    if state.only_open:
        stream = stream_find(&state.streams, key)
        if stream == NULL or stream.closed or stream.refused:
            return MORE
    else:
        stream = stream_open(&state.streams, key)
        if stream == NULL:
            return TOO_MANY_STREAMS
        # Without a position to compare with, each snapshot may begin anywhere.
        stream.floor, stream.above_zero = 0, False
    stream.out_of_order = shape.effect == DISORDER and load32(extras + HEADER_SIZE) & 1
    stream.has_window = shape.effect == SNAPSHOT and shape.start_at != NOWHERE
    if stream.has_window:
        stream.start = load64(extras + shape.start_at)
        stream.end = load64(extras + shape.end_at)
    if not state.only_open:
        stream.highest = ~<uint64_t>0
    elif stream.has_window:
        stream.highest = stream.end
    else:
        stream.highest = ~<uint64_t>0 if shape.effect == SNAPSHOT or stream.out_of_order else 0
    return MORE


cdef int stream_id_in(const uint8_t* at, int infos) noexcept nogil:
    """Return the stream id in framing extras, NOWHERE if there is none, MALFORMED if an info exceeds them.

    infos: length of the framing extras.

    Only requests carry stream ids: in responses the same id is that of another info.
    """
    cdef const uint8_t* info = at + HEADER_SIZE
    cdef const uint8_t* end = info + infos
    cdef bint asks = at[0] == 0x08
    cdef int number, length, found = NOWHERE
    while info < end:
        number, length = info[0] >> 4, info[0] & 15
        info += 1
        if number == 15:
            if info == end:
                return MALFORMED
            number += info[0]
            info += 1
        if length == 15:
            if info == end:
                return MALFORMED
            length += info[0]
            info += 1
        if end - info < length:
            return MALFORMED
        if asks and number == STREAM_ID_INFO and length == 2 and found == NOWHERE:
            found = load16(info)
        info += length
    return found


# ----------------------------------------------------------------------------------------- rows

cdef inline Status put_row(DecodeState* state, const uint8_t* at, uint64_t size, const Shape* shape, const uint8_t* end,
                           ReadBuffer* buf) noexcept nogil:
    """Check the parts of a frame, and store it as a row."""
    cdef Row row
    cdef int infos = 0
    cdef int64_t key_size, engine = 0, meta = 0, room
    cdef Status status

    # Lengths: those of the header add up, those inside the extras are held against what is left.
    row.stream_id = row.collection = row.xattrs_size = row.bad_text_size = NOWHERE
    row.inflated, row.problem = False, MORE
    if is_framed(at[0]):
        infos, key_size = at[KEY_LENGTH_AT], at[KEY_LENGTH_AT + 1]
        # Servers since 6.5 send some frames with a stream id that the header does not count. No correct frame has magic
        # 0x08 and no framing extras, so this cannot be mistaken for one.
        if infos == 0 and shape.defect and at[HEADER_SIZE] == UNCOUNTED_HEAD and \
                size >= HEADER_SIZE + UNCOUNTED_LENGTH + <uint64_t>shape.extras_length + <uint64_t>key_size:
            infos = UNCOUNTED_LENGTH
        row.stream_id = stream_id_in(at, infos)
        if row.stream_id == MALFORMED:
            return BAD_SHAPE
    else:
        key_size = load16(at + KEY_LENGTH_AT)
    row.bases[0], row.bases[1] = at, at + infos
    if shape.engine_at != NOWHERE:
        engine = load16(row.bases[1] + shape.engine_at)
    if shape.meta_at != NOWHERE:
        meta = load16(row.bases[1] + shape.meta_at)
    room = <int64_t>size - HEADER_SIZE - infos - shape.extras_length - key_size
    if engine > room or meta > room - engine:
        return BAD_SHAPE
    row.key, row.key_size = row.bases[1] + HEADER_SIZE + shape.extras_length + engine, key_size
    row.value, row.value_size = row.key + key_size, room - engine - meta
    if (key_size == 0 and shape.key_must) or (key_size and not shape.key_may):
        return BAD_SHAPE
    if (row.value_size == 0 and shape.value_must) or (row.value_size and not shape.value_may):
        return BAD_SHAPE
    if shape.content_length != NOWHERE and row.value_size != shape.content_length:
        return BAD_SHAPE

    row.stream = stream_of(state, stream_key(load32(at + OPAQUE_AT), load16(at + VBUCKET_AT), max(row.stream_id, 0)))
    row.seqno = load64(row.bases[1] + shape.seqno_at) if shape.seqno_at != NOWHERE else 0
    if row.stream == NULL:
        if state.only_open:
            return NO_STREAM
    elif row.seqno <= row.stream.floor or row.seqno > row.stream.highest:
        status = misplaced(state, row.stream, row.seqno, shape)
        if status != MORE:
            return MORE if status == DROPPED else status

    if state.collections and shape.prefixed and not split_key(&row):
        return BAD_COLLECTION
    if state.checks_rows:
        status = check_row(state, &row, shape, at[DATATYPE_AT])
        if status != MORE:
            return pass_over(state, &row) if status == DROPPED else status
    elif row.value_size and shape.type == NOWHERE and at[DATATYPE_AT] & state.unpack_bits:
        status = unpack_value(state, &row, at[DATATYPE_AT])
        if status != MORE:
            return status
    return store_row(state, &row, shape, end, buf)


cdef Status check_row(DecodeState* state, Row* row, const Shape* shape, uint8_t datatype) noexcept nogil:
    """Look into key and value as far as options ask for it. DROPPED if the row is not selected."""
    cdef Status status
    if state.check_keys and state.column_of[<int>KEY] != NOWHERE and not is_utf8(row.key, row.key + row.key_size):
        return BAD_KEY
    if state.selected != NULL and shape.selectable and not is_selected(state.selected, row, shape.event):
        return DROPPED
    if row.value_size and shape.type == NOWHERE and datatype & state.unpack_bits:
        status = unpack_value(state, row, datatype)
        if status != MORE:
            return status
    return MORE if state.examine == NULL else state.examine(state, row, shape, datatype)


cdef Status pass_over(DecodeState* state, const Row* row) noexcept nogil:
    """Move the stream on past a row that is not selected."""
    move_stream(row.stream, row.seqno)
    state.unselected_rows += 1
    return MORE


cdef inline void move_stream(StreamState* stream, uint64_t seqno) noexcept nogil:
    """Note the seqno of a row. Out of order, the highest one counts."""
    if stream != NULL:
        stream.last_seqno = max(stream.last_seqno, seqno) if stream.out_of_order else seqno
        stream.floor = max(stream.floor, stream.last_seqno)


cdef Status misplaced(DecodeState* state, StreamState* stream, uint64_t seqno, const Shape* shape) noexcept nogil:
    """Return what is wrong with a row whose seqno is not between the bounds of its stream; MORE if nothing is."""
    if stream.closed:
        state.stray_rows += 1
        return DROPPED
    if stream.highest == 0:
        return NO_SNAPSHOT
    if stream.out_of_order or shape.seqno_at == NOWHERE:
        return MORE
    if seqno > stream.highest:
        state.error_detail = stream.highest
        return BEYOND_SNAPSHOT
    # Seqnos rise within a snapshot; within a stream, where its position is known.
    if stream.floor or stream.above_zero:
        state.error_detail = stream.floor
        return SEQNO_NOT_RISING
    stream.above_zero = True
    return MORE


cdef inline StreamState* stream_of(DecodeState* state, uint64_t key) noexcept nogil:
    """Return the stream with this key, or NULL. It is often that of the row before."""
    if state.last_stream == NULL or state.last_key != key:
        state.last_stream, state.last_key = stream_find(&state.streams, key), key
    return state.last_stream


cdef inline Status store_row(DecodeState* state, const Row* row, const Shape* shape, const uint8_t* end,
                             ReadBuffer* buf) noexcept nogil:
    """Write a checked row into the columns. Only memory can be missing from here on.

    `state.rows` grows last: a row that fails on the way leaves no trace but bytes that the next one overwrites.
    """
    cdef const int* column_of = state.column_of
    cdef Columns* columns = &state.columns
    cdef StreamState* stream = row.stream
    cdef int64_t n = state.rows
    if n == state.room and not grow_rows(state):
        return NO_MEMORY
    if column_of[<int>KEY] != NOWHERE:
        if not put_bytes(state, column_of[<int>KEY], n, row.key, row.key_size, end, buf, False):
            return NO_MEMORY
    if column_of[<int>VALUE] != NOWHERE:
        if not put_bytes(state, column_of[<int>VALUE], n, row.value, row.value_size, end, buf, row.inflated):
            return NO_MEMORY
    if column_of[<int>EVENT] != NOWHERE:
        columns.fixed[column_of[<int>EVENT]][n] = shape.event
    move_stream(stream, row.seqno)
    if column_of[<int>SNAPSHOT_START] != NOWHERE:
        put_snapshot_bound(columns, column_of[<int>SNAPSHOT_START], n, stream, stream.start if stream != NULL else 0)
    if column_of[<int>SNAPSHOT_END] != NOWHERE:
        put_snapshot_bound(columns, column_of[<int>SNAPSHOT_END], n, stream, stream.end if stream != NULL else 0)
    if row.collection != NOWHERE and column_of[<int>COLLECTION] != NOWHERE:
        put_number(state, column_of[<int>COLLECTION], n, row.collection)
    if column_of[<int>TIMESTAMP] != NOWHERE:
        # A CAS is nanoseconds since 1970; its low 16 bits are a counter within a tick of the clock.
        (<int64_t*>columns.fixed[column_of[<int>TIMESTAMP]])[n] = \
            <int64_t>((load64(row.bases[0] + CAS_AT) & ~<uint64_t>0xFFFF) // 1000)
    if row.stream_id != NOWHERE or row.xattrs_size != NOWHERE or row.problem != MORE:
        if not put_rare_columns(state, row, n, end, buf):
            return NO_MEMORY
    move_fields(columns, shape, row.bases, n)
    state.rows = n + 1
    return MORE


cdef bint put_rare_columns(DecodeState* state, const Row* row, int64_t n, const uint8_t* end,
                           ReadBuffer* buf) noexcept nogil:
    """Write stream id, xattrs and error, which few rows have. Out of line, to keep the common row short."""
    cdef const int* column_of = state.column_of
    cdef int64_t size
    if row.stream_id != NOWHERE and column_of[<int>STREAM_ID] != NOWHERE:
        put_number(state, column_of[<int>STREAM_ID], n, row.stream_id)
    if row.xattrs_size != NOWHERE and column_of[<int>XATTRS] != NOWHERE:
        set_valid(&state.columns, column_of[<int>XATTRS], n)
        if state.map_xattrs:
            if not put_map(state, column_of[<int>XATTRS], n, row):
                return False
        else:
            if not state.views:
                fill_offsets(&state.columns, column_of[<int>XATTRS], n)
            if not put_bytes(state, column_of[<int>XATTRS], n, row.xattrs, row.xattrs_size, end, buf, row.inflated):
                return False
    if row.problem != MORE:
        state.bad_rows += 1
        size = row.value_size
        if row.bad_text_size != NOWHERE:
            size = row.bad_text_size
            set_null(&state.columns, column_of[<int>VALUE], n)
        if column_of[<int>BAD_VALUE] != NOWHERE:
            if not put_rare_bytes(&state.columns, column_of[<int>BAD_VALUE], n, row.value, size):
                return False
        if column_of[<int>ERROR] != NOWHERE:
            return put_error(state, column_of[<int>ERROR], n, row.problem)
    return True


cdef inline bint split_key(Row* row) noexcept nogil:
    """Split the collection id off a key. Return False if it is malformed."""
    cdef int prefix = collection_in(row.key, row.key_size, &row.collection)
    row.key += prefix
    row.key_size -= prefix
    return prefix > 0


cdef inline int collection_in(const uint8_t* key, int64_t size, int64_t* collection) noexcept nogil:
    """Return the length of the collection id before a key; 0 if it is not the shortest LEB128 of at most 32 bits.

    Longer forms of an id are refused: with them, two keys on the wire could be the same document.
    """
    cdef uint64_t number = 0
    cdef int i
    for i in range(<int>min(size, <int64_t>5)):
        number |= <uint64_t>(key[i] & 0x7F) << (7 * i)
        if key[i] < 0x80:
            collection[0] = number
            return 0 if (i and key[i] == 0) or number >> 32 else i + 1
    return 0
