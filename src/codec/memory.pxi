# Memory with several owners: columns, receive buffers, memory that Arrow consumers hold.
#
# The count of owners is atomic and freeing needs no Python, so the last owner may be any thread, with or without the
# GIL. Only memory of a Python object takes the GIL when it is released.

cdef extern from *:
    """
    #if defined(_MSC_VER)
      #include <intrin.h>
      #define atomic_add(at, n) (_InterlockedExchangeAdd((volatile long *)(at), (n)) + (n))
      #define atomic_take(at) _InterlockedExchange((volatile long *)(at), 1)
      #define atomic_give(at) _InterlockedExchange((volatile long *)(at), 0)
      #define atomic_get(at) _InterlockedExchangeAdd((volatile long *)(at), 0)
    #else
      #define atomic_add(at, n) __atomic_add_fetch((at), (n), __ATOMIC_ACQ_REL)
      #define atomic_take(at) __atomic_exchange_n((at), 1, __ATOMIC_ACQUIRE)
      #define atomic_give(at) __atomic_store_n((at), 0, __ATOMIC_RELEASE)
      #define atomic_get(at) __atomic_load_n((at), __ATOMIC_ACQUIRE)
    #endif
    """
    long atomic_add(long* at, long n) noexcept nogil
    long atomic_take(long* at) noexcept nogil
    void atomic_give(long* at) noexcept nogil
    long atomic_get(long* at) noexcept nogil

cdef struct Memory:
    # `holder` is the Python object that the data belongs to; NULL if it was malloc'ed.
    long owners
    Py_ssize_t size
    uint8_t* data
    PyObject* holder


cdef Memory* memory_of(void* data, Py_ssize_t size, PyObject* holder=NULL) noexcept nogil:
    """Wrap malloc'ed data, or that of a Python object, for its first owner. Return NULL if there is no memory."""
    cdef Memory* memory = <Memory*>malloc(sizeof(Memory))
    if memory != NULL:
        memory.owners, memory.size, memory.data, memory.holder = 1, size, <uint8_t*>data, holder
    return memory


cdef Memory* memory_new(Py_ssize_t size) noexcept nogil:
    """Return new memory, with SLACK bytes beyond its size; NULL if there is none."""
    cdef void* data = malloc(size + SLACK)
    cdef Memory* memory = NULL if data == NULL else memory_of(data, size)
    if memory == NULL:
        free(data)
    return memory


cdef Memory* memory_share(Memory* memory) noexcept nogil:
    """Add an owner, and return the memory."""
    if memory != NULL:
        atomic_add(&memory.owners, 1)
    return memory


cdef void memory_release(Memory* memory) noexcept nogil:
    """Remove an owner. The last one frees the memory."""
    if memory == NULL or atomic_add(&memory.owners, -1):
        return
    if memory.holder == NULL:
        free(memory.data)
    else:
        memory_release_holder(memory.holder)
    free(memory)


cdef inline Py_ssize_t memory_size(const Memory* memory) noexcept nogil:
    return 0 if memory == NULL else memory.size


cdef void memory_release_holder(PyObject* holder) noexcept with gil:
    """Release the Python object that memory belongs to. Apart, so that only this takes the GIL."""
    Py_DECREF(<object>holder)


cdef class View:
    """Part of shared memory as a Python buffer. It is an owner of the memory."""

    cdef Memory* _memory
    cdef uint8_t* _data
    cdef Py_ssize_t _size
    cdef bint _writable

    @staticmethod
    cdef View of(Memory* memory, void* data, Py_ssize_t size, bint writable):
        cdef View view = View.__new__(View)
        view._memory = memory_share(memory)
        view._data, view._size, view._writable = <uint8_t*>data, size, writable
        return view

    def __dealloc__(self):
        memory_release(self._memory)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self._data, self._size, not self._writable, flags)

    def __len__(self):
        return self._size
