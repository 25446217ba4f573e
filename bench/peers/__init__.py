"""DCP clients of others beside this project's, on the same bytes: `python -m bench.peers`."""
