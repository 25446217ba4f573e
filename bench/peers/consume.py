"""This project's consumer: `python consume.py url=... user=... password=... [ca=...] [snappy=on] [streams=off]`.

Prints `connected`, then the number of rows and the bytes of their values. Ends when standard input is closed.
"""

from __future__ import annotations

import sys
from typing import Literal

import numpy  # noqa: F401, loaded before `connected`, since the count needs it

import dcp

# Flow-control window of all consumers, in bytes.
WINDOW = 20_000_000


def main(options: dict[str, str]) -> None:
    """Read the bucket from its beginning to now."""
    scheme, _, hosts = options["url"].partition("://")
    url = f"{scheme}://{options['user']}:{options['password']}@{hosts}/default"
    compression: Literal["on", "off"] = "on" if "snappy" in options else "off"
    with dcp.connect(url, ca_cert_path=options.get("ca"), compression=compression, dcp_buffer_size=WINDOW) as client:
        print("connected", flush=True)
        rows = size = 0
        if "streams" not in options:
            for batch in client.stream(end="now"):
                rows += len(batch)
                size += batch.to_numpy()["value"].data.nbytes
        print(rows, size, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(dict(argument.split("=", 1) for argument in sys.argv[1:]))
