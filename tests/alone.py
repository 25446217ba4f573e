"""Imports of modules, each in a process that has loaded nothing of this package but the libraries that it uses.

As a program it reads names, and prints the result of each as JSON: a traceback, or nothing. It must not import the
package, nor anything that does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Protocol

# Loading the libraries takes longer than our modules: a process that has them is forked for each module.
_LIBRARIES = (
    "click",
    "cramjam",
    "cryptography.x509",
    "dpkt",
    "numpy",
    "pyarrow.compute",
    "pyspark.sql",
    "rich.console",
)


class Importer(Protocol):
    def __call__(self, name: str) -> str: ...


@contextmanager
def importer() -> Iterator[Importer]:
    """Yield a function that imports a module before all others of the package, and returns the traceback or nothing."""
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as copied:
        assert copied.stdin is not None
        assert copied.stdout is not None
        to, back = copied.stdin, copied.stdout

        def problem_with(name: str) -> str:
            print(name, file=to, flush=True)
            return str(json.loads(back.readline()))

        yield problem_with
        to.close()


def main() -> None:
    for library in _LIBRARIES if hasattr(os, "fork") else ():
        with suppress(ImportError):
            import_module(library)
    known = [name for name in sys.modules if name.partition(".")[0] == "dcp"]
    assert not known, known
    for line in sys.stdin:
        print(json.dumps(_in_a_copy(line.strip()) if hasattr(os, "fork") else _afresh(line.strip())), flush=True)


def _in_a_copy(name: str) -> str:
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        os.write(writable, _problem(name).encode()[-60_000:])
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as output:
        problem = output.read().decode(errors="replace")
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return problem or (f"the process ended with {ended}" if ended else "")


def _problem(name: str) -> str:
    try:
        import_module(name)
    except BaseException:
        return traceback.format_exc()
    return ""


def _afresh(name: str) -> str:
    ran = subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, text=True, check=False)
    return ran.stderr if ran.returncode else ""


if __name__ == "__main__":
    main()
