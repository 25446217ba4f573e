"""Batches of columns: their types, the decoder that fills them from bytes, and the encoders back to bytes."""
