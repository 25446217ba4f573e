"""Generated parts of the pages: `python -m tests.drawn` writes them from the tables, and a test compares.

Each part stands between two markers, `<!-- NAME: from the tables -->` and `<!-- NAME: end -->`.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from inspect import Parameter, signature
from itertools import pairwise
from pathlib import Path

from dcp.client.options import Option, Use, options_of, spark_options
from dcp.columns.document_schema import SCALARS
from dcp.columns.schema import COLUMNS, DICTIONARY
from dcp.embedded import Cluster
from dcp.embedded.control.operations import operations
from dcp.embedded.faults import FAULTS
from dcp.embedded.faults.fault import Fault
from dcp.embedded.faults.fault import options_of as options_of_fault
from dcp.session.refusals import REFUSALS, STEPS, UNKNOWN_STATUS, Reaction
from dcp.wire import DIALECTS
from dcp.wire.field import Field
from dcp.wire.layout import Dialect, Effect, Layout, Message
from tests.coverage_tables import coverage
from tests.documents.meaning import RULES, SAME
from tests.pages import ROOT
from tests.rooms import EVERYTHING, MAY_IMPORT, ORDER, SOURCE


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    cells = [list(head), *map(list, rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], len(cells[0]) * "|---" + "|", *lines[1:]])


def first_line(text: str | None) -> str:
    return (text or "").strip().splitlines()[0].rstrip(".:")


# Rooms, and which may import which.


def rooms() -> str:
    rows = ((f"`{room}`", first_line(docstring(room))) for room in MAY_IMPORT if not room.startswith("__"))
    return table(("room", "what it is"), rows)


def docstring(room: str) -> str | None:
    if room == "_codec":
        return (SOURCE / "_codec.pyx").read_text("utf-8").removeprefix('"""')
    at = SOURCE / "dcp" / room
    path = at / "__init__.py" if at.is_dir() else at.with_suffix(".py")
    return ast.get_docstring(ast.parse(path.read_text("utf-8")))


def imports() -> str:
    """Return the diagram of imports. Solid arrows: a room may import all before it. Dotted: only these."""
    lines = ["flowchart TB", *(f"    {one} --> {next_}" for one, next_ in pairwise(ORDER))]
    for room, allowed in MAY_IMPORT.items():
        if room in ORDER or room.startswith("__"):
            continue
        if allowed == EVERYTHING:
            lines += [f"    {other} --> {room}" for other in (ORDER[-1], "embedded")]
        else:
            lines += [f"    {other} -.-> {room}" for other in ORDER if other in allowed]
    return "\n".join(["```mermaid", *lines, "```"])


# The tables themselves.


def words() -> str:
    kinds: list[type] = [Field, Layout, Message, Dialect]
    rows = [(f"`{kind.__name__}`", first_line(kind.__doc__)) for kind in kinds]
    rows += [(f"`Effect.{effect.name}`", effect.value) for effect in Effect]
    return table(("word", "what it is"), rows)


ARROW = {
    DICTIONARY: "dictionary of text",
    "C": "uint8",
    "S": "uint16",
    "I": "uint32",
    "L": "uint64",
    "tsu:UTC": "timestamp (µs, UTC)",
    "z": "binary",
    "u": "text",
    "+s": "as its schema says",
}


def columns() -> str:
    rows = (
        (
            f"`{column.name}`",
            ARROW[column.format],
            "yes" if column.nullable else "",
            "yes" if column.default else "",
            column.about,
        )
        for column in COLUMNS
    )
    return table(("column", "Arrow type", "may be null", "default", "what it is"), rows)


# Stream messages whose opcode or extras differ between dialects.
MOVED = (
    "stream_request",
    "stream_start",
    "snapshot_start",
    "snapshot_end",
    "snapshot_marker",
    "mutation",
    "deletion",
    "expiration",
    "stream_flush",
    "set_vbucket_state",
    "stream_end",
    "stream_end_ok",
)


def dialects() -> str:
    rows = ((f"`{name}`", *(cell(dialect, name) for dialect in DIALECTS.values())) for name in MOVED)
    return table(("message", *(dialect.title for dialect in DIALECTS.values())), rows)


