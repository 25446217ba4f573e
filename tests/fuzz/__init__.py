"""Fuzzers, see README.md here. tests/test_fuzz.py replays their findings; nothing else in this package is a test."""
