"""Compiled code for the hot loops: bytes to frames and columns, and columns to bytes.

It knows the offsets of the header, and what a plan tells it: no opcode, no dialect. Each length from the network is
held against what is left, or against its limit, before anything waits for it, allocates memory for it or adds to it.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF, PyObject
from libc.errno cimport EINTR, EIO, ENOMEM
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove, memset, strlen, strndup

from os import strerror

from dcp.errors import FrameError, UsageError

cdef enum:
    HEADER_SIZE = 24
    OPCODE_AT = 1
    KEY_LENGTH_AT = 2
    EXTRAS_LENGTH_AT = 4
    VBUCKET_AT = 6
    BODY_LENGTH_AT = 8
    BODY_LENGTH_END = 12
    # Bytes beyond the end of our own memory that may be read, or written and overwritten later.
    SLACK = 64

# A test compares these with the table of the header.
HEADER = {
    "opcode": OPCODE_AT,
    "key_length": KEY_LENGTH_AT,
    "extras_length": EXTRAS_LENGTH_AT,
    "vbucket": VBUCKET_AT,
    "body_length": BODY_LENGTH_AT,
    "opaque": BODY_LENGTH_END,
}

include "codec/framing.pxi"
include "codec/endian.pxi"
include "codec/memory.pxi"
include "codec/arrow.pxi"
include "codec/splitter.pxi"
include "codec/snappy.pxi"
include "codec/utf8.pxi"
include "codec/document_plan.pxi"
include "codec/plan.pxi"
include "codec/columns.pxi"
include "codec/stream_table.pxi"
include "codec/json.pxi"
include "codec/scalars.pxi"
include "codec/document.pxi"
include "codec/selection.pxi"
include "codec/scan.pxi"
include "codec/fast_path.pxi"
include "codec/values.pxi"
include "codec/column_writes.pxi"
include "codec/receiving.pxi"
include "codec/moving_streams.pxi"
include "codec/decoder.pxi"
include "codec/encoder.pxi"
include "codec/row_encoder.pxi"