def cell(dialect: Dialect, name: str) -> str:
    message = dialect.by_name.get(name)
    if message is None:
        return ""
    opcode = f"0x{message.opcode:02x}" + ("" if message.type is None else f" type {message.type}")
    lengths = dict.fromkeys(str(form.extras_length) for form in message.sent)
    return f"{opcode}: {', '.join(lengths)}"


def faults() -> str:
    return table(
        ("fault", "what it does"), ((f"`{name}`", first_line(fault.__doc__)) for name, fault in FAULTS.items())
    )


def faults_and_clients() -> str:
    rows = []
    for name, fault in FAULTS.items():
        about, seen = inspect.cleandoc(fault.__doc__ or "").split("\n\n")
        own = [f"`{option.name}`" for option in options_of_fault(fault) if option.name not in _COMMON]
        seen = " ".join(seen.removeprefix("Clients see ").split())
        rows.append((f"`{name}`", about, seen if seen[0] == "`" else seen[0].upper() + seen[1:], ", ".join(own)))
    return table(("fault", "what it does", "what a client sees", "options"), rows)


# Options that every fault has.
_COMMON = {option.name for option in options_of_fault(Fault)}


# The embedded cluster.


def cluster_arguments() -> str:
    """Return the arguments of `Cluster` with the texts of its docstring."""
    text = inspect.cleandoc(Cluster.__doc__ or "")
    described = re.findall(r"^(\w+): (.*(?:\n    .*)*)", text, re.MULTILINE)
    defaults = {one.name: one.default for one in signature(Cluster).parameters.values()}
    rows = ((f"`{name}`", _shown(defaults[name]), " ".join(about.split())) for name, about in described)
    return table(("argument", "default", "meaning"), rows)


def cluster_attributes() -> str:
    found = {name: one for name, one in vars(Cluster).items() if isinstance(one, property)}
    rows = ((f"`{name}`", " ".join((one.__doc__ or "").split("\n\n")[0].split())) for name, one in found.items())
    return table(("attribute", "what it is"), rows)


def cluster_operations() -> str:
    rows = []
    for name, operation in operations().items():
        method = getattr(Cluster, name)
        # Types are in the help; a table has room for names and defaults.
        names = [one for one in signature(method).parameters.values() if one.name != "self"]
        shown = ", ".join(_parameter(one) for one in names)
        rows.append((f"`{name}({shown})`", operation.group, operation.about))
    return table(("operation", "about", "what it does"), rows)


def _parameter(one: Parameter) -> str:
    if one.kind is Parameter.VAR_KEYWORD:
        return f"**{one.name}"
    return one.name if one.default is Parameter.empty else f"{one.name}={one.default!r}"


def _shown(default: object) -> str:
    return "" if default in (None, ()) else f"`{default!r}`"


# Refusals.


def refusals() -> str:
    rows = [
        (", ".join(status.name for status in row.statuses), *(_reaction(row.reaction(step)) for step in STEPS))
        for row in REFUSALS
    ]
    rows.append(("any other", *(_reaction(UNKNOWN_STATUS) for _ in STEPS)))
    return table(("status", *(f"`{step}`" for step in STEPS)), rows)


def reactions() -> str:
    return table(("reaction", "what a running stream does"), ((_reaction(each), each.value) for each in Reaction))


def _reaction(found: Reaction) -> str:
    return found.name.lower().replace("_", " ")


# Options.


def connect_options() -> str:
    return _option_table(options_of(Use.CONNECT))


def stream_options() -> str:
    return _option_table(options_of(Use.STREAM))


def spark_source_options() -> str:
    return _option_table(spark_options())


def _option_table(options: Mapping[str, Option]) -> str:
    head = ("option", "default", "meaning")
    return table(head, ((f"`{name}`", _default(option), option.help) for name, option in options.items()))


def _default(option: Option) -> str:
    shown = option.shown_default
    if not shown or " " in shown or "`" in shown:
        return shown
    unit = f" {option.unit}" if option.unit and not option.default_text else ""
    return f"`{shown}`{unit}"


# Documents.


def document_types() -> str:
    rows = (
        (", ".join(f"`{name}`" for name in each.names), ARROW_TYPES[each.format], each.expected) for each in SCALARS
    )
    return table(("type", "Arrow", "JSON"), ((names, arrow, _JSON.get(text, text)) for names, arrow, text in rows))


