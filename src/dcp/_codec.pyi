import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, TypeVar, final

from typing_extensions import Buffer, Self

from dcp.position import Progress, StreamPosition

_Stream = TypeVar("_Stream", bound="MovingStream")

HEADER: dict[str, int]
FRAMING: dict[str, int]
CAN_RECEIVE: bool

class Source(IntEnum):
    FIELD = 0
    EVENT = 1
    TIMESTAMP = 2
    COLLECTION = 3
    KEY = 4
    VALUE = 5
    XATTRS = 6
    SNAPSHOT_START = 7
    SNAPSHOT_END = 8
    STREAM_ID = 9
    ERROR = 10
    BAD_VALUE = 11
    DOCUMENT = 12

class DocumentKind(IntEnum):
    DOCUMENT_BOOL = 0
    DOCUMENT_INT8 = 1
    DOCUMENT_INT16 = 2
    DOCUMENT_INT32 = 3
    DOCUMENT_INT64 = 4
    DOCUMENT_FLOAT32 = 5
    DOCUMENT_FLOAT64 = 6
    DOCUMENT_DECIMAL = 7
    DOCUMENT_STRING = 8
    DOCUMENT_BINARY = 9
    DOCUMENT_DATE = 10
    DOCUMENT_TIMESTAMP = 11
    DOCUMENT_LOCAL_TIMESTAMP = 12
    DOCUMENT_EPOCH = 13
    DOCUMENT_JSON = 14
    DOCUMENT_STRUCT = 15
    DOCUMENT_LIST = 16
    DOCUMENT_MAP = 17

class TestKind(IntEnum):
    TEST_AND = 0
    TEST_OR = 1
    TEST_NOT = 2
    TEST_NULL = 3
    TEST_LIKE = 4
    TEST_EQUAL = 5
    TEST_UNEQUAL = 6
    TEST_LESS = 7
    TEST_LESS_OR_EQUAL = 8

class Effect(IntEnum):
    NOTHING = 0
    SNAPSHOT = 1
    DISORDER = 2
    STREAM_END = 3
    UNCOUNTED = 4
    ADVANCE = 5

@final
class Splitter:
    def __new__(cls, max_frame: int) -> Splitter: ...
    @property
    def max_frame(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def pending(self) -> int: ...
    def feed(self, data: Buffer) -> None: ...
    def __iter__(self) -> Splitter: ...
    def __next__(self) -> bytes: ...
    def finish(self) -> None: ...

@final
class View:
    def __len__(self) -> int: ...
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int) -> memoryview: ...

JSON_TEXT: int
JSON_NUMBER: int
JSON_TRUTH: int

def read_schema(capsule: object) -> tuple[str, str, dict[str, str], list[Any], bool]: ...

@final
class DocumentPlan:
    def __new__(
        cls,
        nodes: Sequence[Mapping[str, Any]],
        levels: Sequence[tuple[str, Sequence[tuple[str, int, int, int]]]],
    ) -> DocumentPlan: ...

@final
class Selection:
    def __new__(
        cls,
        events: Sequence[int],
        keys: Sequence[bytes] | None,
        patterns: Sequence[tuple[bytes, bytes]],
        tests: Sequence[Mapping[str, Any]],
    ) -> Selection: ...

@final
class Plan:
    def __new__(
        cls,
        columns: Sequence[tuple[str, str, Source, bool, bool]],
        events: Sequence[str],
        shapes: Sequence[Mapping[str, Any]],
        document: DocumentPlan | None = None,
    ) -> Plan: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def formats(self) -> tuple[str, ...]: ...
    @property
    def events(self) -> tuple[str, ...]: ...
    def __arrow_c_schema__(self) -> object: ...

