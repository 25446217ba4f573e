"""Spark starts several Python processes for each query: what they import is most of a small query's cost."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """\
import sys

from dcp.embedded import Cluster
from tests.spark.query import MaxRows, Query

with Cluster(vbuckets=4) as cluster:
    cluster.load(100)
    with Query(cluster.url, newestOnly=sys.argv[1]) as query:
        query.end = query.next_end(MaxRows(40))
        tasks = query.tasks()
        found = [batch for task in tasks for batch in query.driver.read(task)]
        assert 0 < sum(batch.num_rows for batch in found) < 100
print([name for name in ("pandas", "dns") if name in sys.modules])
"""


def test_a_query_imports_neither_pandas_nor_dns() -> None:
    for newest_only in ("false", "true"):
        command = [sys.executable, "-c", SCRIPT, newest_only]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"
