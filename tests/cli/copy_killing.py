"""`dcp copy` into an object store is killed at random moments and started again, while the bucket changes.

python -m tests.cli.copy_killing --kills 200
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from random import Random

from dcp.embedded import Cluster
from tests.cli.commands import run, start
from tests.object_store import CREDENTIALS, Lake, s3_server


def everything(cluster: Cluster) -> list[tuple[int, int]]:
    """Return vbucket and seqno of each document."""
    return sorted((found.vbucket, found.seqno) for found in cluster.truth().values())


def kill_copies(lake: Lake, seed: int, kills: int) -> int:
    """Kill a copy several times. Return how often it ran when it was killed. Fail if it lost or repeated a change."""
    chance, never, killed = Random(seed), threading.Event(), 0
    with Cluster(nodes=2, vbuckets=8) as cluster:
        cluster.load(3000)
        for number in range(kills):
            with start("copy", cluster.url, lake.url("out"), "--max-rows-per-file", "100", "--follow") as copy:
                before = set(lake.files("out"))
                left = chance.randrange(1, 9)
                # What there is new after the copy began: it may remove files first.
                while len({*lake.files("out")} - before) < left and copy.poll() is None:
                    never.wait(chance.random() / 20)
                killed += copy.poll() is None
                copy.kill()
            cluster.load(850, prefix=f"{number}-")
        last = run("copy", cluster.url, lake.url("out"))
        assert last.exit_code == 0, last.output
        assert lake.copied("out") == everything(cluster)
    return killed


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cli.copy_killing")
    parser.add_argument("--kills", type=int, default=200, help="how often, in runs of 10 with a cluster each")
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    chosen = parser.parse_args()
    os.environ |= CREDENTIALS
    began, killed = time.monotonic(), 0
    with s3_server() as address:
        for seed in range(chosen.seed, chosen.seed + chosen.kills // 10):
            lake = Lake(address)
            lake.reset()
            killed += kill_copies(lake, seed, kills=10)
            print(f"{killed} kills, every copy complete, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
