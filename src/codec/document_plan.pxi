# Plans of documents: a schema as C structures. `dcp.columns.document` compiles them.

cpdef enum DocumentKind:
    DOCUMENT_BOOL
    DOCUMENT_INT8
    DOCUMENT_INT16
    DOCUMENT_INT32
    DOCUMENT_INT64
    DOCUMENT_FLOAT32
    DOCUMENT_FLOAT64
    DOCUMENT_DECIMAL
    DOCUMENT_STRING
    DOCUMENT_BINARY
    DOCUMENT_DATE
    DOCUMENT_TIMESTAMP
    DOCUMENT_LOCAL_TIMESTAMP
    DOCUMENT_EPOCH
    DOCUMENT_JSON
    DOCUMENT_STRUCT
    DOCUMENT_LIST
    DOCUMENT_MAP

cdef struct DocumentNode:
    # One type of the schema. Children are consecutive: the fields of a struct, the element of a list, key and value of
    # a map.
    int kind
    int parent
    int first
    int count
    # Bytes of a cell; 0 for a struct, whose cells are those of its children, and for bits. Offsets have 4.
    int width
    int precision
    int scale
    # Of a struct: the first of its slots, and the first of its levels.
    int slots_at
    int level
    # Of a field: its slot among those of its struct.
    int slot
    # Memory that a cell takes with all cells below it, bytes of texts aside.
    int64_t cell_bytes
    # True if a `json` is in it, which needs its position in the value.
    bint wants_source
    # For errors: what is expected, and the step of the path that leads here.
    const char* expected
    const char* path

cdef struct Member:
    # A name that a level looks for. The slot of its value, the level below it and the slot for that; each may be
    # NOWHERE.
    const char* name
    int64_t size
    int slot
    int level
    int level_slot

cdef struct Level:
    # An object that a struct reads: its own one, or one on the way to a field that lies deeper.
    int first_member
    int n_members
    # Hash table: index of a member, or NOWHERE. `table_mask` is its size less 1.
    int* table
    uint32_t table_mask
    # True if some of the members are looked into.
    bint leads_on
    const char* path


cdef inline uint32_t hash_name(const char* name, int64_t size) noexcept nogil:
    """Hash a name. Up to SLACK bytes beyond it may be read."""
    cdef uint64_t head = load64(<const uint8_t*>name), tail = 0
    if size >= 8:
        tail = load64(<const uint8_t*>name + size - 8)
    else:
        head = head >> 8 * (8 - size) if size else 0
    return <uint32_t>((head ^ (tail * 0x9E3779B97F4A7C15ULL) ^ <uint64_t>size) * 0xD6E8FEB86659FD93ULL >> 32)


