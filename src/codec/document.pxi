# Documents as columns: JSON values into the cells of a schema.
#
# Each type of the schema has a column of its own, which grows by a cell whenever its parent does. A struct first looks
# up all of its fields in one pass over the object, so that the last of several members with one name counts, then
# writes each field, or null where there is none. What does not fit its type becomes null, and the first reason in a
# document becomes the text of its error.
#
# Invariant of lengths: the texts of a column are never longer than the values they come from, so the limit of a batch
# bounds its offsets; and `budget` bounds the cells of a document.

cdef enum:
    # Cells that a document may take: this, and some bytes for each of its own. An empty object in a list takes two
    # bytes on the wire, and a cell in each column of its schema.
    DOCUMENT_BUDGET = 16 << 20
    BUDGET_PER_BYTE = 16
    ERROR_ROOM = 512
    # Bytes of a value, and of a step of a path, that an error shows.
    SHOWN_BYTES = 60

cdef struct DocumentColumn:
    # Cells of one type. `fixed` has numbers, bits, or offsets into `bytes` or the cells of the child.
    uint8_t* fixed
    uint8_t* valid
    ByteColumn bytes
    int64_t length
    int64_t room
    # Cells that the batch before suggests.
    int64_t expected
    # Of a list: the element that is being written. Of a map: its key.
    int64_t index
    yyjson_val* key

cdef struct DocumentBuilder:
    const DocumentNode* nodes
    const Member* members
    const Level* levels
    int n_nodes
    DocumentColumn* columns
    # Values of the fields of the structs that are being written.
    yyjson_val** slots
    JsonReader* reader
    # Bytes of cells in lists and maps that the current document takes, and may take.
    int64_t taken
    int64_t budget
    # What was wrong in the current document: the number of places, and the first of them as text.
    int64_t n_errors
    char error[ERROR_ROOM]
    int error_size
    # MORE, or why the current document cannot be written at all: NO_MEMORY, or BAD_DOCUMENT if it takes too much.
    Status status
    # Names of an object that becomes a map, sorted to find those that it has twice.
    yyjson_val** names
    int64_t names_room


# --------------------------------------------------------------------------------------- errors

cdef void say(DocumentBuilder* builder, const char* text, int64_t size) noexcept nogil:
    """Append bytes to the error, escaped as far as a terminal requires, and as many as there is room for."""
    cdef int64_t i
    cdef uint8_t c
    for i in range(size):
        c = text[i]
        if builder.error_size >= ERROR_ROOM - 8:
            return
        # Control characters of ASCII. Those of Latin-1 are C2 80 to C2 9F in UTF-8.
        if c == 0xC2 and i + 1 < size and <uint8_t>text[i + 1] < 0xA0:
            continue
        if c < 0x20 or c == 0x7F or (0x80 <= c < 0xA0 and i and <uint8_t>text[i - 1] == 0xC2):
            c = c"?"
        builder.error[builder.error_size] = c
        builder.error_size += 1


cdef void say_text(DocumentBuilder* builder, const char* text) noexcept nogil:
    say(builder, text, strlen(text))


cdef void say_number(DocumentBuilder* builder, int64_t number) noexcept nogil:
    cdef char digits[20]
    cdef int at = 20
    while True:
        at -= 1
        digits[at] = c"0" + <char>(number % 10)
        number //= 10
        if number == 0:
            break
    say(builder, digits + at, 20 - at)


cdef void say_shortened(DocumentBuilder* builder, const char* text, int64_t size) noexcept nogil:
    """Append text up to SHOWN_BYTES, cut between characters."""
    cdef int64_t shown = size
    if shown > SHOWN_BYTES:
        shown = SHOWN_BYTES
        while shown and (<uint8_t>text[shown] & 0xC0) == 0x80:
            shown -= 1
    say(builder, text, shown)
    if shown < size:
        say_text(builder, b"...")


cdef void say_path(DocumentBuilder* builder, int number) noexcept nogil:
    """Append the path of a type: the names that lead to it, with the elements that are being written."""
    cdef const DocumentNode* node = &builder.nodes[number]
    cdef const DocumentNode* parent
    cdef DocumentColumn* column
    if node.parent == NOWHERE:
        return
    say_path(builder, node.parent)
    parent = &builder.nodes[node.parent]
    column = &builder.columns[node.parent]
    if parent.kind == DOCUMENT_STRUCT:
        if builder.error_size:
            say_text(builder, b".")
        say_text(builder, node.path)
    elif parent.kind == DOCUMENT_LIST:
        say_text(builder, b"[")
        say_number(builder, column.index)
        say_text(builder, b"]")
    elif column.key != NULL:
        say_text(builder, b"[")
        say_shortened(builder, unsafe_yyjson_get_str(column.key), unsafe_yyjson_get_len(column.key))
        say_text(builder, b"]")


