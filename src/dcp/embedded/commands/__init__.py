"""What a node answers besides DCP: one module a topic, each with a table of its handlers."""
