"""Operations that clients may ask a running cluster for: methods of `Cluster`, with arguments and results in JSON.

Names, parameters, types and defaults are those of the methods: nothing of them is written here again.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from dcp.embedded.faults import FAULTS, FaultHandle
from dcp.embedded.faults.fault import option_text, options_of
from dcp.errors import UsageError
from dcp.value_grammar import flag

if TYPE_CHECKING:
    from dcp.embedded.cluster import Cluster

# Methods of `Cluster`, by what they are about. The page shows them in this order.
GROUPS: dict[str, tuple[str, ...]] = {
    "nodes": ("failover", "crash", "recover", "restart", "rebalance_in", "rebalance_out", "set_persistence"),
    "vbuckets": ("move", "promote", "set_lag", "snapshot", "purge", "run_pager"),
    "documents": ("upsert", "delete", "expire", "get", "owner", "load", "truth", "recorded_versions"),
    "collections": ("create_scope", "create_collection", "drop_scope", "drop_collection", "collection_ids"),
    "faults": ("fault", "clear_fault", "faults"),
    "others": ("stats", "issue_token"),
}
# Documents of one answer: more would hold up all other clients.
_MOST_DOCUMENTS = 100_000
# Suffix of a member that has bytes as hexadecimal digits.
_HEX = "_hex"
# JSON's numbers are floats to many parsers, which lose the last digits of numbers above 2^53.
_TEXTS = frozenset({"cas", "seqno", "rev_seqno", "vbuuid"})

_EXPECTED: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    dict: "an object",
    list: "an array",
    NoneType: "null",
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """Parameter of an operation. `types` are those of JSON that it takes; `binary` if it takes bytes as well."""

    name: str
    types: tuple[type, ...]
    binary: bool
    required: bool
    default: Any

    @property
    def expected(self) -> str:
        """Values that it takes, in words."""
        *first, last = [_EXPECTED[one] for one in self.types]
        return f"{', '.join(first)} or {last}" if first else last

    def takes(self, value: object) -> bool:
        """Return whether a value has one of the types."""
        if isinstance(value, bool):
            return bool in self.types
        if isinstance(value, int) and float in self.types:
            return True
        return isinstance(value, self.types)


@dataclass(frozen=True, slots=True)
class Operation:
    """Method of `Cluster`. `open` if it takes members of any name besides its parameters."""

    name: str
    group: str
    about: str
    parameters: tuple[Parameter, ...]
    open: bool


@cache
def operations() -> Mapping[str, Operation]:
    """Return all operations by name."""
    # `Cluster` imports this module.
    from dcp.embedded.cluster import Cluster

    return {name: _operation(name, group, getattr(Cluster, name)) for group, names in GROUPS.items() for name in names}


def _operation(name: str, group: str, method: Any) -> Operation:
    hints = get_type_hints(method)
    found = list(inspect.signature(method).parameters.values())[1:]
    named = [one for one in found if one.kind is not inspect.Parameter.VAR_KEYWORD]
    parameters = [_parameter(one, hints[one.name]) for one in named]
    about = inspect.cleandoc(method.__doc__).splitlines()[0]
    return Operation(
        name, group, about, tuple(one for one in parameters if one is not None), open=len(named) < len(found)
    )


def _parameter(found: inspect.Parameter, hint: Any) -> Parameter | None:
    """Return a parameter; None if JSON has nothing that it takes."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds = [get_origin(part) or part for part in parts]
    types = tuple(kind for kind in kinds if kind in _EXPECTED)
    required = found.default is inspect.Parameter.empty
    if not set(types) - {NoneType}:
        return None
    return Parameter(found.name, types, bytes in kinds, required, None if required else found.default)


def describe() -> dict[str, Any]:
    """Return all operations and all faults, with parameters and options, as a JSON document."""
    return {
        "operations": [
            {
                "name": one.name,
                "group": one.group,
                "about": one.about,
                "parameters": [
                    {
                        "name": parameter.name,
                        "expected": parameter.expected,
                        "types": [_json_type(kind) for kind in parameter.types],
                        "required": parameter.required,
                        "default": parameter.default,
                    }
                    for parameter in one.parameters
                ],
            }
            for one in operations().values()
        ],
        "faults": [
            {
                "name": name,
                "about": inspect.cleandoc(fault.__doc__ or ""),
                "options": list(map(_option, options_of(fault))),
            }
            for name, fault in FAULTS.items()
        ],
    }


