"""Writer of single frames. All lengths are computed."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

from dcp.errors import UsageError
from dcp.wire.forms import Form, families, pack
from dcp.wire.framing import join_infos
from dcp.wire.layout import HEADER, HEADER_STRUCT, KINDS, Dialect, Kind, Layout, Magic, Message
from dcp.wire.reading import UNKNOWN

if TYPE_CHECKING:
    from dcp.wire.frame import Frame

_FRAMED = frozenset(int(magic) for magic in Magic if magic.framed)
_WIDTHS = {f.name: f.width for f in HEADER}
# Responses have their status where requests have their vbucket.
_NUMBERS = {name: _WIDTHS[name] for name in ("opaque", "cas", "vbucket", "datatype")} | {"status": _WIDTHS["vbucket"]}


def write_frame(frame: Frame, dialect: Dialect) -> bytes:
    """Return the bytes of a frame. Raises UsageError if the dialect cannot express it."""
    if (raw := _write_request(frame, dialect)) is not None:
        return raw
    kind = _kind(frame)
    _check_header(frame, kind)
    if frame.name == UNKNOWN:
        opcode, extras = frame.fields.get("opcode"), frame.fields.get("extras")
        if not isinstance(opcode, int) or not isinstance(extras, bytes) or not 0 <= opcode <= 0xFF:
            raise _local(frame, "fields", "{opcode: 0 to 255, extras: bytes}", frame.fields)
        return _assemble(frame, opcode, None, extras, frame.key + frame.value)
    form = form_of(frame, dialect)
    opcode, type = form.message.opcode, form.message.type
    if type is not None and (frame.status or frame.datatype):
        raise _local(frame, "status and datatype", "0, this dialect has neither", (frame.status, frame.datatype))
    if frame.frame_info or frame.magic in _FRAMED:
        _check_infos(frame, form.layout)
    engine, meta = (_bytes(frame, "engine"), _bytes(frame, "meta")) if form.measured else (b"", b"")
    # Lengths of sections that fields of the extras have to hold.
    lengths = {"engine": form.engine.size or len(engine), "meta": len(meta)}
    _check_fields(frame, form, lengths)
    extras, fixed, content = (
        section.write(frame.fields, lengths) for section in (form.extras, form.engine, form.content)
    )
    return _assemble(frame, opcode, type, extras, fixed + engine + frame.key + content + frame.value + meta)


def _write_request(frame: Frame, dialect: Dialect) -> bytes | None:
    """Return the bytes of a request of numbers, key and value; None if it is something else, or not correct.

    Clients send hundreds of these at once, one for each stream.
    """
    message = dialect.by_name.get(frame.name)
    if message is None or frame.magic != Magic.REQUEST or frame.frame_info or frame.status:
        return None
    family = families(dialect).get((frame.magic, message.opcode))
    form = None if family is None else family.only_form
    if form is None or form.message is not message or frame.fields.keys() != form.layout.required:
        return None
    if _shape_problem(frame, form):
        return None
    extras_length, key_length = form.extras.size, len(frame.key)
    body_length = extras_length + key_length + len(frame.value)
    numbers = (
        *(int(Magic.REQUEST), message.opcode, key_length, extras_length, frame.datatype, frame.vbucket),
        *(body_length, frame.opaque, frame.cas),
        *map(frame.fields.__getitem__, form.extras.numbers),
    )
    head = pack(form.request, numbers)
    return None if head is None else head + frame.key + frame.value


def layout_of(frame: Frame, dialect: Dialect) -> tuple[Message, Layout]:
    """Return the message and the layout that a frame has. Raises UsageError if there is none."""
    form = form_of(frame, dialect)
    return form.message, form.layout


def form_of(frame: Frame, dialect: Dialect) -> Form:
    """Return the form of a frame. Raises UsageError if there is none."""
    kind, message = _kind(frame), dialect.by_name.get(frame.name)
    family = families(dialect).get((frame.magic, message.opcode)) if message else None
    forms = family.forms(frame.status if message.type is None else message.type) if message and family else ()
    problems = []
    # Messages may share an opcode: only forms of the frame's own name count.
    for form in forms:
        if form.message is not message:
            continue
        problem = _fields_problem(frame, form) or _shape_problem(frame, form)
        if not problem:
            return form
        problems.append(problem)
        if form.when and _when_fits(frame, form):
            problems = [problem]
            break
    if not problems:
        raise UsageError(f"dialect {dialect.name} has no {kind.value} {frame.name!r}{_similar(dialect, frame)}")
    raise UsageError(f"{frame.name}: {'; or '.join(dict.fromkeys(problems))}")


def _kind(frame: Frame) -> Kind:
    try:
        return KINDS[frame.magic]
    except (KeyError, TypeError):
        raise _local(frame, "magic", "one of " + ", ".join(f"0x{magic:02x}" for magic in Magic), frame.magic) from None


def _local(frame: Frame, what: str, expected: str, found: object) -> UsageError:
    return UsageError(f"{frame.name}: {what}: expected {expected}, found {found!r}")


def _similar(dialect: Dialect, frame: Frame) -> str:
    close = get_close_matches(str(frame.name), dialect.by_name, 3)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _when_fits(frame: Frame, form: Form) -> bool:
    return all(frame.fields.get(name) == number for name, number in form.when)


def _fields_problem(frame: Frame, form: Form) -> str:
    given, required = frame.fields.keys(), form.layout.required
    if not required <= given <= form.allowed:
        names = [name for name in form.layout.fields if name in required]
        return f"expected the fields {{{', '.join(names)}}}, found {{{', '.join(frame.fields)}}}"
    if form.when and not _when_fits(frame, form):
        return f"expected {', '.join(f'{name} {number}' for name, number in form.when)}"
    return ""


def _shape_problem(frame: Frame, form: Form) -> str:
    if wrong := form.wrong_key[len(frame.key) > 0]:
        return f"key length: expected {wrong}, found {len(frame.key)}"
    if wrong := form.value_problem(len(frame.value)):
        return f"value length: expected {wrong}, found {len(frame.value)}"
    return ""


def _check_header(frame: Frame, kind: Kind) -> None:
    for name, width in _NUMBERS.items():
        _check_number(frame, name, getattr(frame, name), 8 * width)
    if frame.status and not kind.answers:
        raise _local(frame, "status", "0 in a request", frame.status)
    if frame.frame_info and frame.magic not in _FRAMED:
        raise _local(frame, "magic", "0x08 or 0x18 with frame infos", frame.magic)


def _check_number(frame: Frame, name: str, number: object, bits: int, *, signed: bool = False) -> None:
    if not isinstance(number, int) or (number + (signed << bits - 1)) >> bits:
        raise _local(frame, name, f"an integer of {bits} bits", number)


def _check_fields(frame: Frame, form: Form, lengths: Mapping[str, int]) -> None:
    for section in (form.extras, form.engine, form.content):
        for f in section.fields:
            value = section.value_of(f, frame.fields, lengths)
            if not f.reserved:
                _check_number(frame, f.measures or f.name, value, 8 * f.width, signed=f.signed)
            elif not isinstance(value, bytes) or len(value) not in (0, f.width):
                raise _local(frame, f.name, f"{f.width} bytes", value)


def _check_infos(frame: Frame, layout: Layout) -> None:
    """Refuse uncounted infos that a reader would take for something else."""
    uncounted = not all(info.counted for info in frame.frame_info)
    if uncounted and not (layout.stream_id_defect and len(frame.frame_info) == 1 and frame.stream_id is not None):
        raise _local(frame, "frame_info", "nothing uncounted but the stream id of a deletion V2 or expiration", frame)
    if layout.stream_id_defect and not frame.frame_info:
        raise _local(frame, "frame_info", "at least one with magic 0x08", frame.frame_info)


def _bytes(frame: Frame, name: str) -> bytes:
    section = frame.fields.get(name, b"")
    if not isinstance(section, bytes):
        raise _local(frame, name, "bytes", section)
    return section


def _assemble(frame: Frame, opcode: int, type: int | None, extras: bytes, tail: bytes) -> bytes:
    framed, has_status = frame.magic in _FRAMED, type is None and KINDS[frame.magic].answers
    if has_status and frame.vbucket:
        raise _local(frame, "vbucket", "0 in an answer", frame.vbucket)
    infos, key_length = _join_infos(frame) if frame.frame_info else b"", len(frame.key)
    counted = len(infos) if infos and all(info.counted for info in frame.frame_info) else 0
    body_length = len(infos) + len(extras) + len(tail)
    # The length of framing extras takes one of the bytes of the key length.
    for name, length, width in (
        ("key length", key_length, 1 if framed else _WIDTHS["key_length"]),
        ("framing extras length", counted, 1),
        ("extras length", len(extras), _WIDTHS["extras_length"]),
        ("body length", body_length, _WIDTHS["body_length"]),
    ):
        if length >> 8 * width:
            raise _local(frame, name, f"at most {(1 << 8 * width) - 1}", length)
    header = HEADER_STRUCT.pack(
        frame.magic,
        opcode,
        counted << 8 | key_length,
        len(extras),
        frame.datatype if type is None else type,
        frame.status if has_status else frame.vbucket,
        body_length,
        frame.opaque,
        frame.cas,
    )
    return header + infos + extras + tail


def _join_infos(frame: Frame) -> bytes:
    try:
        return join_infos(frame.frame_info)
    except ValueError as error:
        raise UsageError(f"{frame.name}: {error}") from None
