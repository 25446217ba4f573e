"""Builds the one extension. Everything else about the project is in pyproject.toml.

DCP_BUILD chooses another build than the one users get:
  debug      no optimisation, debug symbols, Cython's own checks on
  sanitize   address and undefined-behaviour sanitizers (`make sanitize`)
  trace      line tracing, for coverage of the Cython code (`make coverage`)
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

BUILD = os.environ.get("DCP_BUILD", "release")
if BUILD not in ("release", "debug", "sanitize", "trace"):
    sys.exit(f"DCP_BUILD={BUILD}: choose debug, sanitize or trace, or leave it out")

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "embedsignature": False,
    "freethreading_compatible": True,
}
MACROS: list[tuple[str, str | None]] = []
LINK = []
if sys.platform == "win32":
    COMPILE = ["/O2", "/W3"]
else:
    COMPILE = ["-O3", "-Wall", "-Wextra", "-Wsign-compare"]

if BUILD == "debug":
    DIRECTIVES |= {"boundscheck": True, "initializedcheck": True}
    COMPILE += ["/Od", "/Zi"] if sys.platform == "win32" else ["-O0", "-g", "-UNDEBUG"]
elif BUILD == "sanitize":
    # Without recovery the first finding ends the process, so that no test can pass over it.
    LINK = ["-fsanitize=address,undefined"]
    COMPILE += ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", *LINK]
elif BUILD == "trace":
    DIRECTIVES["linetrace"] = True
    MACROS = [("CYTHON_TRACE", "1"), ("CYTHON_TRACE_NOGIL", "1")]

setup(
    ext_modules=[
        Extension(
            "dcp._codec",
            ["src/_codec.pyx"],
            depends=sorted(map(str, Path("src/codec").glob("*.pxi"))),
            define_macros=MACROS,
            extra_compile_args=COMPILE,
            extra_link_args=LINK,
        )
    ],
    options={
        # A directory for each kind of build: setuptools would take an older object of another kind for current.
        "build": {"build_base": f"build/{BUILD}"},
        # Coverage looks for the C file beside its source.
        "build_ext": {"cython_directives": DIRECTIVES, "cython_c_in_temp": BUILD != "trace"},
    },
)