@final
class Rows:
    @property
    def plan(self) -> Plan: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def bad_rows(self) -> int: ...
    @property
    def unselected_rows(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    def buffers(self, column: int) -> tuple[View | None, View, View | None]: ...
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...
    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...

class Decoder:
    def __new__(
        cls,
        plan: Plan,
        *,
        max_frame: int,
        max_value: int,
        collections: bool = False,
        inflate: bool = True,
        split_xattrs: bool = True,
        check_keys: bool = False,
        check_values: bool = False,
        quarantine: bool = False,
        views: bool = False,
        keep_bad_documents: bool = True,
        selection: Selection | None = None,
    ) -> Self: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def max_frame(self) -> int: ...
    @property
    def pending(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def flow_bytes(self) -> int: ...
    @property
    def batch_bytes(self) -> int: ...
    @property
    def stray_rows(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def has_arrivals(self) -> bool: ...
    def feed(self, data: Buffer) -> None: ...
    def buffer(self) -> memoryview: ...
    def received(self, count: int) -> None: ...
    def _receive(
        self, fd: int, bell: int, seconds: float | None, max_rows: int, max_bytes: int
    ) -> tuple[int, bool]: ...
    def expect_open_streams(self) -> None: ...
    def open_stream(self, opaque: int, vbucket: int, stream_id: int, seqno: int) -> None: ...
    def close_stream(self, opaque: int, vbucket: int, stream_id: int) -> None: ...
    def forget_stream(self, opaque: int, vbucket: int, stream_id: int) -> None: ...
    def _advance(self, max_rows: int, max_bytes: int) -> bool: ...
    def _controls(self) -> list[tuple[int, int, int, int, bytes]]: ...
    def _last_seqnos(self) -> list[tuple[int, int, int, int]]: ...
    def _passed_snapshots(self) -> list[tuple[int, int, int, list[int], int, int]]: ...
    def _moved(
        self, streams: dict[int, _Stream], in_order: str, find: Callable[[int, int, int], _Stream]
    ) -> tuple[dict[tuple[int, int | None], LazyPosition], list[tuple[int, int, int, int]]]: ...
    @property
    def _waits_for_report(self) -> bool: ...
    def _remove_rows(self, row: int, flow_bytes: int) -> None: ...
    def _finish(self) -> Rows: ...
    def _problem(self) -> tuple[bytes, int, str | None, bool] | None: ...

@final
class LazyPosition:
    def __init__(self, progress: Progress, last_seqno: int) -> None: ...
    @property
    def progress(self) -> Progress: ...
    @property
    def last_seqno(self) -> int: ...
    @property
    def position(self) -> StreamPosition: ...

class MovingStream:
    state: str
    last_seqno: int
    reported: int
    progress: Progress
    def __init__(self, progress: Progress, stream_id: int | None, state: str) -> None: ...
    @property
    def vbucket(self) -> int: ...
    @property
    def key(self) -> tuple[int, int | None]: ...
    @property
    def highest(self) -> int: ...
    @property
    def lazy_position(self) -> LazyPosition: ...
    def pass_snapshots(self, ends: list[int], start: int, end: int) -> None: ...
    def settle_passed(self) -> None: ...

def arrow_stream(schema: object, batches: Iterator[object]) -> object: ...
def arrow_columns(schema: object) -> list[tuple[str, str, str | None]]: ...

@final
class Recipe:
    def __new__(
        cls,
        columns: Sequence[tuple[str, str, str | None]],
        special: Sequence[int],
        events: Sequence[str],
        forms: Sequence[tuple[int, Mapping[str, Any]]],
    ) -> Recipe: ...
    @property
    def events(self) -> tuple[str, ...]: ...
    def encode(self, array: object, opaque: int | None, inflated: bool, defect: bool) -> bytes: ...
    def encode_into(self, out: Buffer, array: object, opaque: int | None, inflated: bool, defect: bool) -> int: ...

@final
class RowWriter:
    def __new__(cls, recipe: Recipe) -> RowWriter: ...
    def write(
        self,
        out: Buffer,
        at: int,
        rows: list[Any],
        begin: int,
        enough: int,
        opaque: int,
        others: tuple[int | None, ...],
        defect: bool,
    ) -> tuple[int, int]: ...
