"""Picture of the page in the docs: `python -m tests.embedded.screenshot docs/page.png`.

Pillow comes with matplotlib.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from PIL import Image

import dcp
from dcp.embedded import Cluster
from tests.embedded.browser import opened, running_browser

WIDTH, HEIGHT = 1280, 860
# Seconds for which the page watches the cluster before the picture.
WATCHED = 20.0


def write(cluster: Cluster, stopped: threading.Event) -> None:
    """Write documents, now faster, now slower."""
    number = 0
    while not stopped.wait(0.01 + 0.02 * (number // 4000 % 3)):
        for _ in range(40):
            number += 1
            cluster.upsert(f"order-{number % 5000}", b'{"total": 1}')


def follow(cluster: Cluster, stopped: threading.Event) -> None:
    """Read all changes."""
    with dcp.connect(cluster.url) as client:
        for _ in client.stream(start="beginning"):
            if stopped.is_set():
                return


def main(target: Path) -> None:
    stopped = threading.Event()
    with Cluster(nodes=3, replicas=1, vbuckets=256, bucket="travel", seed=1) as cluster, running_browser() as browser:
        threads = [threading.Thread(target=run, args=(cluster, stopped)) for run in (write, follow)]
        with opened(browser, cluster, viewport={"width": WIDTH, "height": HEIGHT}) as page:
            for thread in threads:
                thread.start()
            page.wait_for_timeout(WATCHED * 500)
            cluster.failover(1, lose=5)
            cluster.rebalance_in()
            cluster.fault("slow", rate="64k", node=0)
            page.wait_for_timeout(WATCHED * 500)
            page.locator("#groups summary", has_text="nodes").click()
            page.locator("#groups summary", has_text="faults").click()
            page.locator("form[data-operation=fault] select").select_option("rollback")
            page.wait_for_timeout(1000)
            page.screenshot(path=target)
        # A palette makes the file a third as large.
        with Image.open(target) as picture:
            picture.quantize(128).save(target, optimize=True)
        stopped.set()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
