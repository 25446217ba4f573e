# Selection of rows: by event, by key, and by a condition on the document. `dcp.columns.selection` compiles it.
#
# A condition is true, false or unknown, as in SQL: a field that is missing or null makes a comparison unknown, and only
# rows for which the condition is true are kept. Values of different types are not equal, and neither is the lesser.

cpdef enum TestKind:
    TEST_AND
    TEST_OR
    TEST_NOT
    TEST_NULL
    TEST_LIKE
    TEST_EQUAL
    TEST_UNEQUAL
    TEST_LESS
    TEST_LESS_OR_EQUAL

cdef enum Truth:
    IS_FALSE
    IS_TRUE
    IS_UNKNOWN

cdef struct Test:
    # One operator. `left` and `right` are tests for AND, OR and NOT, which has no right one. The others compare the
    # value at a path with a literal; `swapped` is literal < value.
    int kind
    int left
    int right
    int first_step
    int n_steps
    bint swapped
    # The literal, by its JSON type. The text of LIKE is followed by a byte for each of its own, see `matches`.
    int type
    const char* text
    int64_t size
    bint truth
    bint is_whole
    int64_t whole
    double number

cdef struct Step:
    const char* name
    int64_t size

cdef struct KeyPattern:
    # Bytes of a key, and for each whether it is a star, which stands for any bytes. A literal star is none.
    const char* text
    const uint8_t* stars
    int64_t size


cdef struct SelectedRows:
    # Bit n is set if rows of event n are kept.
    uint64_t events
    # Keys that are kept as they are, by length and bytes, and patterns of others.
    bint all_keys
    int n_keys
    int n_patterns
    KeyPattern* keys
    KeyPattern* patterns
    # The condition. The first test is the outermost; there may be none.
    int n_tests
    Test* tests
    Step* steps


cdef class Selection:
    """Rows to keep, ready for the loop. Immutable, so threads may share it."""

    cdef SelectedRows rows
    cdef list _texts

    def __cinit__(self, events, keys, patterns, tests):
        """Compile a selection.

        events: numbers of the events to keep.
        keys: keys to keep as they are, sorted by length and bytes; None for all keys.
        patterns: (bytes, a byte for each that is 1 where it is a star) of further keys.
        tests: a mapping for each operator, the outermost first, see dcp.columns.selection.
        """
        cdef SelectedRows* rows = &self.rows
        cdef Test* test
        cdef int i, n_steps = 0
        self._texts = []
        for number in events:
            rows.events |= <uint64_t>1 << <int>number
        rows.all_keys = keys is None
        rows.n_keys, rows.n_patterns, rows.n_tests = len(keys or ()), len(patterns), len(tests)
        rows.keys = <KeyPattern*>zeroed_memory((rows.n_keys + 1) * sizeof(KeyPattern))
        for i, key in enumerate(keys or ()):
            rows.keys[i] = KeyPattern(self._keep(key), NULL, len(key))
        rows.patterns = <KeyPattern*>zeroed_memory((rows.n_patterns + 1) * sizeof(KeyPattern))
        for i, (text, stars) in enumerate(patterns):
            rows.patterns[i] = KeyPattern(self._keep(text), <const uint8_t*>self._keep(stars), len(text))
        rows.steps = <Step*>zeroed_memory((sum(len(row["path"]) for row in tests) + 1) * sizeof(Step))
        rows.tests = <Test*>zeroed_memory((len(tests) + 1) * sizeof(Test))
        for i, row in enumerate(tests):
            test = &rows.tests[i]
            test.kind, test.left, test.right = row["kind"], row["left"], row["right"]
            test.swapped, test.type, test.truth = row["swapped"], row["type"], row["truth"]
            test.is_whole, test.whole, test.number = row["is_whole"], row["whole"], row["number"]
            test.text, test.size = self._keep(row["text"]), len(row["text"])
            test.first_step, test.n_steps = n_steps, len(row["path"])
            for name in row["path"]:
                rows.steps[n_steps] = Step(self._keep(name), len(name))
                n_steps += 1

    def __dealloc__(self):
        free(self.rows.keys)
        free(self.rows.patterns)
        free(self.rows.tests)
        free(self.rows.steps)

    cdef const char* _keep(self, bytes data) except NULL:
        kept = data + bytes(SLACK)
        self._texts.append(kept)
        return <const char*><char*>kept


# ----------------------------------------------------------------------------------------- keys

cdef bint selects_key(const SelectedRows* rows, const uint8_t* key, int64_t size) noexcept nogil:
    """Return whether a key is one of the keys, or matches a pattern."""
    cdef const KeyPattern* keys = rows.keys
    cdef const KeyPattern* pattern
    cdef int low = 0, high = rows.n_keys, middle, order
    while low < high:
        middle = (low + high) // 2
        order = (size > keys[middle].size) - (size < keys[middle].size)
        if order == 0:
            order = memcmp(key, keys[middle].text, size)
        if order == 0:
            return True
        if order > 0:
            low = middle + 1
        else:
            high = middle
    for middle in range(rows.n_patterns):
        pattern = &rows.patterns[middle]
        if matches(<const uint8_t*>pattern.text, pattern.stars, pattern.size, key, size):
            return True
    return False


