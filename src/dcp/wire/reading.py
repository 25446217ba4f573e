"""Reader of single frames."""

from __future__ import annotations

from typing import NamedTuple

from dcp.errors import FrameError
from dcp.wire.forms import Fields, Form, families
from dcp.wire.framing import UNCOUNTED_HEAD, UNCOUNTED_LENGTH, FrameInfo, RequestInfo, split_infos
from dcp.wire.layout import HEADER_STRUCT, Dialect, Magic

UNKNOWN = "unknown"

# Arguments of Frame, in order.
Parts = tuple[str, int, int, int, int, int, int, Fields, bytes, bytes, tuple[FrameInfo, ...]]

_HEADER_SIZE = HEADER_STRUCT.size
_NO_INFOS: tuple[FrameInfo, ...] = ()
_unpack_header = HEADER_STRUCT.unpack_from


class _Mismatch(NamedTuple):
    """Reason why a form does not fit. The later the stage, the better the form fits."""

    stage: int
    what: str
    expected: str
    found: object


_WHEN, _ENGINE, _META, _KEY, _VALUE = range(5)


def read_parts(raw: bytes, dialect: Dialect, offset: int) -> Parts:
    """Return the parts of the frame in `raw`, which holds exactly one.

    offset: where the frame starts, for FrameError.
    """
    magic, opcode, key_length, extras_length, datatype, vbucket, _, opaque, cas = _unpack_header(raw)
    family = families(dialect).get((magic, opcode))
    if family is None:
        return read_opaque_parts(raw, offset)
    # The same two bytes hold a status in responses, and a vbucket in requests.
    number = status = 0
    if family.has_status:
        number, status, vbucket = vbucket, vbucket, 0
    elif family.typed:
        number, datatype = datatype, 0
    forms = family.forms(number)
    if not forms:
        return read_opaque_parts(raw, offset)
    start, infos = _HEADER_SIZE, _NO_INFOS
    if family.framed:
        defect = any(form.layout.stream_id_defect and form.extras.size == extras_length for form in forms)
        start, key_length, infos = _read_framing(raw, offset, key_length, extras_length, defect=defect)
    for form in forms:
        if form.extras.size == extras_length and (not form.when or form.opens(raw, start)):
            found = _read_form(form, raw, start, key_length)
            if not isinstance(found, _Mismatch):
                fields, key, value = found
                return form.message.name, magic, opaque, cas, vbucket, status, datatype, fields, key, value, infos
            if form.when:
                # A form whose version matched is the right one.
                break
    raise _explained(forms, raw, start, extras_length, key_length, offset)


def _explained(
    forms: tuple[Form, ...], raw: bytes, start: int, extras_length: int, key_length: int, offset: int
) -> FrameError:
    """Return the error for a frame that is of none of these forms."""
    mismatches = []
    for form in forms:
        if form.extras.size != extras_length:
            continue
        found = _read_form(form, raw, start, key_length)
        assert isinstance(found, _Mismatch)
        mismatches.append(found)
        # Its error is the one to report.
        if form.when and found.stage > _WHEN:
            break
    return _refusal(forms, mismatches, raw, offset)


def read_opaque_parts(raw: bytes, offset: int) -> Parts:
    """Return the parts of a frame of the name "unknown", without checking its layout."""
    magic, opcode, key_length, extras_length, datatype, vbucket, _, opaque, cas = _unpack_header(raw)
    status, start, infos = 0, _HEADER_SIZE, _NO_INFOS
    if Magic(magic).kind.answers:
        status, vbucket = vbucket, 0
    if Magic(magic).framed:
        start, key_length, infos = _read_framing(raw, offset, key_length, extras_length, defect=False)
    key_at = start + extras_length
    value_at = key_at + key_length
    fields: Fields = {"opcode": opcode, "extras": raw[start:key_at]}
    return UNKNOWN, magic, opaque, cas, vbucket, status, datatype, fields, raw[key_at:value_at], raw[value_at:], infos