cdef void say_found(DocumentBuilder* builder, yyjson_val* value) noexcept nogil:
    """Append what a value is: itself, if it is short."""
    cdef uint8_t type = unsafe_yyjson_get_type(value)
    cdef const char* text
    cdef int64_t size
    if type == YYJSON_TYPE_OBJ:
        say_text(builder, b"an object")
    elif type == YYJSON_TYPE_ARR:
        say_text(builder, b"an array")
    elif type == YYJSON_TYPE_BOOL:
        say_text(builder, b"true" if unsafe_yyjson_get_bool(value) else b"false")
    elif type == YYJSON_TYPE_NULL:
        say_text(builder, b"null")
    else:
        text, size = unsafe_yyjson_get_str(value), unsafe_yyjson_get_len(value)
        if type == YYJSON_TYPE_STR and not is_utf8(<const uint8_t*>text, <const uint8_t*>text + size):
            say_text(builder, b"a string that is not valid Unicode")
            return
        if type == YYJSON_TYPE_STR:
            say_text(builder, b"\"")
        say_shortened(builder, text, size)
        if type == YYJSON_TYPE_STR:
            say_text(builder, b"\"")


cdef bint put_wrong(DocumentBuilder* builder, int number, yyjson_val* value) noexcept nogil:
    """Write null for a value that is not of its type. The first one in a document is the text of its error."""
    builder.n_errors += 1
    if builder.n_errors == 1:
        builder.error_size = 0
        say_path(builder, number)
        if builder.error_size == 0:
            say_text(builder, b"document")
        say_text(builder, b": expected ")
        say_text(builder, builder.nodes[number].expected)
        say_text(builder, b", found ")
        say_found(builder, value)
    return put_null(builder, number)


cdef void say_wrong_level(DocumentBuilder* builder, int number, const Level* level, yyjson_val* value) noexcept nogil:
    """Note that there is no object where the path of a field leads through."""
    builder.n_errors += 1
    if builder.n_errors == 1:
        builder.error_size = 0
        say_path(builder, number)
        if builder.error_size:
            say_text(builder, b".")
        say_text(builder, level.path)
        say_text(builder, b": expected an object, found ")
        say_found(builder, value)


cdef void finish_error(DocumentBuilder* builder) noexcept nogil:
    """Append the number of further errors."""
    # What did not fit may have cut a character.
    while not is_utf8(<uint8_t*>builder.error, <uint8_t*>builder.error + builder.error_size):
        builder.error_size -= 1
    if builder.n_errors > 1 and builder.error_size < ERROR_ROOM - 40:
        say_text(builder, b" (and ")
        say_number(builder, builder.n_errors - 1)
        say_text(builder, b" more)")


# ---------------------------------------------------------------------------------------- cells

