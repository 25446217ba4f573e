"""How fast it all is: deterministic bytes, contenders that take turns, and a report.

`dcp bench` runs it.
"""

# Each is a module `bench_NAME` with `run`. Spark is asked for by name: it needs a Java, and minutes.
BENCHES = ("decode", "encode", "producer", "socket")
SPARK = "spark"
