"""A cluster in memory that speaks the protocol on real sockets."""