cdef bint grow_document_column(DocumentBuilder* builder, int number) noexcept nogil:
    """Make room for more cells. Return False if there is no memory."""
    cdef DocumentColumn* column = &builder.columns[number]
    cdef const DocumentNode* node = &builder.nodes[number]
    cdef int64_t room = max(2 * column.room, max(column.expected, <int64_t>FEWEST_ROWS)), old = (column.room + 7) // 8
    cdef bint bits = node.kind == DOCUMENT_BOOL
    if node.kind != DOCUMENT_STRUCT:
        if not grow(&column.fixed, (room + 7) // 8 if bits else (room + 1) * node.width):
            builder.status = NO_MEMORY
            return False
    if not grow(&column.valid, (room + 7) // 8):
        builder.status = NO_MEMORY
        return False
    # The last bits of a bitmap leave the process, too.
    memset(column.valid + old, 0, (room + 7) // 8 - old)
    if bits:
        memset(column.fixed + old, 0, (room + 7) // 8 - old)
    column.room = room
    return True


cdef inline int64_t add_cell(DocumentBuilder* builder, int number, bint valid) noexcept nogil:
    """Add a cell, valid or null, without its content. Return its index, or NOWHERE if there is no memory."""
    cdef DocumentColumn* column = &builder.columns[number]
    cdef int64_t n = column.length
    if n == column.room and not grow_document_column(builder, number):
        return NOWHERE
    column.length = n + 1
    if valid:
        column.valid[n >> 3] |= 1 << (n & 7)
    else:
        column.valid[n >> 3] &= ~(1 << (n & 7))
    return n


cdef bint put_null(DocumentBuilder* builder, int number) noexcept nogil:
    """Write null, and a null into each field of a struct. Return False if there is no memory."""
    cdef const DocumentNode* node = &builder.nodes[number]
    cdef DocumentColumn* column = &builder.columns[number]
    cdef int64_t n = add_cell(builder, number, False)
    cdef int i
    if n == NOWHERE:
        return False
    if node.kind == DOCUMENT_STRUCT:
        for i in range(node.count):
            if not put_null(builder, node.first + i):
                return False
    elif node.kind == DOCUMENT_BOOL:
        column.fixed[n >> 3] &= ~(1 << (n & 7))
    elif has_offsets(node.kind):
        (<int32_t*>column.fixed)[n] = offset_of(builder, number)
    else:
        memset(column.fixed + n * node.width, 0, node.width)
    return True


cdef inline bint has_offsets(int kind) noexcept nogil:
    return kind == DOCUMENT_STRING or kind == DOCUMENT_BINARY or kind == DOCUMENT_JSON or kind == DOCUMENT_LIST or \
        kind == DOCUMENT_MAP


cdef inline int32_t offset_of(DocumentBuilder* builder, int number) noexcept nogil:
    """Return the offset at which the next cell of a text, a list or a map begins."""
    cdef int kind = builder.nodes[number].kind
    if kind == DOCUMENT_LIST or kind == DOCUMENT_MAP:
        return <int32_t>builder.columns[builder.nodes[number].first].length
    return <int32_t>builder.columns[number].bytes.used


cdef bint put_text(DocumentBuilder* builder, int number, const uint8_t* data, int64_t size) noexcept nogil:
    """Write bytes. Return False if there is no memory."""
    cdef DocumentColumn* column = &builder.columns[number]
    cdef int64_t n = add_cell(builder, number, True)
    if n == NOWHERE:
        return False
    (<int32_t*>column.fixed)[n] = <int32_t>column.bytes.used
    if column.bytes.room - column.bytes.used < size or column.bytes.data == NULL:
        if not reserve_bytes(&column.bytes, max(size, <int64_t>1)):
            builder.status = NO_MEMORY
            return False
    memcpy(column.bytes.data + column.bytes.used, data, size)
    column.bytes.used += size
    return True


cdef void truncate_document(DocumentBuilder* builder, int number, int64_t length) noexcept nogil:
    """Remove the cells from number `length` on, and those below them."""
    cdef const DocumentNode* node = &builder.nodes[number]
    cdef DocumentColumn* column = &builder.columns[number]
    cdef int64_t below
    cdef int i
    if column.length <= length:
        return
    if node.kind == DOCUMENT_STRUCT:
        for i in range(node.count):
            truncate_document(builder, node.first + i, length)
    elif node.kind == DOCUMENT_LIST or node.kind == DOCUMENT_MAP:
        below = (<int32_t*>column.fixed)[length]
        for i in range(node.count):
            truncate_document(builder, node.first + i, below)
    elif has_offsets(node.kind):
        column.bytes.used = (<int32_t*>column.fixed)[length]
    column.length = length


# --------------------------------------------------------------------------------------- values

cdef bint put_value(DocumentBuilder* builder, int number, yyjson_val* value, const uint8_t* source) noexcept nogil:
    """Write a value into a column. Return False if `status` says why the document cannot be written.

    source: first byte of the value as it arrived, if its type wants it.
    """
    cdef const DocumentNode* node = &builder.nodes[number]
    cdef uint8_t type = unsafe_yyjson_get_type(value)
    cdef int kind = node.kind
    if type == YYJSON_TYPE_NULL:
        return put_null(builder, number)
    if kind == DOCUMENT_STRUCT:
        return put_struct(builder, number, value) if type == YYJSON_TYPE_OBJ else put_wrong(builder, number, value)
    if kind == DOCUMENT_LIST:
        if type != YYJSON_TYPE_ARR:
            return put_wrong(builder, number, value)
        return put_list(builder, number, value, source)
    if kind == DOCUMENT_MAP:
        return put_object(builder, number, value) if type == YYJSON_TYPE_OBJ else put_wrong(builder, number, value)
    if kind == DOCUMENT_JSON:
        return put_source(builder, number, source)
    if type == YYJSON_TYPE_STR:
        return put_string(builder, number, value)
    if type == YYJSON_TYPE_RAW:
        return put_number_text(builder, number, value)
    if type == YYJSON_TYPE_BOOL and kind == DOCUMENT_BOOL:
        return put_bool(builder, number, unsafe_yyjson_get_bool(value))
    return put_wrong(builder, number, value)


cdef inline bint put_bool(DocumentBuilder* builder, int number, bint value) noexcept nogil:
    cdef int64_t n = add_cell(builder, number, True)
    cdef uint8_t* fixed = builder.columns[number].fixed
    if n == NOWHERE:
        return False
    # The memory may have moved.
    fixed = builder.columns[number].fixed
    fixed[n >> 3] = (fixed[n >> 3] & ~(1 << (n & 7))) | (value << (n & 7))
    return True


cdef inline bint put_fixed(DocumentBuilder* builder, int number, const void* cell) noexcept nogil:
    """Write a cell of fixed width."""
    cdef int64_t n = add_cell(builder, number, True)
    cdef int width = builder.nodes[number].width
    if n == NOWHERE:
        return False
    memcpy(builder.columns[number].fixed + n * width, cell, width)
    return True


cdef inline bint put_integer(DocumentBuilder* builder, int number, int64_t value) noexcept nogil:
    """Write a number that fits the width of its column."""
    cdef int32_t narrow4 = <int32_t>value
    cdef int16_t narrow2 = <int16_t>value
    cdef int8_t narrow1 = <int8_t>value
    cdef int width = builder.nodes[number].width
    if width == 8:
        return put_fixed(builder, number, &value)
    if width == 4:
        return put_fixed(builder, number, &narrow4)
    return put_fixed(builder, number, &narrow2) if width == 2 else put_fixed(builder, number, &narrow1)


cdef bint put_decimal(DocumentBuilder* builder, int number, yyjson_val* value) noexcept nogil:
    """Write a decimal from the digits of a number, or of a string."""
    cdef const DocumentNode* node = &builder.nodes[number]
    cdef Number128 magnitude
    cdef bint negative
    if read_decimal(unsafe_yyjson_get_str(value), unsafe_yyjson_get_len(value), node.scale, node.precision, False,
                    &negative, &magnitude) != NUMBER_EXACT:
        return put_wrong(builder, number, value)
    if negative:
        magnitude.low = 0 - magnitude.low
        magnitude.high = ~magnitude.high + (magnitude.low == 0)
    return put_fixed(builder, number, decimal_cell(&magnitude))


cdef inline const void* decimal_cell(Number128* number) noexcept nogil:
    """Return the halves in the order of Arrow, which is that of the machine."""
    cdef uint64_t low = number.low
    cdef uint16_t one = 1
    if (<uint8_t*>&one)[0]:
        number.low, number.high = number.high, low
    return number


cdef bint put_number_text(DocumentBuilder* builder, int number, yyjson_val* value) noexcept nogil:
    """Write a number."""
    cdef const DocumentNode* node = &builder.nodes[number]
    cdef const char* text = unsafe_yyjson_get_str(value)
    cdef int64_t size = unsafe_yyjson_get_len(value), whole
    cdef int kind = node.kind
    if DOCUMENT_INT8 <= kind <= DOCUMENT_INT64:
        if read_integer(text, size, 8 * node.width, &whole):
            return put_integer(builder, number, whole)
    elif kind == DOCUMENT_FLOAT64 or kind == DOCUMENT_FLOAT32:
        return put_float(builder, number, value)
    elif kind == DOCUMENT_DECIMAL:
        return put_decimal(builder, number, value)
    elif kind == DOCUMENT_EPOCH:
        if read_epoch(text, size, node.scale, &whole):
            return put_integer(builder, number, whole)
    return put_wrong(builder, number, value)


cdef bint put_float(DocumentBuilder* builder, int number, yyjson_val* value) noexcept nogil:
    """Write the nearest floating-point number. What is too large for it is wrong, and not infinite."""
    cdef yyjson_val parsed
    cdef double wide
    cdef float narrow
    if yyjson_read_number(unsafe_yyjson_get_str(value), &parsed, 0, NULL, NULL) == NULL:
        return put_wrong(builder, number, value)
    wide = yyjson_get_num(&parsed)
    if builder.nodes[number].kind == DOCUMENT_FLOAT64:
        return put_fixed(builder, number, &wide)
    narrow = <float>wide
    # Infinity is the only number that is its own half.
    if narrow != 0 and narrow == narrow * 0.5:
        return put_wrong(builder, number, value)
    return put_fixed(builder, number, &narrow)


cdef bint put_string(DocumentBuilder* builder, int number, yyjson_val* value) noexcept nogil:
    """Write a string: as text, or as what its type reads from text."""
    cdef const char* text = unsafe_yyjson_get_str(value)
    cdef const uint8_t* data = <const uint8_t*>text
    cdef int64_t size = unsafe_yyjson_get_len(value), whole
    cdef int kind = builder.nodes[number].kind
    if kind == DOCUMENT_STRING:
        if not builder.reader.unchecked_text or is_utf8(data, data + size):
            return put_text(builder, number, data, size)
    elif kind == DOCUMENT_TIMESTAMP or kind == DOCUMENT_LOCAL_TIMESTAMP:
        if read_time(text, size, kind == DOCUMENT_LOCAL_TIMESTAMP, &whole):
            return put_integer(builder, number, whole)
    elif kind == DOCUMENT_DATE:
        if read_date(text, size, &whole):
            return put_integer(builder, number, whole)
    elif kind == DOCUMENT_DECIMAL:
        return put_decimal(builder, number, value)
    elif kind == DOCUMENT_BINARY:
        return put_base64(builder, number, value)
    return put_wrong(builder, number, value)


cdef bint put_base64(DocumentBuilder* builder, int number, yyjson_val* value) noexcept nogil:
    """Write the bytes of a base64 text."""
    cdef DocumentColumn* column = &builder.columns[number]
    cdef int64_t size = unsafe_yyjson_get_len(value), decoded, n
    if not reserve_bytes(&column.bytes, size + 1):
        builder.status = NO_MEMORY
        return False
    decoded = read_base64(<const uint8_t*>unsafe_yyjson_get_str(value), size, column.bytes.data + column.bytes.used)
    if decoded == NOWHERE:
        return put_wrong(builder, number, value)
    n = add_cell(builder, number, True)
    if n == NOWHERE:
        return False
    (<int32_t*>column.fixed)[n] = <int32_t>column.bytes.used
    column.bytes.used += decoded
    return True


cdef bint put_source(DocumentBuilder* builder, int number, const uint8_t* source) noexcept nogil:
    """Write the text of a value as it arrived."""
    cdef const uint8_t* end = builder.reader.source + builder.reader.size
    cdef const uint8_t* after = json_after_value(source, end)
    if builder.reader.unchecked_text and not is_utf8(source, after):
        wrong_text(builder, number)
        return put_null(builder, number)
    return put_text(builder, number, source, after - source)


cdef void wrong_text(DocumentBuilder* builder, int number) noexcept nogil:
    """Note that a name, or a text inside of JSON, is not UTF-8."""
    builder.n_errors += 1
    if builder.n_errors == 1:
        builder.error_size = 0
        say_path(builder, number)
        say_text(builder, b": expected text in UTF-8, found other bytes" if builder.error_size else
                 b"document: expected text in UTF-8, found other bytes")


# ----------------------------------------------------------------------------------- containers

cdef const Member* find_member(DocumentBuilder* builder, const Level* level, int* cursor,
                               yyjson_val* name) noexcept nogil:
    """Return the member of a level with this name, or NULL.

    cursor: the member to try first. Most documents have their names in one order.
    """
    cdef const char* text = unsafe_yyjson_get_str(name)
    cdef int64_t size = unsafe_yyjson_get_len(name)
    cdef const Member* member
    cdef uint32_t at
    cdef int number
    if cursor[0] < level.n_members:
        member = &builder.members[level.first_member + cursor[0]]
        if member.size == size and memcmp(member.name, text, size) == 0:
            cursor[0] += 1
            return member
    at = hash_name(text, size) & level.table_mask
    while level.table[at] != NOWHERE:
        number = level.table[at]
        member = &builder.members[number]
        if member.size == size and memcmp(member.name, text, size) == 0:
            cursor[0] = number - level.first_member + 1
            return member
        at = (at + 1) & level.table_mask
    return NULL


cdef void find_fields(DocumentBuilder* builder, int number, int level_number, yyjson_val* object,
                      yyjson_val** slots) noexcept nogil:
    """Find the values of a struct's fields in an object, and in those below it. The last of one name counts."""
    cdef const Level* level = &builder.levels[level_number]
    cdef const Member* member
    cdef yyjson_val* name = unsafe_yyjson_get_first(object)
    cdef yyjson_val* below
    cdef size_t left = unsafe_yyjson_get_len(object)
    cdef int cursor = 0, i
    while left:
        member = find_member(builder, level, &cursor, name)
        if member != NULL:
            if member.slot != NOWHERE:
                slots[member.slot] = name + 1
            if member.level != NOWHERE:
                slots[member.level_slot] = name + 1
        name = unsafe_yyjson_get_next(name + 1)
        left -= 1
    for i in range(level.first_member, level.first_member + level.n_members):
        member = &builder.members[i]
        if member.level == NOWHERE or slots[member.level_slot] == NULL:
            continue
        below = slots[member.level_slot]
        if unsafe_yyjson_get_type(below) == YYJSON_TYPE_OBJ:
            find_fields(builder, number, member.level, below, slots)
        elif unsafe_yyjson_get_type(below) != YYJSON_TYPE_NULL:
            say_wrong_level(builder, number, &builder.levels[member.level], below)


cdef bint put_struct(DocumentBuilder* builder, int number, yyjson_val* object) noexcept nogil:
    """Write the fields of an object."""
    cdef const DocumentNode* node = &builder.nodes[number]
    cdef yyjson_val** slots = builder.slots + node.slots_at
    cdef yyjson_val* value
    cdef const uint8_t* source
    cdef int i
    if add_cell(builder, number, True) == NOWHERE:
        return False
    memset(slots, 0, (node[1].slots_at - node.slots_at) * sizeof(yyjson_val*))
    find_fields(builder, number, node.level, object, slots)
    for i in range(node.count):
        value = slots[builder.nodes[node.first + i].slot]
        if value == NULL:
            if not put_null(builder, node.first + i):
                return False
            continue
        source = NULL
        if builder.nodes[node.first + i].wants_source:
            source = json_source_of(builder.reader, value)
        if not put_value(builder, node.first + i, value, source):
            return False
    return True


cdef bint take_budget(DocumentBuilder* builder, int64_t cells, int number) noexcept nogil:
    """Take the memory of so many cells from what the document may still have."""
    builder.taken += cells * builder.nodes[number].cell_bytes
    if builder.taken > builder.budget:
        builder.status = BAD_DOCUMENT
        return False
    return True


cdef bint put_list(DocumentBuilder* builder, int number, yyjson_val* array, const uint8_t* source) noexcept nogil:
    """Write the elements of an array."""
    cdef const DocumentNode* node = &builder.nodes[number]
    cdef DocumentColumn* column = &builder.columns[number]
    cdef const uint8_t* end = builder.reader.source + builder.reader.size
    cdef yyjson_val* value = unsafe_yyjson_get_first(array)
    cdef int64_t count = unsafe_yyjson_get_len(array), n = add_cell(builder, number, True), i
    if n == NOWHERE:
        return False
    (<int32_t*>column.fixed)[n] = offset_of(builder, number)
    if not take_budget(builder, count, node.first):
        return False
    for i in range(count):
        column.index = i
        if node.wants_source:
            # Past the bracket or the comma before the element.
            source = json_after_space(source + 1, end)
        if not put_value(builder, node.first, value, source):
            return False
        if node.wants_source:
            source = json_after_space(json_after_value(source, end), end)
        value = unsafe_yyjson_get_next(value)
    return True


cdef bint put_object(DocumentBuilder* builder, int number, yyjson_val* object) noexcept nogil:
    """Write the members of an object as the entries of a map. Of several with one name, the last counts."""
    cdef const DocumentNode* node = &builder.nodes[number]
    cdef DocumentColumn* column = &builder.columns[number]
    cdef yyjson_val* name = unsafe_yyjson_get_first(object)
    cdef const uint8_t* source = NULL
    cdef size_t left = unsafe_yyjson_get_len(object)
    cdef int64_t n = add_cell(builder, number, True)
    if n == NOWHERE:
        return False
    (<int32_t*>column.fixed)[n] = offset_of(builder, number)
    if not take_budget(builder, left, node.first) or not take_budget(builder, left, node.first + 1):
        return False
    if left > 1 and not drop_repeated(builder, object):
        return False
    while left:
        # Not the names that `drop_repeated` has marked.
        if unsafe_yyjson_get_type(name) == YYJSON_TYPE_STR:
            column.key = NULL
            if not builder.reader.unchecked_text or is_utf8_text(name):
                if not put_entry_of(builder, number, name):
                    return False
            else:
                # A key cannot be null, so the entry is left out.
                wrong_text(builder, number)
        name = unsafe_yyjson_get_next(name + 1)
        left -= 1
    column.key = NULL
    return True


cdef inline bint put_entry_of(DocumentBuilder* builder, int number, yyjson_val* name) noexcept nogil:
    """Write an entry of a map."""
    cdef int first = builder.nodes[number].first
    cdef const uint8_t* source = NULL
    if not put_text(builder, first, <const uint8_t*>unsafe_yyjson_get_str(name), unsafe_yyjson_get_len(name)):
        return False
    builder.columns[number].key = name
    if builder.nodes[first + 1].wants_source:
        source = json_source_of(builder.reader, name + 1)
    return put_value(builder, first + 1, name + 1, source)


cdef inline bint is_utf8_text(yyjson_val* value) noexcept nogil:
    cdef const uint8_t* text = <const uint8_t*>unsafe_yyjson_get_str(value)
    return is_utf8(text, text + unsafe_yyjson_get_len(value))


cdef int compare_names(const void* left, const void* right) noexcept nogil:
    """Order names by length and bytes, equal ones by their place."""
    cdef yyjson_val* a = (<yyjson_val**>left)[0]
    cdef yyjson_val* b = (<yyjson_val**>right)[0]
    cdef int order = compare_texts(a, b)
    return order if order else (a > b) - (a < b)


cdef inline int compare_texts(yyjson_val* a, yyjson_val* b) noexcept nogil:
    cdef size_t size = unsafe_yyjson_get_len(a), other = unsafe_yyjson_get_len(b)
    if size != other:
        return 1 if size > other else -1
    return memcmp(unsafe_yyjson_get_str(a), unsafe_yyjson_get_str(b), size)


cdef bint drop_repeated(DocumentBuilder* builder, yyjson_val* object) noexcept nogil:
    """Mark the names of an object that come again later. By sorting, so that no choice of names makes it slow."""
    cdef int64_t count = unsafe_yyjson_get_len(object), i
    cdef yyjson_val* name = unsafe_yyjson_get_first(object)
    if builder.names_room < count:
        if not grow(<uint8_t**>&builder.names, 2 * count * sizeof(yyjson_val*)):
            builder.status = NO_MEMORY
            return False
        builder.names_room = 2 * count
    for i in range(count):
        builder.names[i] = name
        name = unsafe_yyjson_get_next(name + 1)
    qsort(builder.names, count, sizeof(yyjson_val*), compare_names)
    for i in range(count - 1):
        if compare_texts(builder.names[i], builder.names[i + 1]) == 0:
            unsafe_yyjson_set_type(builder.names[i], YYJSON_TYPE_NULL, 0)
    return True


# ------------------------------------------------------------------------------------- documents

cdef Status write_document(DocumentBuilder* builder, int64_t n) noexcept nogil:
    """Write the parsed value as row `n`. Return NO_MEMORY, BAD_DOCUMENT with the text of `error`, or MORE."""
    cdef JsonReader* reader = builder.reader
    cdef const uint8_t* end = reader.source + reader.size
    truncate_document(builder, 0, n)
    builder.n_errors, builder.error_size, builder.status, builder.taken = 0, 0, MORE, 0
    builder.budget = DOCUMENT_BUDGET + BUDGET_PER_BYTE * reader.size
    if not put_value(builder, 0, reader.root, json_after_space(reader.source, end)):
        truncate_document(builder, 0, n)
        if builder.status == NO_MEMORY or not put_null(builder, 0):
            return NO_MEMORY
        builder.taken = 0
        builder.n_errors, builder.error_size = 1, 0
        say_text(builder, b"document: expected cells of at most ")
        say_number(builder, builder.budget)
        say_text(builder, b" bytes, found lists of more; choose fewer fields inside of lists")
    if builder.n_errors == 0:
        return MORE
    finish_error(builder)
    return BAD_DOCUMENT


cdef void describe_no_json(DocumentBuilder* builder, uint8_t datatype) noexcept nogil:
    """Set the error of a value that is no JSON."""
    builder.n_errors, builder.error_size = 1, 0
    say_text(builder, b"document: expected JSON, found ")
    if not datatype & JSON_BIT:
        say_text(builder, b"a value without the JSON datatype: ")
    say_text(builder, builder.reader.error.msg)
    say_text(builder, b" at byte ")
    say_number(builder, builder.reader.error.pos)
    finish_error(builder)


# ------------------------------------------------------------------------------------ finishing

cdef bint start_builder(DocumentBuilder* builder, DocumentPlan plan, JsonReader* reader):
    """Prepare for the documents of a plan. Return False if there is no memory."""
    builder.nodes, builder.members, builder.levels = plan.nodes, plan.members, plan.levels
    builder.n_nodes = plan.n_nodes
    builder.reader = reader
    builder.columns = <DocumentColumn*>calloc(plan.n_nodes, sizeof(DocumentColumn))
    builder.slots = <yyjson_val**>calloc(plan.n_slots + 1, sizeof(yyjson_val*))
    return builder.columns != NULL and builder.slots != NULL


cdef void free_builder(DocumentBuilder* builder) noexcept nogil:
    cdef int i
    for i in range(builder.n_nodes if builder.columns != NULL else 0):
        free(builder.columns[i].fixed)
        free(builder.columns[i].valid)
        free(builder.columns[i].bytes.data)
    free(builder.columns)
    free(builder.slots)
    free(builder.names)


cdef int64_t document_bytes(const DocumentNode* node, int64_t length) noexcept nogil:
    """Return the bytes of the fixed-width part of a finished column."""
    if node.kind == DOCUMENT_BOOL:
        return (length + 7) // 8
    return 4 * (length + 1) if has_offsets(node.kind) else length * node.width


cdef bint finish_document_column(DocumentBuilder* builder, int number, FinishedDocument* out) noexcept nogil:
    """Move the memory of a column to a finished one, and clear it. Return False if there is no memory."""
    cdef const DocumentNode* node = &builder.nodes[number]
    cdef DocumentColumn* column = &builder.columns[number]
    cdef int64_t length = column.length
    # Even without cells a column has buffers.
    if column.room == 0 and not grow_document_column(builder, number):
        return False
    out.length, out.nulls = length, count_nulls(column.valid, length)
    if has_offsets(node.kind):
        (<int32_t*>column.fixed)[length] = offset_of(builder, number)
    if node.kind == DOCUMENT_STRING or node.kind == DOCUMENT_BINARY or node.kind == DOCUMENT_JSON:
        if column.bytes.data == NULL and not grow(&column.bytes.data, 0):
            return False
        out.bytes = memory_of(column.bytes.data, column.bytes.used)
        if out.bytes == NULL:
            return False
    if node.kind != DOCUMENT_STRUCT:
        out.data = memory_of(column.fixed, document_bytes(node, length))
        if out.data == NULL:
            return False
    if out.nulls:
        out.valid = memory_of(column.valid, (length + 7) // 8)
        if out.valid == NULL:
            return False
    else:
        free(column.valid)
    column.fixed = column.valid = NULL
    column.bytes = ByteColumn(NULL, 0, 0, 0, column.bytes.used + column.bytes.used // 8)
    column.expected = length + length // 8
    # `length` stays until all columns are finished: the offsets of a parent end with it.
    column.room = 0
    return True


cdef bint export_document(const DocumentNode* nodes, FinishedDocument* finished, int number,
                          ArrowArray* out) noexcept nogil:
    """Export a finished type with all below it. Return False if there is no memory."""
    cdef const DocumentNode* node = &nodes[number]
    cdef FinishedDocument* built = &finished[number]
    cdef ArrowArray* holder = out
    cdef int kind = node.kind, buffers = 1, i
    if kind != DOCUMENT_STRUCT:
        buffers = 3 if built.bytes != NULL else 2
    if start_array(out, built.length, built.nulls, buffers, 3, 1 if kind == DOCUMENT_MAP else node.count) == NULL:
        return False
    array_own(out, built.valid)
    array_own(out, built.data)
    array_own(out, built.bytes)
    out.buffers[0] = NULL if built.valid == NULL else built.valid.data
    if buffers > 1:
        out.buffers[1] = built.data.data
    if buffers > 2:
        out.buffers[2] = built.bytes.data
    if kind == DOCUMENT_MAP:
        out.children[0] = holder = <ArrowArray*>calloc(1, sizeof(ArrowArray))
        if holder == NULL or start_array(holder, finished[node.first].length, 0, 1, 0, 2) == NULL:
            return False
    for i in range(node.count):
        holder.children[i] = <ArrowArray*>calloc(1, sizeof(ArrowArray))
        if holder.children[i] == NULL or not export_document(nodes, finished, node.first + i, holder.children[i]):
            return False
    return True
