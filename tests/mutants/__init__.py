"""Mutants: one-line changes of the code, each of which a test has to notice."""
