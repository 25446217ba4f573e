"""The engine of one change stream: every vbucket over every node, under one lock."""
