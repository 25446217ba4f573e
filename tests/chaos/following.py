"""A consumer as a process of its own, until it is killed: `python -m tests.chaos.following URL DIRECTORY`.

Changes are appended to a log, then a checkpoint is stored under the length of the log. After a kill, the next process
truncates the log to the length of the last checkpoint. Each stored batch is reported as a line on stdout.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dcp
from dcp.checkpoint import CheckpointFile

_COLUMNS = ["event", "vbucket", "seqno", "collection_id", "key", "value", "snapshot_end"]


def log_of(directory: Path) -> Path:
    return directory / "log"


def last_length(directory: Path) -> int:
    """Return the length of the log at the last checkpoint."""
    return max((int(path.stem) for path in directory.glob("[0-9]*.json")), default=0)


def read_log(directory: Path) -> Iterator[dict[str, Any]]:
    """Iterate over the stored rows."""
    with log_of(directory).open("rb") as log:
        for line in log.read(last_length(directory)).splitlines():
            row = json.loads(line)
            yield row | {name: row[name].encode("latin-1") for name in ("key", "value")}


def main() -> None:
    url, directory = sys.argv[1], Path(sys.argv[2])
    length = last_length(directory)
    checkpoint = CheckpointFile(directory / f"{length}.json").load()
    with log_of(directory).open("ab") as log, dcp.connect(url) as client:
        log.truncate(length)
        for batch in (stream := client.stream(checkpoint or "beginning", columns=_COLUMNS, batch_rows=3, linger=0.0)):
            for row in batch.to_arrow().to_pylist():
                text = {name: (row[name] or b"").decode("latin-1") for name in ("key", "value")}
                log.write(json.dumps(row | text).encode() + b"\n")
            log.flush()
            # The log has to be on disk before the checkpoint that refers to it.
            os.fsync(log.fileno())
            before, length = length, log.tell()
            CheckpointFile(directory / f"{length}.json").save(stream.checkpoint)
            (directory / f"{before}.json").unlink(missing_ok=True)
            print(length, flush=True)


if __name__ == "__main__":
    main()