cdef class DocumentPlan:
    """Schema of documents, ready for the loop. Immutable, so threads may share it."""

    cdef int n_nodes, n_slots, n_levels
    cdef DocumentNode* nodes
    cdef Member* members
    cdef Level* levels
    # Name and Arrow format of each type, for the schema.
    cdef list _described
    # Keeps the texts that the structures point to.
    cdef list _texts

    def __cinit__(self, nodes, levels):
        """Compile a plan.

        nodes: a mapping for each type, parents before their children, see dcp.columns.document.
        levels: (path, members) of each level; a member is (name, slot, level, slot of the level).
        """
        cdef DocumentNode* node
        cdef int i
        self._texts = []
        self._described = [(row["name"].encode(), row["format"].encode()) for row in nodes]
        self.n_nodes, self.n_levels = len(nodes), len(levels)
        self.nodes = <DocumentNode*>zeroed_memory((len(nodes) + 1) * sizeof(DocumentNode))
        self.levels = <Level*>zeroed_memory((len(levels) + 1) * sizeof(Level))
        self.members = <Member*>zeroed_memory((sum(len(level[1]) for level in levels) + 1) * sizeof(Member))
        for i, row in enumerate(nodes):
            node = &self.nodes[i]
            node.kind, node.parent, node.first, node.count = row["kind"], row["parent"], row["first"], row["count"]
            node.precision, node.scale = row["precision"], row["scale"]
            node.slots_at, node.level, node.wants_source = self.n_slots, row["level"], row["wants_source"]
            node.slot = row["slot"]
            self.n_slots += row["slots"]
            node.width = width_of(node.kind)
            node.expected, node.path = self._keep(row["expected"]), self._keep(row["path"])
        # Where the slots of the last node end.
        self.nodes[self.n_nodes].slots_at = self.n_slots
        for i in range(self.n_nodes - 1, -1, -1):
            node = &self.nodes[i]
            node.cell_bytes += node.width + 1
            if node.parent != NOWHERE and self.nodes[node.parent].kind == DOCUMENT_STRUCT:
                self.nodes[node.parent].cell_bytes += node.cell_bytes
        self._add_levels(levels)

    def __dealloc__(self):
        cdef int i
        for i in range(self.n_levels if self.levels != NULL else 0):
            free(self.levels[i].table)
        free(self.levels)
        free(self.members)
        free(self.nodes)

    cdef int describe(self, ArrowSchema* out, int number, name) except -1:
        """Fill in the Arrow schema of a type with all below it, under another name if it is not None."""
        cdef DocumentNode* node = &self.nodes[number]
        cdef ArrowSchema* holder = out
        cdef int64_t flags = ARROW_FLAG_NULLABLE
        cdef int i
        wire_name, format = self._described[number]
        # A map's keys are never null.
        if node.parent != NOWHERE and self.nodes[node.parent].kind == DOCUMENT_MAP and \
                number == self.nodes[node.parent].first:
            flags = 0
        wire_name = name or wire_name
        if start_schema(out, format, wire_name, flags, 1 if node.kind == DOCUMENT_MAP else node.count) == NULL:
            raise MemoryError
        if node.kind == DOCUMENT_MAP:
            holder = out.children[0] = <ArrowSchema*>zeroed_memory(sizeof(ArrowSchema))
            if start_schema(holder, "+s", "entries", 0, 2) == NULL:
                raise MemoryError
        for i in range(node.count):
            holder.children[i] = <ArrowSchema*>zeroed_memory(sizeof(ArrowSchema))
            self.describe(holder.children[i], node.first + i, None)
        return 0

    cdef const char* _keep(self, str text) except NULL:
        """Return the text as UTF-8, with SLACK bytes after it."""
        kept = text.encode() + bytes(SLACK)
        self._texts.append(kept)
        return <const char*><char*>kept

    cdef int _add_levels(self, levels) except -1:
        cdef int i, number = 0
        cdef uint32_t at
        cdef Level* level
        cdef Member* member
        for i, (path, members) in enumerate(levels):
            level = &self.levels[i]
            level.first_member, level.n_members, level.path = number, len(members), self._keep(path)
            level.table_mask = 4
            while level.table_mask < 2 * <uint32_t>len(members):
                level.table_mask *= 2
            level.table = <int*>zeroed_memory(level.table_mask * sizeof(int))
            memset(level.table, 0xFF, level.table_mask * sizeof(int))
            level.table_mask -= 1
            for name, slot, below, below_slot in members:
                member = &self.members[number]
                member.name, member.size = self._keep(name), len(name.encode())
                member.slot, member.level, member.level_slot = slot, below, below_slot
                level.leads_on = level.leads_on or below != NOWHERE
                at = hash_name(member.name, member.size) & level.table_mask
                while level.table[at] != NOWHERE:
                    at = (at + 1) & level.table_mask
                level.table[at] = number
                number += 1
        return 0


cdef int width_of(int kind) noexcept nogil:
    """Return the bytes of a cell in the fixed part of a column; 0 for bits and structs."""
    if kind == DOCUMENT_INT8:
        return 1
    if kind == DOCUMENT_INT16:
        return 2
    if kind == DOCUMENT_INT64 or kind == DOCUMENT_FLOAT64 or kind == DOCUMENT_TIMESTAMP or \
            kind == DOCUMENT_LOCAL_TIMESTAMP or kind == DOCUMENT_EPOCH:
        return 8
    if kind == DOCUMENT_DECIMAL:
        return 16
    return 0 if kind == DOCUMENT_BOOL or kind == DOCUMENT_STRUCT else 4
