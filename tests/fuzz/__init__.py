"""Fuzzing: see README.md here. Nothing in this package is a test; tests/test_fuzz.py replays what it keeps."""
