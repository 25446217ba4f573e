"""Tables of messages: every message of every dialect, and what it is decoded as."""

from __future__ import annotations

from dcp.wire import DIALECTS
from dcp.wire.layout import Dialect, Layout, Message, Side
from dcp.wire.memcached import MEMCACHED

_ARROWS = {Side.CONSUMER: "C → P", Side.PRODUCER: "P → C", Side.EITHER: "C ↔ P"}
_HEAD = "| opcode | message | direction | answered | forms | servers | decoded as | enabled by |\n" + 8 * "|---" + "|"


def coverage() -> str:
    """Return a Markdown table for each dialect, and one for the messages that all share."""
    own = [_section(dialect, _own(dialect)) for dialect in reversed(DIALECTS.values())]
    return "\n\n".join([*own, _section(MEMCACHED, MEMCACHED.messages)])


def _own(dialect: Dialect) -> tuple[Message, ...]:
    shared = set(map(id, MEMCACHED.messages))
    return tuple(message for message in dialect.messages if id(message) not in shared)


def _section(dialect: Dialect, messages: tuple[Message, ...]) -> str:
    rows = "\n".join(_row(message) for message in messages)
    title = dialect.title if dialect is MEMCACHED else f"{dialect.title} (`{dialect.name}`)"
    return f"**{title[0].upper()}{title[1:]}**\n\n{_HEAD}\n{rows}"


def _row(message: Message) -> str:
    opcode = f"0x{message.opcode:02x}" + (f" type {message.type}" if message.type is not None else "")
    cells = (
        opcode,
        message.name,
        _ARROWS[message.sender],
        "yes" if message.answer else "",
        "; ".join(filter(None, map(_form, message.sent))),
        f"{message.since} to {message.until}" if message.until else message.since,
        message.role.value,
        message.enabled_by,
    )
    return f"| {' | '.join(cells)} |"


def _form(form: Layout) -> str:
    since = f"{form.since}: " if form.since else ""
    return f"{since}{form.note}" if form.note else since.rstrip(": ")
