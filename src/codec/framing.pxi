# What the loop knows of framing extras.

cdef enum:
    STREAM_ID_INFO = 2
    UNCOUNTED_HEAD = 0x22
    UNCOUNTED_LENGTH = 3

# What a test compares with the table of frame infos.
FRAMING = {
    "stream_id": STREAM_ID_INFO,
    "uncounted_head": UNCOUNTED_HEAD,
    "uncounted_length": UNCOUNTED_LENGTH,
}
