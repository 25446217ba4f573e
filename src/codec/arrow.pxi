# The Arrow C data interface, by which any Arrow library takes batches without libarrow or pyarrow:
# https://arrow.apache.org/docs/format/CDataInterface.html
#
# Every structure has its `release` set before anything else can fail, so that a half-made one can be released. An
# exported structure may be released by any thread, without the GIL.

cdef extern from *:
    """
    #ifndef ARROW_C_DATA_INTERFACE
    #define ARROW_C_DATA_INTERFACE
    struct ArrowSchema {
      const char* format;
      const char* name;
      const char* metadata;
      int64_t flags;
      int64_t n_children;
      struct ArrowSchema** children;
      struct ArrowSchema* dictionary;
      void (*release)(struct ArrowSchema*);
      void* private_data;
    };
    struct ArrowArray {
      int64_t length;
      int64_t null_count;
      int64_t offset;
      int64_t n_buffers;
      int64_t n_children;
      const void** buffers;
      struct ArrowArray** children;
      struct ArrowArray* dictionary;
      void (*release)(struct ArrowArray*);
      void* private_data;
    };
    #endif
    #ifndef ARROW_C_STREAM_INTERFACE
    #define ARROW_C_STREAM_INTERFACE
    struct ArrowArrayStream {
      int (*get_schema)(struct ArrowArrayStream*, struct ArrowSchema* out);
      int (*get_next)(struct ArrowArrayStream*, struct ArrowArray* out);
      const char* (*get_last_error)(struct ArrowArrayStream*);
      void (*release)(struct ArrowArrayStream*);
      void* private_data;
    };
    #endif
    """
    struct ArrowSchema:
        const char* format
        const char* name
        const char* metadata
        int64_t flags
        int64_t n_children
        ArrowSchema** children
        ArrowSchema* dictionary
        void (*release)(ArrowSchema*) noexcept nogil
        void* private_data
    struct ArrowArray:
        int64_t length
        int64_t null_count
        int64_t offset
        int64_t n_buffers
        int64_t n_children
        const void** buffers
        ArrowArray** children
        ArrowArray* dictionary
        void (*release)(ArrowArray*) noexcept nogil
        void* private_data
    struct ArrowArrayStream:
        int (*get_schema)(ArrowArrayStream*, ArrowSchema*) noexcept nogil
        int (*get_next)(ArrowArrayStream*, ArrowArray*) noexcept nogil
        const char* (*get_last_error)(ArrowArrayStream*) noexcept nogil
        void (*release)(ArrowArrayStream*) noexcept nogil
        void* private_data

cdef enum:
    ARROW_FLAG_NULLABLE = 2


# -------------------------------------------------------------------------------------- schemas

cdef char* copy_text(const char* text) noexcept nogil:
    cdef size_t size = strlen(text) + 1
    cdef char* copy = <char*>malloc(size)
    if copy != NULL:
        memcpy(copy, text, size)
    return copy


cdef void release_schema(ArrowSchema* schema) noexcept nogil:
    cdef int64_t i
    for i in range(schema.n_children):
        if schema.children[i] != NULL:
            if schema.children[i].release != NULL:
                schema.children[i].release(schema.children[i])
            free(schema.children[i])
    free(schema.children)
    if schema.dictionary != NULL:
        if schema.dictionary.release != NULL:
            schema.dictionary.release(schema.dictionary)
        free(schema.dictionary)
    free(<void*>schema.format)
    free(<void*>schema.name)
    schema.release = NULL


cdef ArrowSchema* start_schema(ArrowSchema* out, const char* format, const char* name, int64_t flags,
                               int64_t n_children) noexcept nogil:
    """Make an empty schema that can be released. Return NULL if there is no memory; `out` is released then."""
    memset(out, 0, sizeof(ArrowSchema))
    out.release = release_schema
    out.flags = flags
    out.format = copy_text(format)
    out.name = copy_text(name)
    if n_children:
        out.children = <ArrowSchema**>calloc(n_children, sizeof(ArrowSchema*))
    if out.format == NULL or out.name == NULL or (n_children and out.children == NULL):
        release_schema(out)
        return NULL
    out.n_children = n_children
    return out