cdef bint matches(const uint8_t* pattern, const uint8_t* stars, int64_t pattern_size, const uint8_t* text,
                  int64_t size) noexcept nogil:
    """Return whether a text matches a pattern.

    stars: a byte for each of the pattern: 1 stands for any bytes, and 2 for one UTF-8 character.

    A star first matches nothing, and a byte more whenever the rest does not match: time by the product of the sizes.
    """
    cdef int64_t at = 0, i = 0, star = NOWHERE, mark = 0
    while i < size:
        if at < pattern_size and stars[at] == 1:
            star, mark = at, i
            at += 1
        elif at < pattern_size and stars[at] == 2:
            at += 1
            i += 1
            while i < size and text[i] & 0xC0 == 0x80:
                i += 1
        elif at < pattern_size and pattern[at] == text[i]:
            at += 1
            i += 1
        elif star != NOWHERE:
            at = star + 1
            mark += 1
            i = mark
        else:
            return False
    while at < pattern_size and stars[at] == 1:
        at += 1
    return at == pattern_size


# ----------------------------------------------------------------------------------- conditions

cdef yyjson_val* value_at(const Step* steps, int n_steps, yyjson_val* value) noexcept nogil:
    """Return the value at a path, the last of several members with one name; NULL if there is none."""
    cdef yyjson_val* name
    cdef yyjson_val* found
    cdef size_t left
    cdef int i
    for i in range(n_steps):
        if unsafe_yyjson_get_type(value) != YYJSON_TYPE_OBJ:
            return NULL
        name, found, left = unsafe_yyjson_get_first(value), NULL, unsafe_yyjson_get_len(value)
        while left:
            if <int64_t>unsafe_yyjson_get_len(name) == steps[i].size and \
                    memcmp(unsafe_yyjson_get_str(name), steps[i].name, steps[i].size) == 0:
                found = name + 1
            name = unsafe_yyjson_get_next(name + 1)
            left -= 1
        if found == NULL:
            return NULL
        value = found
    return value


cdef Truth evaluate(const Test* tests, const Step* steps, int number, yyjson_val* root) noexcept nogil:
    """Return whether a condition holds for a document."""
    cdef const Test* test = &tests[number]
    cdef yyjson_val* value
    cdef Truth left, right
    cdef bint missing
    if test.kind == TEST_NOT:
        left = evaluate(tests, steps, test.left, root)
        return IS_UNKNOWN if left == IS_UNKNOWN else IS_FALSE if left == IS_TRUE else IS_TRUE
    if test.kind == TEST_AND or test.kind == TEST_OR:
        left = evaluate(tests, steps, test.left, root)
        if left == (IS_FALSE if test.kind == TEST_AND else IS_TRUE):
            return left
        right = evaluate(tests, steps, test.right, root)
        if right == (IS_FALSE if test.kind == TEST_AND else IS_TRUE):
            return right
        return IS_UNKNOWN if left == IS_UNKNOWN or right == IS_UNKNOWN else left
    value = value_at(steps + test.first_step, test.n_steps, root)
    missing = value == NULL or unsafe_yyjson_get_type(value) == YYJSON_TYPE_NULL
    if test.kind == TEST_NULL:
        return IS_TRUE if missing else IS_FALSE
    return IS_UNKNOWN if missing else compare(test, value)


cdef Truth compare(const Test* test, yyjson_val* value) noexcept nogil:
    """Compare a value with a literal."""
    cdef int order = 0
    if unsafe_yyjson_get_type(value) != test.type:
        return IS_TRUE if test.kind == TEST_UNEQUAL else IS_FALSE if test.kind == TEST_EQUAL else IS_UNKNOWN
    if test.type == YYJSON_TYPE_STR:
        if test.kind == TEST_LIKE:
            return truth_of(matches(
                <const uint8_t*>test.text, <const uint8_t*>test.text + test.size // 2, test.size // 2,
                <const uint8_t*>unsafe_yyjson_get_str(value), unsafe_yyjson_get_len(value),
            ))
        order = order_texts(value, test)
    elif test.type == YYJSON_TYPE_BOOL:
        order = <int>unsafe_yyjson_get_bool(value) - <int>test.truth
    elif not order_numbers(value, test, &order):
        return IS_UNKNOWN
    if test.swapped:
        order = -order
    if test.kind == TEST_EQUAL:
        return truth_of(order == 0)
    if test.kind == TEST_UNEQUAL:
        return truth_of(order != 0)
    return truth_of(order < 0 if test.kind == TEST_LESS else order <= 0)


cdef inline Truth truth_of(bint holds) noexcept nogil:
    return IS_TRUE if holds else IS_FALSE


cdef int order_texts(yyjson_val* value, const Test* test) noexcept nogil:
    """Compare by bytes, which is by code points."""
    cdef int64_t size = unsafe_yyjson_get_len(value)
    cdef int order = memcmp(unsafe_yyjson_get_str(value), test.text, min(size, test.size))
    return order if order else (size > test.size) - (size < test.size)


cdef bint order_numbers(yyjson_val* value, const Test* test, int* order) noexcept nogil:
    """Compare whole numbers of 64 bits exactly, others as floating-point numbers. Return False if one is too large."""
    cdef int64_t whole
    cdef yyjson_val parsed
    cdef double number
    if test.is_whole and read_integer(unsafe_yyjson_get_str(value), unsafe_yyjson_get_len(value), 64, &whole):
        order[0] = (whole > test.whole) - (whole < test.whole)
        return True
    if yyjson_read_number(unsafe_yyjson_get_str(value), &parsed, 0, NULL, NULL) == NULL:
        return False
    number = yyjson_get_num(&parsed)
    order[0] = (number > test.number) - (number < test.number)
    return True
