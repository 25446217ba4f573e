"""Benchmarks: deterministic bytes, contenders that are measured in turns, and a report. `dcp bench` runs them."""

# Each name is a module `bench_NAME` with a function `run`. Those of Spark are not run by default: they need Java, and
# minutes.
BENCHES = ("decode", "documents", "encode", "producer", "socket")
SPARK = ("spark", "spark_documents")
