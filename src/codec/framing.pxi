# Constants of framing extras: see dcp.wire.framing.

cdef enum:
    STREAM_ID_INFO = 2
    UNCOUNTED_HEAD = 0x22
    UNCOUNTED_LENGTH = 3

# A test compares these with the table of frame infos.
FRAMING = {
    "stream_id": STREAM_ID_INFO,
    "uncounted_head": UNCOUNTED_HEAD,
    "uncounted_length": UNCOUNTED_LENGTH,
}
