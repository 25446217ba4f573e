"""Comparison of two revisions of the source: `python bench/compare.py BASE HEAD`."""