def _read_framing(
    raw: bytes, offset: int, lengths: int, extras_length: int, *, defect: bool
) -> tuple[int, int, tuple[FrameInfo, ...]]:
    """Return where the extras begin, the length of the key, and the frame infos."""
    counted, key_length = lengths >> 8, lengths & 0xFF
    start = _HEADER_SIZE + counted
    # No correct frame has magic 0x08 and no framing extras, so this cannot be mistaken for one.
    end = start + UNCOUNTED_LENGTH
    if defect and not counted and len(raw) >= end + extras_length + key_length and raw[start] == UNCOUNTED_HEAD:
        return end, key_length, (FrameInfo(RequestInfo.STREAM_ID, raw[end - 2 : end], counted=False),)
    try:
        return start, key_length, tuple(split_infos(raw[_HEADER_SIZE:start]))
    except ValueError as error:
        raise _frame_error(str(error), raw, offset) from None


def _read_form(form: Form, raw: bytes, start: int, key_length: int) -> tuple[Fields, bytes, bytes] | _Mismatch:
    fields: Fields = {}
    lengths: dict[str, int] = {}
    if form.extras.fields:
        form.extras.read(raw, start, fields, lengths)
    for name, number in form.when:
        if fields[name] != number:
            return _Mismatch(_WHEN, name, str(number), fields[name])
    key_at, end = start + form.extras.size, len(raw)
    if form.measured:
        found = _read_measured(form, raw, key_at, key_length, fields, lengths)
        if isinstance(found, _Mismatch):
            return found
        key_at, end = found
    # The splitter has checked that key and value lie inside the frame.
    value_at = key_at + key_length
    key, value = raw[key_at:value_at], raw[value_at:end]
    if wrong := form.wrong_key[len(key) > 0]:
        return _Mismatch(_KEY, "key length", wrong, len(key))
    if form.content.fields:
        if len(value) != form.content.size:
            return _Mismatch(_VALUE, "value length", str(form.content.size), len(value))
        form.content.read(value, 0, fields, lengths)
        return fields, key, b""
    if wrong := form.value_problem(len(value)):
        return _Mismatch(_VALUE, "value length", wrong, len(value))
    return fields, key, value


def _read_measured(
    form: Form, raw: bytes, engine_at: int, key_length: int, fields: Fields, lengths: dict[str, int]
) -> tuple[int, int] | _Mismatch:
    """Read the engine section before the key and the trailer after the value. Return the range between them."""
    engine_length, meta_length = lengths.get("engine", form.engine.size), lengths.get("meta", 0)
    room = len(raw) - engine_at - key_length
    if form.engine.fields and engine_length != form.engine.size:
        return _Mismatch(_ENGINE, "engine section", f"{form.engine.size} bytes", engine_length)
    if engine_length > room:
        return _Mismatch(_ENGINE, "engine section", f"at most {room} bytes", engine_length)
    if form.engine.fields:
        form.engine.read(raw, engine_at, fields, lengths)
    if meta_length > room - engine_length:
        return _Mismatch(_META, "nmeta", f"at most {room - engine_length}", meta_length)
    begin, end = engine_at + engine_length, len(raw) - meta_length
    for name, section in (("engine", raw[engine_at:begin]), ("meta", raw[end:])):
        if name in form.layout.measured and section:
            fields[name] = section
    return begin, end


def _refusal(forms: tuple[Form, ...], mismatches: list[_Mismatch], raw: bytes, offset: int) -> FrameError:
    """Return the error, with what the forms that fit best would have had."""
    if not mismatches:
        extras_length = _unpack_header(raw)[3]
        mismatches = [_Mismatch(_WHEN, "extras length", str(form.extras.size), extras_length) for form in forms]
    furthest = max(mismatch.stage for mismatch in mismatches)
    wrong = [mismatch for mismatch in mismatches if mismatch.stage == furthest]
    *others, last = dict.fromkeys(mismatch.expected for mismatch in wrong)
    expected = f"{', '.join(others)} or {last}" if others else last
    return _frame_error(f"{forms[0].title}: {wrong[0].what}: expected {expected}, found {wrong[0].found}", raw, offset)


def _frame_error(problem: str, raw: bytes, offset: int) -> FrameError:
    magic, opcode, _, _, _, vbucket, *_ = _unpack_header(raw)
    return FrameError(problem, offset, opcode, None if Magic(magic).kind.answers else vbucket)
