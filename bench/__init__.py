"""How fast the codec is: deterministic bytes, contenders that take turns, and a report.

`python -m bench` (or `make bench`) runs all of it; `python bench/compare.py BASE HEAD` compares two revisions.
"""