def _json_type(kind: type) -> str:
    return {int: "integer", float: "number", bool: "boolean", str: "string", dict: "object", list: "array"}.get(
        kind, "null"
    )


def _option(option: Any) -> dict[str, Any]:
    parse = option.metadata["parse"]
    return {
        "name": option.name,
        "about": option.metadata["help"],
        "default": option_text(option.default),
        # All values that it takes, or the names of some.
        "choices": ["on", "off"] if parse is flag else list(getattr(parse, "choices", ())),
    }


def run(cluster: Cluster, name: str, members: object) -> Any:
    """Call a method of the cluster with these arguments, and return its result as a JSON document.

    Raises UsageError if there is no such operation, an argument is not valid, or the cluster refuses it.
    """
    operation = operations().get(name)
    if operation is None:
        raise UsageError(f"expected an operation among {', '.join(operations())}; found {name!r:.100}")
    if not isinstance(members, dict):
        raise UsageError(f"{name}: expected an object with the arguments")
    result = getattr(cluster, name)(**_arguments(operation, members))
    if name in ("upsert", "delete", "expire"):
        return str(result)
    if isinstance(result, dict) and len(result) > _MOST_DOCUMENTS:
        raise UsageError(f"{name}: expected at most {_MOST_DOCUMENTS:,} documents, found {len(result):,}")
    return to_json(result)


def _arguments(operation: Operation, members: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call."""
    parameters = {one.name: one for one in operation.parameters}
    arguments = {}
    for name, value in members.items():
        plain = name.removesuffix(_HEX)
        parameter = parameters.get(plain)
        if name != plain and parameter is not None and parameter.binary:
            arguments[plain] = _bytes(f"{operation.name}: {name}", value)
        elif name in parameters:
            _check(operation, parameters[name], value)
            arguments[name] = value
        elif operation.open:
            arguments[name] = value
        else:
            expected = ", ".join(parameters) or "none"
            raise UsageError(f"{operation.name}: expected arguments among {expected}, found {name!r:.100}")
    for parameter in operation.parameters:
        if parameter.required and parameter.name not in arguments:
            raise UsageError(f"{operation.name}: {parameter.name}: expected {parameter.expected}, found none")
    return arguments


def _check(operation: Operation, parameter: Parameter, value: object) -> None:
    if not parameter.takes(value):
        where = f"{operation.name}: {parameter.name}"
        raise UsageError(f"{where}: expected {parameter.expected}, found {value!r:.100}")


def _bytes(where: str, value: object) -> bytes:
    try:
        return bytes.fromhex(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise UsageError(f"{where}: expected hexadecimal digits, found {value!r:.100}") from None


# Results.


def to_json(result: Any) -> Any:
    """Return a result as a JSON document."""
    if isinstance(result, FaultHandle):
        return {"number": result.number, "name": result.name, "options": result.options, "hits": result.hits}
    if isinstance(result, bytes):
        return _named_bytes("value", result)
    if isinstance(result, dict):
        if all(isinstance(key, bytes) for key in result):
            return [_document(key, value) for key, value in result.items()]
        return {str(key): to_json(value) for key, value in result.items()}
    if isinstance(result, list):
        return [to_json(one) for one in result]
    return _record(result) if hasattr(result, "_asdict") else result


def _document(key: bytes, value: Any) -> dict[str, Any]:
    """Return the document of a key, or all of its versions."""
    found = {"versions": to_json(value)} if isinstance(value, list) else _record(value)
    return _named_bytes("key", key) | found


def _record(record: Any) -> dict[str, Any]:
    """Return the fields of a named tuple."""
    found: dict[str, Any] = {}
    for name, value in record._asdict().items():
        if isinstance(value, bytes):
            found |= _named_bytes(name, value)
        else:
            found[name] = str(value) if name in _TEXTS else value
    return found


def _named_bytes(name: str, value: bytes) -> dict[str, str]:
    """Return bytes as text, or under another name as hexadecimal digits if they are none."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}{_HEX}": value.hex()}
