"""What concerns all tests."""

from __future__ import annotations

from importlib.util import find_spec

# The command line is an extra: without it, there is nothing to test.
collect_ignore = [] if find_spec("click") else ["test_inspect.py"]
