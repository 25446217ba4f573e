"""Run one target under atheris: `python -m tests.fuzz.run TARGET [DIRECTORY] [libFuzzer's options]`.

The corpus grows in DIRECTORY; without one it is discarded at the end. If the options name files, the target runs on
these only.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from hashlib import sha1
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# Inputs are small, whatever lengths they announce; so little memory must be enough.
LIMITS = ("-max_len=1000", "-malloc_limit_mb=32", "-rss_limit_mb=3000", "-timeout=30", "-print_final_stats=1")


def main() -> None:
    name, options = sys.argv[1], sys.argv[2:]
    if files := [Path(option) for option in options if Path(option).is_file()]:
        for file in files:
            import_module("tests.fuzz.targets").TARGETS[name](read(file))
        return
    atheris: Any = import_module("atheris")
    with atheris.instrument_imports(include=["dcp"], enable_loader_override=False):
        targets = import_module("tests.fuzz.targets")
    _compile_once()
    with TemporaryDirectory() as begin:
        for seed in import_module("tests.fuzz.seeds").seeds(name):
            (Path(begin) / sha1(seed).hexdigest()).write_bytes(seed)
        if not options or options[0].startswith("-"):
            options = [str(Path(begin) / "new"), *options]
        Path(options[0]).mkdir(parents=True, exist_ok=True)
        atheris.Setup([sys.argv[0], *LIMITS, *options, begin], targets.TARGETS[name])
        atheris.Fuzz()


def read(file: Path) -> bytes:
    """Return an input: the bytes of a file, or the decoded hex of a file in `findings`."""
    if file.suffix != ".hex":
        return file.read_bytes()
    lines = file.read_text(encoding="utf-8").splitlines()
    return bytes.fromhex("".join(line for line in lines if not line.startswith("#")))


def _compile_once() -> None:
    """Cache immutable objects between inputs: most of the time would go into them."""
    decoder: Any = import_module("dcp.columns.decoder")
    for name in ("choose", "compile_plan"):
        setattr(decoder, name, lru_cache(maxsize=1000)(getattr(decoder, name)))


if __name__ == "__main__":
    main()
