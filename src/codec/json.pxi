# JSON: one value at a time, parsed by yyjson into memory that is used again for the next.
#
# Numbers stay text, so that each leaf can read them exactly. Strings are unescaped in a copy of the value; a position
# there is the same position in the value.

cdef extern from "yyjson.h" nogil:
    ctypedef uint32_t yyjson_read_flag
    ctypedef struct yyjson_doc:
        pass
    ctypedef struct yyjson_val:
        pass
    ctypedef struct yyjson_alc:
        void* (*malloc)(void* ctx, size_t size) noexcept nogil
        void* (*realloc)(void* ctx, void* ptr, size_t old_size, size_t size) noexcept nogil
        void (*free)(void* ctx, void* ptr) noexcept nogil
        void* ctx
    ctypedef struct yyjson_read_err:
        uint32_t code
        const char* msg
        size_t pos
    yyjson_read_flag YYJSON_READ_INSITU
    yyjson_read_flag YYJSON_READ_NUMBER_AS_RAW
    yyjson_read_flag YYJSON_READ_ALLOW_INVALID_UNICODE
    uint32_t YYJSON_READ_ERROR_MEMORY_ALLOCATION
    uint32_t YYJSON_READ_ERROR_INVALID_STRING
    enum:
        YYJSON_TYPE_RAW
        YYJSON_TYPE_NULL
        YYJSON_TYPE_BOOL
        YYJSON_TYPE_STR
        YYJSON_TYPE_ARR
        YYJSON_TYPE_OBJ
        YYJSON_PADDING_SIZE
    yyjson_doc* yyjson_read_opts(char* data, size_t size, yyjson_read_flag flags, const yyjson_alc* alc,
                                 yyjson_read_err* error)
    const char* yyjson_read_number(const char* data, yyjson_val* val, yyjson_read_flag flags, const yyjson_alc* alc,
                                   yyjson_read_err* error)
    yyjson_val* yyjson_doc_get_root(yyjson_doc* doc)
    double yyjson_get_num(yyjson_val* val)
    uint8_t unsafe_yyjson_get_type(void* val)
    bint unsafe_yyjson_get_bool(void* val)
    size_t unsafe_yyjson_get_len(void* val)
    const char* unsafe_yyjson_get_str(void* val)
    yyjson_val* unsafe_yyjson_get_first(yyjson_val* container)
    yyjson_val* unsafe_yyjson_get_next(yyjson_val* val)
    void unsafe_yyjson_set_type(void* val, uint8_t type, uint8_t subtype)

# Types of values, for the compiler of conditions.
JSON_TEXT, JSON_NUMBER, JSON_TRUTH = YYJSON_TYPE_STR, YYJSON_TYPE_RAW, YYJSON_TYPE_BOOL

cdef enum:
    # Memory that is kept for the next value. A larger one gives back what it took.
    KEPT_JSON = 4 << 20

cdef struct JsonReader:
    # The value as it arrived, and the copy in which strings are unescaped.
    const uint8_t* source
    int64_t size
    uint8_t* text
    int64_t text_room
    # Memory of the parsed value.
    void* block
    size_t block_room
    yyjson_val* root
    # True if strings may have bytes that are no UTF-8.
    bint unchecked_text
    yyjson_read_err error


cdef void* json_allocate(void* ctx, size_t size) noexcept nogil:
    return json_resize(ctx, NULL, 0, size)


cdef void* json_resize(void* ctx, void* ptr, size_t old_size, size_t size) noexcept nogil:
    """Return the one block of the reader, with at least `size` bytes. In place, yyjson has no second one."""
    cdef JsonReader* reader = <JsonReader*>ctx
    cdef void* larger
    if size > reader.block_room:
        larger = realloc(reader.block, size)
        if larger == NULL:
            return NULL
        reader.block, reader.block_room = larger, size
    return reader.block


cdef void json_keep(void* ctx, void* ptr) noexcept nogil:
    pass


cdef Status json_read(JsonReader* reader, const uint8_t* value, int64_t size) noexcept nogil:
    """Parse a value. Return BAD_DOCUMENT if it is no JSON, with the reason in `error`.

    `root` is valid until the next call.
    """
    cdef yyjson_alc allocator
    cdef yyjson_read_flag flags = YYJSON_READ_INSITU | YYJSON_READ_NUMBER_AS_RAW
    cdef yyjson_doc* doc
    allocator.malloc, allocator.realloc, allocator.free = json_allocate, json_resize, json_keep
    allocator.ctx = reader
    reader.root = NULL
    if reader.text_room < size:
        if not grow(&reader.text, max(2 * reader.text_room, size)):
            return NO_MEMORY
        reader.text_room = max(2 * reader.text_room, size)
    reader.source, reader.size, reader.unchecked_text = value, size, False
    doc = json_parse(reader, flags, &allocator)
    if doc == NULL and reader.error.code == YYJSON_READ_ERROR_INVALID_STRING:
        # A bad string spoils only the leaf that asks for it.
        reader.unchecked_text = True
        doc = json_parse(reader, flags | YYJSON_READ_ALLOW_INVALID_UNICODE, &allocator)
    if doc == NULL:
        return NO_MEMORY if reader.error.code == YYJSON_READ_ERROR_MEMORY_ALLOCATION else BAD_DOCUMENT
    reader.root = yyjson_doc_get_root(doc)
    return MORE


