"""Builds the one extension. Everything else about the project is in pyproject.toml.

DCP_BUILD chooses another build than the one users get:
  debug      no optimisation, debug symbols, Cython's own checks on
  sanitize   address and undefined-behaviour sanitizers (`make sanitize`)
  trace      line tracing, for coverage of the Cython code (`make coverage`)

yyjson, which parses documents, is compiled into the extension, from the sources in the Python package of that name.
DCP_YYJSON chooses others: `system` links the library of the system, a path names a directory with yyjson.c and
yyjson.h.
"""

import gzip
import importlib.util
import json
import os
import re
import sys
import tarfile
from functools import partial
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

if sys.version_info >= (3, 11):
    import tomllib
else:
    from setuptools.compat.py310 import tomllib

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
LINK: list[str] = []
if sys.platform == "win32":
    COMPILE = ["/O2", "/W3"]
else:
    COMPILE = ["-O3", "-Wall", "-Wextra", "-Wsign-compare"]
    if BUILD == "release":
        # Debug symbols, which most builds of Python ask for, make the file seven times as large.
        COMPILE.append("-g0")
        LINK = ["-Wl,-x" if sys.platform == "darwin" else "-Wl,--strip-all"]

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


# Documents are read, never written, and as they are.
YYJSON_MACROS: list[tuple[str, str | None]] = [("YYJSON_DISABLE_WRITER", "1"), ("YYJSON_DISABLE_UTILS", "1")]
SYSTEM_YYJSON = os.environ.get("DCP_YYJSON") == "system"


def yyjson_directory() -> Path:
    """Return the directory of yyjson.c and yyjson.h."""
    if chosen := os.environ.get("DCP_YYJSON"):
        directory = Path(chosen)
    else:
        found = importlib.util.find_spec("yyjson")
        if found is None or not found.submodule_search_locations:
            sys.exit("yyjson: expected its sources: pip install yyjson, or set DCP_YYJSON (see setup.py)")
        directory = Path(found.submodule_search_locations[0])
    if not (directory / "yyjson.c").is_file():
        sys.exit(f"yyjson: expected yyjson.c and yyjson.h in {directory}: set DCP_YYJSON (see setup.py)")
    return directory


class BuildWithYyjson(build_ext):
    """Compiles yyjson beside the extension. As one of its sources it would have to lie in this directory."""

    def build_extension(self, ext: Extension) -> None:
        if not SYSTEM_YYJSON:
            directory = yyjson_directory()
            ext.include_dirs.append(str(directory))
            ext.extra_objects += self.compiler.compile(
                [str(directory / "yyjson.c")],
                output_dir=self.build_temp,
                macros=YYJSON_MACROS,
                include_dirs=[str(directory)],
                extra_postargs=COMPILE,
            )
        super().build_extension(ext)


class ReproducibleSdist(sdist):
    """Writes the same archive from the same files, at the time of SOURCE_DATE_EPOCH, as wheels are written."""

    def make_archive(
        self,
        base_name: str,
        format: str,
        root_dir: str | None = None,
        base_dir: str | None = None,
        **owners: str | None,
    ) -> str:
        moment = os.environ.get("SOURCE_DATE_EPOCH")
        if not moment or format != "gztar" or base_dir is None:
            return super().make_archive(base_name, format, root_dir, base_dir, **owners)

        def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.mtime, member.mode = int(moment), 0o755 if member.mode & 0o100 else 0o644
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            return member

        path = f"{base_name}.tar.gz"
        with (
            Path(path).open("wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=int(moment)) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            # Members in the order of their names: `add` sorts them.
            archive.add(base_dir, filter=plain)
        return path


class WheelWithSbom(bdist_wheel):
    """Adds a bill of materials to the wheel (PEP 770): what is compiled in, for tools that look for known faults."""

    def egg2dist(self, egginfo_path: str, distinfo_path: str) -> None:
        super().egg2dist(egginfo_path, distinfo_path)
        if not SYSTEM_YYJSON:
            target = Path(distinfo_path, "sboms", "dcp-arrow.cdx.json")
            target.parent.mkdir()
            target.write_text(json.dumps(sbom(self.distribution.get_version()), indent=2) + "\n", "utf-8")


def sbom(version: str) -> dict[str, object]:
    """Return the bill of materials in the form of CycloneDX. Nothing in it differs between two builds."""
    header = (yyjson_directory() / "yyjson.h").read_text("utf-8")
    found = re.search(r'#define YYJSON_VERSION_STRING "(.+)"', header)
    if not found:
        sys.exit("yyjson: expected YYJSON_VERSION_STRING in yyjson.h")
    yyjson = found.group(1)
    this = {"type": "library", "bom-ref": "dcp-arrow", "name": "dcp-arrow", "version": version}
    this |= {"purl": f"pkg:pypi/dcp-arrow@{version}", "licenses": [{"license": {"id": "Apache-2.0"}}]}
    source = {
        "type": "library",
        "bom-ref": "yyjson",
        "name": "yyjson",
        "version": yyjson,
        "purl": f"pkg:github/ibireme/yyjson@{yyjson}",
        "cpe": f"cpe:2.3:a:ibireme:yyjson:{yyjson}:*:*:*:*:*:*:*",
        "licenses": [{"license": {"id": "MIT"}}],
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": this},
        "components": [source],
        "dependencies": [{"ref": "dcp-arrow", "dependsOn": ["yyjson"]}, {"ref": "yyjson"}],
    }


def readme() -> str:
    """Return README.md with absolute links: those of pages, and of pictures, lead to the docs site."""
    with Path("pyproject.toml").open("rb") as file:
        site = tomllib.load(file)["project"]["urls"]["Documentation"]
    text = Path("README.md").read_text("utf-8")
    text = re.sub(r"\]\(\.github/(\w+)\.md\)", lambda found: f"]({site}{found[1].lower()}/)", text)
    text = text.replace("](CHANGELOG.md)", f"]({site}changelog/)")
    return re.sub(r"\]\(docs/([\w/-]+?)(?:(\.svg|\.png)|\.md)(#[\w-]+)?\)", partial(_absolute, site), text)


def _absolute(site: str, found: re.Match[str]) -> str:
    page, picture, anchor = found.groups(default="")
    return f"]({site}{page}{picture or '/'}{anchor})"


setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    ext_modules=[
        Extension(
            "dcp._codec",
            ["src/_codec.pyx"],
            depends=sorted(map(str, Path("src/codec").glob("*.pxi"))),
            define_macros=[*MACROS, *YYJSON_MACROS],
            libraries=["yyjson"] if SYSTEM_YYJSON else [],
            extra_compile_args=COMPILE,
            extra_link_args=LINK,
        )
    ],
    cmdclass={"bdist_wheel": WheelWithSbom, "build_ext": BuildWithYyjson, "sdist": ReproducibleSdist},
    options={
        # A directory for each kind of build: setuptools would take an older object of another kind for current.
        "build": {"build_base": f"build/{BUILD}"},
        # Coverage looks for the C file beside its source.
        "build_ext": {"cython_directives": DIRECTIVES, "cython_c_in_temp": BUILD != "trace"},
    },
)