ARROW_TYPES = {
    **{"b": "bool", "c": "int8", "s": "int16", "i": "int32", "l": "int64", "f": "float32", "g": "float64"},
    **{"u": "string", "z": "binary", "tdD": "date32", "tsu:UTC": "timestamp[us, UTC]", "tsu:": "timestamp[us]"},
}
# What is expected, where the name of the type does not say it.
_JSON = {
    "boolean": "`true` or `false`",
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), "a whole number"),
    **dict.fromkeys(("float", "double"), "a number"),
    "string": "a string",
    "binary (base64)": "a string in base64, with padding",
    "date (YYYY-MM-DD)": "a string such as `2026-11-01`",
    "timestamp (ISO 8601 with Z or an offset)": "a string such as `2026-11-01T12:00:00.5+02:00`",
    "timestamp_ntz (ISO 8601 without an offset)": "a string such as `2026-11-01T12:00:00.5`",
    **{f"{unit} since 1970": f"a number: {unit} since 1970" for unit in ("seconds", "milliseconds", "microseconds")},
    "JSON": "anything: its text",
}


def document_meanings() -> str:
    rows = (
        (
            rule.what,
            f"`{rule.type}`",
            f"`{rule.text}`" if rule.text else "",
            f"{_cell(rule.found)}; `{rule.error}`" if rule.error else _cell(rule.found),
            "" if rule.from_json == SAME else f"{_cell(rule.from_json)}: {rule.why}",
        )
        for rule in RULES
    )
    return table(("document", "type of `a`", "text", "`a`, and the error", "Spark's `from_json`"), rows)


def _cell(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return f"`{value!r}`"
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        value = dict(value)
    return f"`{value}`"


# Commands and extras.


def commands() -> str:
    """Return the help of every command, as a terminal of 100 columns shows it."""
    import click

    from dcp.cli.commands import dcp as command
    from tests.cli.test_guide import COMMANDS

    helps = []
    for path, each in {(): command, **COMMANDS}.items():
        context = click.Context(
            each, info_name=" ".join(("dcp", *path)), terminal_width=100, **command.context_settings
        )
        helps.append(f"## {' '.join(('dcp', *path))}\n\n```text\n{each.get_help(context)}\n```")
    return "\n\n".join(helps)


def extras() -> str:
    """Return the extras of pyproject.toml, with the comments before them."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    section = text.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    rows = []
    for about, name, needs in re.findall(r"^# (.*)\n(?:#.*\n)*(\w+) = \[(.*)\]$", section, re.MULTILINE):
        brings = ", ".join(f"`{re.split(r'[<>=]', one)[0]}`" for one in re.findall(r'"(.*?)"', needs))
        rows.append((f"`{name}`", about.rstrip("."), brings))
    return table(("extra", "for", "brings"), rows)


DRAWN: dict[Path, tuple[Callable[[], str], ...]] = {
    ROOT / "docs/architecture.md": (rooms, imports, words, faults),
    ROOT / "docs/client.md": (connect_options, stream_options),
    ROOT / "docs/reference/columns.md": (columns,),
    ROOT / "docs/documents.md": (document_types, document_meanings),
    ROOT / "docs/protocol.md": (dialects,),
    ROOT / "docs/session.md": (reactions, refusals),
    # The command line is an extra.
    **({ROOT / "docs/reference/commands.md": (commands,)} if find_spec("click") else {}),
    ROOT / "docs/reference/messages.md": (coverage,),
    ROOT / "docs/reference/spark.md": (spark_source_options,),
    ROOT / "docs/start-python.md": (extras,),
    ROOT / "docs/testing.md": (cluster_arguments, cluster_attributes, cluster_operations, faults_and_clients),
}


def redrawn(text: str, draw: Callable[[], str]) -> str:
    """Return the page with a new drawing between its markers."""
    start, end = f"<!-- {draw.__name__}: from the tables -->", f"<!-- {draw.__name__}: end -->"
    before, found, rest = text.partition(start)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"expected the markers {start} and {end}")
    return f"{before}{start}\n\n{draw()}\n\n{end}{after}"


def pages() -> Iterator[tuple[Path, str]]:
    """Yield each page with new drawings."""
    for page, drawings in DRAWN.items():
        text = page.read_text("utf-8")
        for draw in drawings:
            text = redrawn(text, draw)
        yield page, text


if __name__ == "__main__":
    for page, text in pages():
        page.write_text(text, "utf-8")
