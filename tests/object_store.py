"""An S3 server in a process of its own: clients in this one may hold the GIL while they wait for it."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import Request, urlopen

import pytest
from pyarrow import fs, parquet

pytest.importorskip("moto", reason="an S3 server is a test dependency")

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "s3cret",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_REGION": "us-east-1",
}


class Lake:
    """A bucket of an S3 server."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._options = f"endpoint_override={address}&scheme=http&region=us-east-1"
        self.system = fs.S3FileSystem(
            endpoint_override=address,
            scheme="http",
            region="us-east-1",
            access_key=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            secret_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            allow_bucket_creation=True,
        )

    def url(self, directory: str) -> str:
        return f"s3://lake/{directory}?{self._options}"

    def reset(self) -> None:
        """Remove all that the server has, and create the bucket."""
        urlopen(Request(f"http://{self.address}/moto-api/reset", method="POST")).close()
        self.system.create_dir("lake")

    def files(self, directory: str) -> list[str]:
        """Return the paths of the files below a directory."""
        found = self.system.get_file_info(fs.FileSelector(f"lake/{directory}", recursive=True, allow_not_found=True))
        return sorted(info.path.removeprefix("lake/") for info in found if info.type == fs.FileType.File)

    def copied(self, directory: str) -> list[tuple[int, int]]:
        """Return vbucket and seqno of each row of a copy."""
        found: list[tuple[int, int]] = []
        for path in self.files(directory):
            if path.endswith(".parquet"):
                with self.system.open_input_file(f"lake/{path}") as file:
                    table = parquet.read_table(file, columns=["vbucket", "seqno"])
                found += zip(table["vbucket"].to_pylist(), table["seqno"].to_pylist(), strict=True)
        return sorted(found)


@contextmanager
def s3_server() -> Iterator[str]:
    """Run a server. Yield its address."""
    # On a port of its own choice, which it prints.
    main = "import sys; from moto.server import main; sys.exit(main(['-H', '127.0.0.1', '-p', '0']))"
    with subprocess.Popen(
        [sys.executable, "-c", main], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        found = next(filter(None, map(re.compile(r"Running on http://(127\.0\.0\.1:\d+)").search, server.stderr)))
        # A server whose log nobody reads stops when the pipe is full.
        log = threading.Thread(target=deque, args=(server.stderr, 0))
        log.start()
        try:
            yield found[1]
        finally:
            server.kill()
            log.join()


@pytest.fixture(scope="module")
def s3_address() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture
def lake(s3_address: str, monkeypatch: pytest.MonkeyPatch) -> Lake:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    lake = Lake(s3_address)
    lake.reset()
    return lake