cdef yyjson_doc* json_parse(JsonReader* reader, yyjson_read_flag flags, const yyjson_alc* allocator) noexcept nogil:
    """Parse a fresh copy of the value, with the padding that yyjson reads in place."""
    if reader.size == 0:
        # An empty value needs a reason of its own: yyjson takes it for a mistake of the caller.
        reader.error.code, reader.error.pos, reader.error.msg = 0, 0, b"input is empty"
        return NULL
    memcpy(reader.text, reader.source, reader.size)
    memset(reader.text + reader.size, 0, YYJSON_PADDING_SIZE)
    if reader.unchecked_text and not json_spoil_surrogates(reader):
        return NULL
    return yyjson_read_opts(<char*>reader.text, reader.size, flags, allocator, &reader.error)


cdef bint json_spoil_surrogates(JsonReader* reader) noexcept nogil:
    """Overwrite escapes of surrogates without their other half, which yyjson refuses, by bytes that are no UTF-8.

    Return False for a control character in a string, which yyjson takes where it does not check strings.
    """
    cdef uint8_t* at = reader.text
    cdef uint8_t* end = reader.text + reader.size
    cdef bint inside = False
    cdef int unit
    while at < end:
        if at[0] == c'"':
            inside = not inside
        elif inside and at[0] < 0x20:
            reader.error.pos, reader.error.msg = at - reader.text, b"unexpected control character in string"
            return False
        elif inside and at[0] == c"\\":
            unit = utf16_at(at, end)
            if 0xD800 <= unit < 0xDC00 and 0xDC00 <= utf16_at(at + 6, end) < 0xE000:
                at += 10
            elif 0xD800 <= unit < 0xE000:
                memset(at, 0xFF, 6)
            # The character after a backslash is no quote of its own.
            at += 1
        at += 1
    return True


cdef int utf16_at(const uint8_t* at, const uint8_t* end) noexcept nogil:
    r"""Return the code unit of an escape \uXXXX; NOWHERE if there is none."""
    cdef int unit = 0, i, digit
    if end - at < 6 or at[0] != c"\\" or at[1] != c"u":
        return NOWHERE
    for i in range(2, 6):
        digit = hex_digit(at[i])
        if digit < 0:
            return NOWHERE
        unit = unit << 4 | digit
    return unit


cdef inline int hex_digit(uint8_t c) noexcept nogil:
    if c"0" <= c <= c"9":
        return c - c"0"
    c |= 0x20
    return c - c"a" + 10 if c"a" <= c <= c"f" else -1


cdef void json_trim(JsonReader* reader) noexcept nogil:
    """Give back the memory of an unusually large value."""
    if reader.block_room > KEPT_JSON:
        free(reader.block)
        reader.block, reader.block_room = NULL, 0
    if reader.text_room > KEPT_JSON:
        free(reader.text)
        reader.text, reader.text_room = NULL, 0


cdef void json_free(JsonReader* reader) noexcept nogil:
    free(reader.block)
    free(reader.text)


# Positions in the value as it arrived. It was parsed, so brackets and quotes match.

cdef inline const uint8_t* json_after_string(const uint8_t* at) noexcept nogil:
    """Return the position after a string, from the one after its opening quote."""
    while at[0] != c'"':
        at += 2 if at[0] == c"\\" else 1
    return at + 1


cdef inline const uint8_t* json_after_space(const uint8_t* at, const uint8_t* end) noexcept nogil:
    while at < end and (at[0] == c" " or at[0] == c"\n" or at[0] == c"\t" or at[0] == c"\r"):
        at += 1
    return at


cdef const uint8_t* json_after_value(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Return the position after a value, from its first byte."""
    cdef int64_t depth = 0
    while at < end:
        if at[0] == c'"':
            at = json_after_string(at + 1)
        elif at[0] == c"{" or at[0] == c"[":
            depth += 1
            at += 1
        elif at[0] == c"}" or at[0] == c"]":
            # The end of the container that a number or literal stands in.
            if depth == 0:
                return at
            depth -= 1
            at += 1
        elif depth == 0 and (at[0] == c"," or at[0] == c" " or at[0] == c"\n" or at[0] == c"\t" or at[0] == c"\r"):
            return at
        else:
            at += 1
            continue
        if depth == 0:
            return at
    return at


cdef const uint8_t* json_source_of(const JsonReader* reader, yyjson_val* member) noexcept nogil:
    """Return the first byte of the value of an object's member, in the value as it arrived."""
    # yyjson keeps the name of a member in front of its value.
    cdef const char* name = unsafe_yyjson_get_str(member - 1)
    cdef const uint8_t* end = reader.source + reader.size
    cdef const uint8_t* at = json_after_string(reader.source + (<const uint8_t*>name - reader.text))
    return json_after_space(json_after_space(at, end) + 1, end)
