"""Build all programs at the same time, as `make interop` does before it runs the tests."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from tests.interop.programs import TOOLCHAINS, Toolchain, build, missing_tools


def _built(toolchain: Toolchain) -> str:
    """Return how a build went."""
    if missing := missing_tools(toolchain):
        return f"{toolchain.folder}: not built, needs {', '.join(missing)}"
    begin = time.monotonic()
    build(toolchain)
    return f"{toolchain.folder}: built in {time.monotonic() - begin:.0f} s"


with ThreadPoolExecutor(len(TOOLCHAINS)) as threads:
    for line in threads.map(_built, TOOLCHAINS):
        print(line, flush=True)
