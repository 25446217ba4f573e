"""Tests of tables need the libraries of all of them, of which some have no wheels for every Python."""

from __future__ import annotations

from importlib.util import find_spec

if not all(map(find_spec, ("deltalake", "duckdb", "pyiceberg"))):
    collect_ignore_glob = ["test_*.py"]