cdef int copy_schema(const ArrowSchema* schema, ArrowSchema* out) noexcept nogil:
    """Make a deep copy. Return -1 if there is no memory; `out` is released then."""
    cdef int64_t i
    if start_schema(out, schema.format, schema.name, schema.flags, schema.n_children) == NULL:
        return -1
    for i in range(schema.n_children):
        out.children[i] = <ArrowSchema*>calloc(1, sizeof(ArrowSchema))
        if out.children[i] == NULL or copy_schema(schema.children[i], out.children[i]) < 0:
            release_schema(out)
            return -1
    if schema.dictionary != NULL:
        out.dictionary = <ArrowSchema*>calloc(1, sizeof(ArrowSchema))
        if out.dictionary == NULL or copy_schema(schema.dictionary, out.dictionary) < 0:
            release_schema(out)
            return -1
    return 0


def read_schema(capsule):
    """Return an Arrow schema as (format, name, metadata, children, has a dictionary), children the same."""
    cdef ArrowSchema* schema = <ArrowSchema*>PyCapsule_GetPointer(capsule, "arrow_schema")
    return described_schema(schema)


cdef object described_schema(const ArrowSchema* schema):
    cdef int64_t i
    children = [described_schema(schema.children[i]) for i in range(schema.n_children)]
    name = "" if schema.name == NULL else schema.name.decode()
    return schema.format.decode(), name, schema_metadata(schema.metadata), children, schema.dictionary != NULL


cdef dict schema_metadata(const char* at):
    """Return the metadata of a schema: a number of pairs, and for each length and text of key and value."""
    cdef int32_t pairs, size
    cdef int i, j
    if at == NULL:
        return {}
    memcpy(&pairs, at, 4)
    at += 4
    texts = []
    for i in range(2 * pairs):
        memcpy(&size, at, 4)
        texts.append(at[4:4 + size].decode("utf-8", "replace"))
        at += 4 + size
    return dict(zip(texts[::2], texts[1::2], strict=True))


# --------------------------------------------------------------------------------------- arrays

cdef struct OwnedMemory:
    # The memory that an exported array is an owner of.
    Py_ssize_t count
    Memory** memories


cdef void release_array(ArrowArray* array) noexcept nogil:
    cdef OwnedMemory* holding = <OwnedMemory*>array.private_data
    cdef int64_t i
    for i in range(array.n_children):
        if array.children[i] != NULL:
            if array.children[i].release != NULL:
                array.children[i].release(array.children[i])
            free(array.children[i])
    free(array.children)
    if array.dictionary != NULL:
        if array.dictionary.release != NULL:
            array.dictionary.release(array.dictionary)
        free(array.dictionary)
    free(array.buffers)
    if holding != NULL:
        for i in range(holding.count):
            memory_release(holding.memories[i])
        free(holding.memories)
        free(holding)
    array.release = NULL


cdef ArrowArray* start_array(ArrowArray* out, int64_t length, int64_t null_count, int64_t n_buffers,
                             Py_ssize_t n_memories, int64_t n_children) noexcept nogil:
    """Make an array without contents that can be released. Return NULL if there is no memory.

    n_memories: how many times `array_own` will be called at most.
    """
    cdef OwnedMemory* holding
    memset(out, 0, sizeof(ArrowArray))
    out.release = release_array
    out.length = length
    out.null_count = null_count
    holding = <OwnedMemory*>calloc(1, sizeof(OwnedMemory))
    out.private_data = holding
    out.buffers = <const void**>calloc(n_buffers + 1, sizeof(void*))
    out.children = <ArrowArray**>calloc(n_children + 1, sizeof(ArrowArray*))
    if holding != NULL:
        holding.memories = <Memory**>calloc(n_memories + 1, sizeof(Memory*))
    if holding == NULL or holding.memories == NULL or out.buffers == NULL or out.children == NULL:
        release_array(out)
        return NULL
    out.n_buffers = n_buffers
    out.n_children = n_children
    return out


cdef void array_own(ArrowArray* array, Memory* memory) noexcept nogil:
    """Make the array an owner of memory. It cannot fail: `start_array` made room for the entry."""
    cdef OwnedMemory* holding = <OwnedMemory*>array.private_data
    if memory != NULL:
        holding.memories[holding.count] = memory_share(memory)
        holding.count += 1


# -------------------------------------------------------------------------- a stream of one batch

cdef struct OneBatch:
    ArrowSchema schema
    ArrowArray array


cdef int stream_schema(ArrowArrayStream* stream, ArrowSchema* out) noexcept nogil:
    return 0 if copy_schema(&(<OneBatch*>stream.private_data).schema, out) == 0 else ENOMEM


