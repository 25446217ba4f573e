"""One conversation with one node: bytes and commands in, bytes and events out. No I/O, and the clock is an argument."""
