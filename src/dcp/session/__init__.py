"""One connection to one node, without I/O: bytes and commands in, bytes, batches and events out; time is passed in."""