cdef int stream_next(ArrowArrayStream* stream, ArrowArray* out) noexcept nogil:
    cdef OneBatch* batch = <OneBatch*>stream.private_data
    memcpy(out, &batch.array, sizeof(ArrowArray))
    memset(&batch.array, 0, sizeof(ArrowArray))
    return 0


cdef const char* stream_error(ArrowArrayStream* stream) noexcept nogil:
    return NULL


cdef void release_stream(ArrowArrayStream* stream) noexcept nogil:
    cdef OneBatch* batch = <OneBatch*>stream.private_data
    if batch.schema.release != NULL:
        batch.schema.release(&batch.schema)
    if batch.array.release != NULL:
        batch.array.release(&batch.array)
    free(batch)
    stream.release = NULL


# ------------------------------------------------------------------------ a stream of many batches

cdef struct ManyBatches:
    ArrowSchema schema
    # An iterator of objects with `__arrow_c_array__`, and the text of the error that it raised.
    PyObject* batches
    char* error


cdef int batches_schema(ArrowArrayStream* stream, ArrowSchema* out) noexcept nogil:
    return 0 if copy_schema(&(<ManyBatches*>stream.private_data).schema, out) == 0 else ENOMEM


cdef int batches_next(ArrowArrayStream* stream, ArrowArray* out) noexcept with gil:
    cdef ManyBatches* state = <ManyBatches*>stream.private_data
    cdef ArrowArray* array
    # An array that is released means the end.
    memset(out, 0, sizeof(ArrowArray))
    free(state.error)
    state.error = NULL
    try:
        for batch in <object>state.batches:
            _, capsule = batch.__arrow_c_array__()
            array = <ArrowArray*>PyCapsule_GetPointer(capsule, "arrow_array")
            memcpy(out, array, sizeof(ArrowArray))
            array.release = NULL
            break
    except BaseException as error:
        text = f"{type(error).__name__}: {error}".encode()
        state.error = strndup(text, len(text))
        return EINTR if isinstance(error, KeyboardInterrupt) else EIO
    return 0


cdef const char* batches_error(ArrowArrayStream* stream) noexcept nogil:
    return (<ManyBatches*>stream.private_data).error


cdef void release_batches(ArrowArrayStream* stream) noexcept with gil:
    cdef ManyBatches* state = <ManyBatches*>stream.private_data
    if state.schema.release != NULL:
        state.schema.release(&state.schema)
    Py_XDECREF(state.batches)
    free(state.error)
    free(state)
    stream.release = NULL


def arrow_stream(schema, batches):
    """Return an Arrow stream, as a capsule, of what an iterator yields: objects with `__arrow_c_array__`.

    schema: the schema of all of them, as a capsule. The iterator is advanced as batches are asked for, and an error
    that it raises is that of the stream.
    """
    cdef ArrowArrayStream* stream = <ArrowArrayStream*>zeroed_memory(sizeof(ArrowArrayStream))
    capsule = PyCapsule_New(stream, "arrow_array_stream", drop_stream)
    cdef ManyBatches* state = <ManyBatches*>zeroed_memory(sizeof(ManyBatches))
    stream.private_data = state
    stream.get_schema, stream.get_next = batches_schema, batches_next
    stream.get_last_error, stream.release = batches_error, release_batches
    if copy_schema(<ArrowSchema*>PyCapsule_GetPointer(schema, "arrow_schema"), &state.schema) < 0:
        raise MemoryError
    state.batches = <PyObject*>batches
    Py_INCREF(batches)
    return capsule


# ------------------------------------------------------------------------------------- capsules

cdef void drop_schema(object capsule) noexcept:
    cdef ArrowSchema* schema = <ArrowSchema*>PyCapsule_GetPointer(capsule, "arrow_schema")
    if schema.release != NULL:
        schema.release(schema)
    free(schema)


cdef void drop_array(object capsule) noexcept:
    cdef ArrowArray* array = <ArrowArray*>PyCapsule_GetPointer(capsule, "arrow_array")
    if array.release != NULL:
        array.release(array)
    free(array)


cdef void drop_stream(object capsule) noexcept:
    cdef ArrowArrayStream* stream = <ArrowArrayStream*>PyCapsule_GetPointer(capsule, "arrow_array_stream")
    if stream.release != NULL:
        stream.release(stream)
    free(stream)


cdef void* zeroed_memory(size_t size) except NULL:
    """Return zeroed memory. Raises MemoryError."""
    cdef void* room = calloc(1, size)
    if room == NULL:
        raise MemoryError
    return room
