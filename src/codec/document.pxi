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
    # Names that a level remembers, and their longest.
    SEEN_NAMES = 32
    SEEN_BYTES = 16

cdef struct DocumentBuilder

# Writes a value of a type.
ctypedef bint (*PutValue)(DocumentBuilder* builder, int number, yyjson_val* value, const uint8_t* source) noexcept nogil

cdef struct SeenName:
    # A name of up to 16 bytes: its first 8, with a mask if it has fewer, and its last 8. `tail_at` is 0 if it has no
    # more. `size` is NOWHERE if there is none. `member` is NULL if no field has the name.
    int64_t size
    uint64_t head
    uint64_t mask
    int64_t tail_at
    uint64_t tail
    const Member* member

cdef struct DocumentColumn:
    # Cells of one type. `fixed` has numbers, bits, or offsets into `bytes` or the cells of the child. The bits of
    # `valid` from `length` on are 1, so that only nulls are written.
    PutValue put
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
    # For each level the names of objects before, in their order: SEEN_NAMES of them.
    SeenName* seen
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
    memset(column.valid + old, 0xFF, (room + 7) // 8 - old)
    # The last bits of a bitmap leave the process, too.
    if bits:
        memset(column.fixed + old, 0, (room + 7) // 8 - old)
    column.room = room
    return True


cdef inline int64_t add_cell(DocumentBuilder* builder, int number) noexcept nogil:
    """Add a cell, without its content. Return its index, or NOWHERE if there is no memory."""
    cdef DocumentColumn* column = &builder.columns[number]
    cdef int64_t n = column.length
    if n == column.room and not grow_document_column(builder, number):
        return NOWHERE
    column.length = n + 1
    return n


cdef bint put_null(DocumentBuilder* builder, int number) noexcept nogil:
    """Write null, and a null into each field of a struct. Return False if there is no memory."""
    cdef const DocumentNode* node = &builder.nodes[number]
    cdef DocumentColumn* column = &builder.columns[number]
    cdef int64_t n = add_cell(builder, number)
    cdef int i
    if n == NOWHERE:
        return False
    column.valid[n >> 3] &= ~(1 << (n & 7))
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


cdef inline bint put_text(DocumentBuilder* builder, int number, const uint8_t* data, int64_t size,
                          const uint8_t* end) noexcept nogil:
    """Write bytes. Return False if there is no memory.

    end: where the memory that the bytes are in ends.
    """
    cdef DocumentColumn* column = &builder.columns[number]
    cdef int64_t n = add_cell(builder, number)
    if n == NOWHERE:
        return False
    (<int32_t*>column.fixed)[n] = <int32_t>column.bytes.used
    if column.bytes.room - column.bytes.used < size or column.bytes.data == NULL:
        if not reserve_bytes(&column.bytes, max(size, <int64_t>1)):
            builder.status = NO_MEMORY
            return False
    copy_bytes(column.bytes.data + column.bytes.used, data, size, end)
    column.bytes.used += size
    return True


cdef inline bint put_unescaped(DocumentBuilder* builder, int number, yyjson_val* value) noexcept nogil:
    """Write an unescaped string. Return False if there is no memory."""
    cdef JsonReader* reader = builder.reader
    return put_text(builder, number, <const uint8_t*>unsafe_yyjson_get_str(value), unsafe_yyjson_get_len(value),
                    reader.text + reader.size + SLACK)


cdef void truncate_document(DocumentBuilder* builder, int number, int64_t length) noexcept nogil:
    """Remove the cells from number `length` on, and those below them."""
    cdef const DocumentNode* node = &builder.nodes[number]
    cdef DocumentColumn* column = &builder.columns[number]
    cdef int64_t below, n
    cdef int i
    if column.length <= length:
        return
    for n in range(length, column.length):
        column.valid[n >> 3] |= 1 << (n & 7)
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

# Each type has a function that writes values of it, and null for others. All return False if `status` says why the
# document cannot be written.
#
# source: first byte of the value as it arrived, if the type wants it.

cdef PutValue put_of(int kind) noexcept nogil:
    """Return the function that writes values of a type."""
    if kind == DOCUMENT_BOOL:
        return put_bool
    if kind == DOCUMENT_FLOAT32 or kind == DOCUMENT_FLOAT64:
        return put_float
    if kind == DOCUMENT_DECIMAL:
        return put_decimal
    if kind == DOCUMENT_STRING:
        return put_string
    if kind == DOCUMENT_BINARY:
        return put_base64
    if kind == DOCUMENT_DATE or kind == DOCUMENT_TIMESTAMP or kind == DOCUMENT_LOCAL_TIMESTAMP:
        return put_time
    if kind == DOCUMENT_EPOCH:
        return put_epoch
    if kind == DOCUMENT_JSON:
        return put_source
    if kind == DOCUMENT_STRUCT:
        return put_struct
    if kind == DOCUMENT_LIST:
        return put_list
    return put_object if kind == DOCUMENT_MAP else put_integer


cdef inline bint put_value(DocumentBuilder* builder, int number, yyjson_val* value,
                           const uint8_t* source) noexcept nogil:
    return builder.columns[number].put(builder, number, value, source)


cdef bint put_other(DocumentBuilder* builder, int number, yyjson_val* value) noexcept nogil:
    """Write null for a value that is null, or not of its type."""
    return put_null(builder, number) if unsafe_yyjson_get_type(value) == YYJSON_TYPE_NULL else \
        put_wrong(builder, number, value)


cdef bint put_bool(DocumentBuilder* builder, int number, yyjson_val* value, const uint8_t* source) noexcept nogil:
    cdef uint8_t* fixed
    cdef int64_t n
    if unsafe_yyjson_get_type(value) != YYJSON_TYPE_BOOL:
        return put_other(builder, number, value)
    n = add_cell(builder, number)
    if n == NOWHERE:
        return False
    fixed = builder.columns[number].fixed
    fixed[n >> 3] = (fixed[n >> 3] & ~(1 << (n & 7))) | (unsafe_yyjson_get_bool(value) << (n & 7))
    return True


cdef bint put_string(DocumentBuilder* builder, int number, yyjson_val* value, const uint8_t* source) noexcept nogil:
    if unsafe_yyjson_get_type(value) != YYJSON_TYPE_STR or \
            (builder.reader.unchecked_text and not is_utf8_text(value)):
        return put_other(builder, number, value)
    return put_unescaped(builder, number, value)


cdef bint put_integer(DocumentBuilder* builder, int number, yyjson_val* value, const uint8_t* source) noexcept nogil:
    cdef int64_t whole
    if unsafe_yyjson_get_type(value) != YYJSON_TYPE_RAW or not read_integer(
            unsafe_yyjson_get_str(value), unsafe_yyjson_get_len(value), 8 * builder.nodes[number].width, &whole):
        return put_other(builder, number, value)
    return put_whole(builder, number, whole)


cdef bint put_epoch(DocumentBuilder* builder, int number, yyjson_val* value, const uint8_t* source) noexcept nogil:
    cdef int64_t micros
    if unsafe_yyjson_get_type(value) != YYJSON_TYPE_RAW or not read_epoch(
            unsafe_yyjson_get_str(value), unsafe_yyjson_get_len(value), builder.nodes[number].scale, &micros):
        return put_other(builder, number, value)
    return put_whole(builder, number, micros)


cdef bint put_time(DocumentBuilder* builder, int number, yyjson_val* value, const uint8_t* source) noexcept nogil:
    """Write a date or a time."""
    cdef const char* text = unsafe_yyjson_get_str(value)
    cdef int64_t size = unsafe_yyjson_get_len(value), time
    cdef int kind = builder.nodes[number].kind
    if unsafe_yyjson_get_type(value) != YYJSON_TYPE_STR or not (
            read_date(text, size, &time) if kind == DOCUMENT_DATE else
            read_time(text, size, kind == DOCUMENT_LOCAL_TIMESTAMP, &time)):
        return put_other(builder, number, value)
    return put_whole(builder, number, time)


cdef inline bint put_whole(DocumentBuilder* builder, int number, int64_t value) noexcept nogil:
    """Write a number that fits the width of its column."""
    cdef int64_t n = add_cell(builder, number)
    cdef int width = builder.nodes[number].width
    cdef uint8_t* fixed
    if n == NOWHERE:
        return False
    fixed = builder.columns[number].fixed
    if width == 8:
        (<int64_t*>fixed)[n] = value
    elif width == 4:
        (<int32_t*>fixed)[n] = <int32_t>value
    elif width == 2:
        (<int16_t*>fixed)[n] = <int16_t>value
    else:
        (<int8_t*>fixed)[n] = <int8_t>value
    return True


cdef bint put_decimal(DocumentBuilder* builder, int number, yyjson_val* value, const uint8_t* source) noexcept nogil:
    """Write a decimal from the digits of a number, or of a string."""
    cdef const DocumentNode* node = &builder.nodes[number]
    cdef uint8_t type = unsafe_yyjson_get_type(value)
    cdef Number128 magnitude
    cdef bint negative
    cdef int64_t n
    if type != YYJSON_TYPE_RAW and type != YYJSON_TYPE_STR:
        return put_other(builder, number, value)
    if read_decimal(unsafe_yyjson_get_str(value), unsafe_yyjson_get_len(value), node.scale, node.precision, False,
                    &negative, &magnitude) != NUMBER_EXACT:
        return put_wrong(builder, number, value)
    if negative:
        magnitude.low = 0 - magnitude.low
        magnitude.high = ~magnitude.high + (magnitude.low == 0)
    n = add_cell(builder, number)
    if n == NOWHERE:
        return False
    memcpy(builder.columns[number].fixed + 16 * n, decimal_cell(&magnitude), 16)
    return True


cdef inline const void* decimal_cell(Number128* number) noexcept nogil:
    """Return the halves in the order of Arrow, which is that of the machine."""
    cdef uint64_t low = number.low
    cdef uint16_t one = 1
    if (<uint8_t*>&one)[0]:
        number.low, number.high = number.high, low
    return number


cdef bint put_float(DocumentBuilder* builder, int number, yyjson_val* value, const uint8_t* source) noexcept nogil:
    """Write the nearest floating-point number. What is too large for it is wrong, and not infinite."""
    cdef bint wide = builder.nodes[number].kind == DOCUMENT_FLOAT64
    cdef yyjson_val parsed
    cdef double nearest
    cdef float narrow
    cdef int64_t n
    if unsafe_yyjson_get_type(value) != YYJSON_TYPE_RAW or \
            yyjson_read_number(unsafe_yyjson_get_str(value), &parsed, 0, NULL, NULL) == NULL:
        return put_other(builder, number, value)
    nearest = yyjson_get_num(&parsed)
    narrow = <float>nearest
    # Infinity is the only number that is its own half.
    if not wide and narrow != 0 and narrow == narrow * 0.5:
        return put_wrong(builder, number, value)
    n = add_cell(builder, number)
    if n == NOWHERE:
        return False
    if wide:
        (<double*>builder.columns[number].fixed)[n] = nearest
    else:
        (<float*>builder.columns[number].fixed)[n] = narrow
    return True


cdef bint put_base64(DocumentBuilder* builder, int number, yyjson_val* value, const uint8_t* source) noexcept nogil:
    """Write the bytes of a base64 text."""
    cdef DocumentColumn* column = &builder.columns[number]
    cdef int64_t size = unsafe_yyjson_get_len(value), decoded, n
    if unsafe_yyjson_get_type(value) != YYJSON_TYPE_STR:
        return put_other(builder, number, value)
    if not reserve_bytes(&column.bytes, size + 1):
        builder.status = NO_MEMORY
        return False
    decoded = read_base64(<const uint8_t*>unsafe_yyjson_get_str(value), size, column.bytes.data + column.bytes.used)
    if decoded == NOWHERE:
        return put_wrong(builder, number, value)
    n = add_cell(builder, number)
    if n == NOWHERE:
        return False
    (<int32_t*>column.fixed)[n] = <int32_t>column.bytes.used
    column.bytes.used += decoded
    return True


cdef bint put_source(DocumentBuilder* builder, int number, yyjson_val* value, const uint8_t* source) noexcept nogil:
    """Write the text of a value as it arrived."""
    cdef const uint8_t* end = builder.reader.source + builder.reader.size
    cdef const uint8_t* after
    if unsafe_yyjson_get_type(value) == YYJSON_TYPE_NULL:
        return put_null(builder, number)
    after = json_after_value(source, end)
    if builder.reader.unchecked_text and not is_utf8(source, after):
        wrong_text(builder, number)
        return put_null(builder, number)
    return put_text(builder, number, source, after - source, end)


cdef void wrong_text(DocumentBuilder* builder, int number) noexcept nogil:
    """Note that a name, or a text inside of JSON, is not UTF-8."""
    builder.n_errors += 1
    if builder.n_errors == 1:
        builder.error_size = 0
        say_path(builder, number)
        say_text(builder, b": expected text in UTF-8, found other bytes" if builder.error_size else
                 b"document: expected text in UTF-8, found other bytes")


# ----------------------------------------------------------------------------------- containers

cdef inline bint is_seen(const SeenName* seen, const char* text, int64_t size) noexcept nogil:
    """Return whether this is the name. Up to SLACK bytes beyond it may be read."""
    return seen.size == size and (word_at(text) ^ seen.head) & seen.mask == 0 and \
        (seen.tail_at == 0 or word_at(text + seen.tail_at) == seen.tail)


cdef const Member* look_up(DocumentBuilder* builder, const Level* level, SeenName* seen, const char* text,
                           int64_t size) noexcept nogil:
    """Return the member of a level with this name, or NULL. Remember it in `seen`."""
    cdef const Member* member
    cdef uint32_t at = hash_name(text, size) & level.table_mask
    while level.table[at] != NOWHERE:
        member = &builder.members[level.table[at]]
        if member.size == size and memcmp(member.name, text, size) == 0:
            break
        at = (at + 1) & level.table_mask
    else:
        member = NULL
    if size <= SEEN_BYTES:
        seen.member, seen.size, seen.tail_at, seen.mask = member, size, max(size - 8, <int64_t>0), 0
        memset(&seen.mask, 0xFF, min(size, <int64_t>8))
        seen.head, seen.tail = word_at(text), word_at(text + seen.tail_at)
    return member


cdef void find_fields(DocumentBuilder* builder, int number, int level_number, yyjson_val* object,
                      yyjson_val** slots) noexcept nogil:
    """Find the values of a struct's fields in an object, and in those below it. The last of one name counts."""
    cdef const Level* level = &builder.levels[level_number]
    cdef const Member* member
    cdef yyjson_val* name = unsafe_yyjson_get_first(object)
    cdef yyjson_val* below
    cdef size_t left = unsafe_yyjson_get_len(object)
    cdef const char* text
    cdef int64_t size
    cdef int i
    # Objects often have the same names in the same order. Where a name is another one than last time, it is often
    # the one after that, since one is missing here.
    cdef SeenName* seen = builder.seen + level_number * SEEN_NAMES
    cdef SeenName* last = seen + SEEN_NAMES - 1
    while left:
        text, size = unsafe_yyjson_get_str(name), unsafe_yyjson_get_len(name)
        if is_seen(seen, text, size):
            member = seen.member
        elif seen != last and is_seen(seen + 1, text, size):
            seen += 1
            member = seen.member
        else:
            member = look_up(builder, level, seen, text, size)
        seen += seen != last
        if member != NULL:
            if member.slot != NOWHERE:
                slots[member.slot] = name + 1
            if member.level != NOWHERE:
                slots[member.level_slot] = name + 1
        name = unsafe_yyjson_get_next(name + 1)
        left -= 1
    if not level.leads_on:
        return
    for i in range(level.first_member, level.first_member + level.n_members):
        member = &builder.members[i]
        if member.level == NOWHERE or slots[member.level_slot] == NULL:
            continue
        below = slots[member.level_slot]
        if unsafe_yyjson_get_type(below) == YYJSON_TYPE_OBJ:
            find_fields(builder, number, member.level, below, slots)
        elif unsafe_yyjson_get_type(below) != YYJSON_TYPE_NULL:
            say_wrong_level(builder, number, &builder.levels[member.level], below)


cdef bint put_struct(DocumentBuilder* builder, int number, yyjson_val* object, const uint8_t* source) noexcept nogil:
    """Write the fields of an object."""
    cdef const DocumentNode* node = &builder.nodes[number]
    cdef yyjson_val** slots = builder.slots + node.slots_at
    cdef yyjson_val* value
    cdef int i
    if unsafe_yyjson_get_type(object) != YYJSON_TYPE_OBJ:
        return put_other(builder, number, object)
    if add_cell(builder, number) == NOWHERE:
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
    cdef int64_t count = unsafe_yyjson_get_len(array), n, i
    if unsafe_yyjson_get_type(array) != YYJSON_TYPE_ARR:
        return put_other(builder, number, array)
    n = add_cell(builder, number)
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


cdef bint put_object(DocumentBuilder* builder, int number, yyjson_val* object, const uint8_t* source) noexcept nogil:
    """Write the members of an object as the entries of a map. Of several with one name, the last counts."""
    cdef const DocumentNode* node = &builder.nodes[number]
    cdef DocumentColumn* column = &builder.columns[number]
    cdef yyjson_val* name = unsafe_yyjson_get_first(object)
    cdef size_t left = unsafe_yyjson_get_len(object)
    cdef int64_t n
    if unsafe_yyjson_get_type(object) != YYJSON_TYPE_OBJ:
        return put_other(builder, number, object)
    n = add_cell(builder, number)
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
    if not put_unescaped(builder, first, name):
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
    cdef int i
    builder.nodes, builder.members, builder.levels = plan.nodes, plan.members, plan.levels
    builder.n_nodes = plan.n_nodes
    builder.reader = reader
    builder.columns = <DocumentColumn*>calloc(plan.n_nodes, sizeof(DocumentColumn))
    builder.slots = <yyjson_val**>calloc(plan.n_slots + 1, sizeof(yyjson_val*))
    builder.seen = <SeenName*>calloc(plan.n_levels + 1, SEEN_NAMES * sizeof(SeenName))
    if builder.columns == NULL or builder.slots == NULL or builder.seen == NULL:
        return False
    for i in range(plan.n_nodes):
        builder.columns[i].put = put_of(plan.nodes[i].kind)
    for i in range(plan.n_levels * SEEN_NAMES):
        builder.seen[i].size = NOWHERE
    return True


cdef void free_builder(DocumentBuilder* builder) noexcept nogil:
    cdef int i
    for i in range(builder.n_nodes if builder.columns != NULL else 0):
        free(builder.columns[i].fixed)
        free(builder.columns[i].valid)
        free(builder.columns[i].bytes.data)
    free(builder.columns)
    free(builder.slots)
    free(builder.seen)
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
