"""From a fresh connection to one that streams can be asked for on, in an order that every server since 3.0 accepts."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

from dcp.errors import AuthenticationError, RemoteProtocolError, ServerError
from dcp.session import sasl
from dcp.session.states import SESSION, follow
from dcp.wire.body import JSON
from dcp.wire.dcp import OpenFlag
from dcp.wire.frame import Frame
from dcp.wire.layout import Magic
from dcp.wire.memcached import FEATURES, Feature, Status

# What each of them says or asks, and what came back.
Dialogue = Generator[Frame, Frame, "Agreement"]

# Of those that a client may ask for, the newest first: an older server is asked again without them.
_NEWEST_FLAGS = (OpenFlag.INCLUDE_DELETE_TIMES, OpenFlag.NO_VALUE, OpenFlag.INCLUDE_XATTRS)
# How often servers send noops that cannot be told how often (kv_engine 3.0, setting dcp_noop_interval).
_FIXED_INTERVAL = 180.0
_LONGEST_CONTEXT = 200
_UNKNOWN = frozenset({Status.EINVAL, Status.NOT_SUPPORTED, Status.UNKNOWN_COMMAND})
# How nodes answer to what only other generations of the protocol have.
FOREIGN = frozenset({Status.EINVAL, Status.UNKNOWN_COMMAND})
CHECK_DIALECT = "check dialect: the node may speak another one"


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """What a client wants of its connection. What an older server does not know is done without.

    name: of the connection; two of one name on a node and bucket cut each other off.
    stream: whether it opens for DCP; without, it is for commands.
    stream_ids: several streams of a vbucket, told apart by a number that every request has to name.
    history: every version that is kept of a document. A server that keeps none is refused.
    window: bytes that may be under way; 0 for any number.
    """

    name: str
    bucket: str
    credentials: sasl.Credentials | None = None
    mechanism: str | None = None
    tls: bool = False
    stream: bool = True
    collections: bool = True
    values: bool = True
    xattrs: bool = False
    snappy: bool = True
    delete_times: bool = True
    window: int = 20 << 20
    noop_interval: int = 120
    out_of_order: bool = False
    history: bool = False
    backfill_order: str | None = None
    stream_ids: bool = False


@dataclass(frozen=True, slots=True)
class Agreement:
    """What came of it."""

    features: frozenset[Feature] = frozenset()
    controls: frozenset[str] = frozenset()
    flags: OpenFlag = OpenFlag(0)  # noqa: RUF009
    config: Any = None
    window: int = 0
    noop_interval: float | None = None
    mechanism: str = ""

    @property
    def collections(self) -> bool:
        return Feature.COLLECTIONS in self.features


class Handshake:
    """One question after the other, until something is agreed on. `question` is the one that waits for its answer.

    collections: told whether keys will carry their ids, as soon as that is known.
    """

    def __init__(self, wishes: ConnectionSettings, collections: Callable[[bool], None]) -> None:
        self._state = next(iter(SESSION))
        self._dialogue = self._converse(wishes, collections)
        self._ask(next(self._dialogue))

    def answer(self, frame: Frame) -> Agreement | None:
        """What came of it; None if there is another question first."""
        if (frame.name, frame.opaque) != (self.question.name, self.question.opaque):
            raise RemoteProtocolError(f"expected the answer to {self.question.name}, found one to {frame.name}")
        try:
            self._ask(self._dialogue.send(frame))
        except StopIteration as done:
            self._state = follow(SESSION, self._state, "agreed", "handshake")
            agreement: Agreement = done.value
            return agreement
        return None

    def _ask(self, question: Frame) -> None:
        self._state = follow(SESSION, self._state, question.name, "handshake")
        self.question = question

    def _converse(self, wishes: ConnectionSettings, collections: Callable[[bool], None]) -> Dialogue:
        features = yield from greet(wishes)
        collections(Feature.COLLECTIONS in features)
        return (yield from agree(wishes, features))


def greet(wishes: ConnectionSettings) -> Generator[Frame, Frame, frozenset[Feature]]:
    """Say hello; what the server can do of what is wanted."""
    wanted = [Feature.XERROR, Feature.SELECT_BUCKET, Feature.JSON, Feature.XATTR, Feature.DUPLEX]
    # Nobody reads on a connection for commands what was not asked for.
    wanted += [Feature.CLUSTERMAP_CHANGE_NOTIFICATION] if wishes.stream else []
    wanted += [Feature.ALT_REQUEST_SUPPORT]
    wanted += [Feature.SNAPPY] if wishes.snappy else []
    wanted += [Feature.COLLECTIONS] if wishes.collections else []
    answer = yield Frame("hello", Magic.REQUEST, key=wishes.name.encode()[:250], value=FEATURES.encode(wanted))
    if answer.status:
        return frozenset()
    return frozenset(wanted).intersection(FEATURES.decode(answer.value, {}))


def agree(wishes: ConnectionSettings, features: frozenset[Feature]) -> Dialogue:
    """Prove who we are, select the bucket, fetch its map, open, and set what is wanted."""
    mechanism = ""
    if wishes.credentials is not None:
        mechanism = yield from _authenticate(wishes, wishes.credentials)
    if Feature.SELECT_BUCKET in features or not features:
        yield from _select(wishes, required=bool(features))
    config = yield from _config()
    if not wishes.stream:
        return Agreement(features, config=config, mechanism=mechanism)
    flags = yield from _open(wishes)
    controls = yield from _controls(wishes, features, flags)
    interval = float(wishes.noop_interval) if "set_noop_interval" in controls else _FIXED_INTERVAL
    window = wishes.window if "connection_buffer_size" in controls else 0
    return Agreement(
        features, controls, flags, config, window, interval if "enable_noop" in controls else None, mechanism
    )


def _authenticate(wishes: ConnectionSettings, credentials: sasl.Credentials) -> Generator[Frame, Frame, str]:
    answer = yield Frame("sasl_list_mechs", Magic.REQUEST)
    offered = "" if answer.status else answer.value.decode(errors="replace")
    mechanism = sasl.choose(offered.split(), wishes.mechanism, tls=wishes.tls)
    steps = sasl.exchange(mechanism, credentials)
    said, name = next(steps), "sasl_auth"
    while True:
        answer = yield Frame(name, Magic.REQUEST, key=mechanism.encode(), value=said)
        if answer.status not in (Status.SUCCESS, Status.AUTH_CONTINUE):
            break
        try:
            said, name = steps.send((answer.status == Status.SUCCESS, answer.value)), "sasl_step"
        except StopIteration:
            return mechanism
    if answer.status in (Status.AUTH_ERROR, Status.KEY_ENOENT):
        raise AuthenticationError(
            f"{mechanism}: the server refuses user {credentials.username!r}: wrong name or password; check both, and "
            "write what is no letter or digit in them as %XX",
            answer.status,
        )
    raise AuthenticationError(
        f"{mechanism}: the server cannot authenticate user {credentials.username!r} now",
        answer.status,
        _context(answer),
    )


def _select(wishes: ConnectionSettings, *, required: bool) -> Generator[Frame, Frame, None]:
    """Without features there may be no such command: then a user has the bucket of the same name."""
    answer = yield Frame("select_bucket", Magic.REQUEST, key=wishes.bucket.encode())
    whose = f"bucket {wishes.bucket!r}"
    if answer.status == Status.KEY_ENOENT:
        raise ServerError(f"{whose}: there is none of this name here; check the path of the url", answer.status)
    if answer.status == Status.EACCESS and wishes.credentials is None:
        raise AuthenticationError(f"{whose}: the url has no user; write couchbase://user:password@host/bucket")
    if answer.status == Status.EACCESS and required:
        raise ServerError(
            f"{whose}: there is none, or the user may not use it; grant a role on it, such as data_dcp_reader",
            answer.status,
        )
    if required:
        _check(answer, whose)


def _config() -> Generator[Frame, Frame, Any]:
    answer = yield Frame("get_cluster_config", Magic.REQUEST)
    return None if answer.status else JSON.decode(answer.value, {})


def _open(wishes: ConnectionSettings) -> Generator[Frame, Frame, OpenFlag]:
    flags = _flags(wishes)
    newest = iter(_NEWEST_FLAGS)
    while True:
        answer = yield Frame("open", Magic.REQUEST, fields={"flags": int(flags)}, key=wishes.name.encode())
        refused = next((flag for flag in newest if flag in flags), None)
        if answer.status != Status.EINVAL or refused is None:
            break
        flags &= ~refused
    if answer.status == Status.EACCESS:
        raise ServerError("the user may not read changes; grant the role data_dcp_reader on the bucket", answer.status)
    if answer.status == Status.NOT_SUPPORTED:
        raise ServerError(f"bucket {wishes.bucket!r} has no changes to stream: its type is without DCP", answer.status)
    if answer.status in FOREIGN:
        raise ServerError(f"open of {wishes.name!r}: refused; {CHECK_DIALECT}", answer.status, _context(answer))
    _check(answer, f"open of {wishes.name!r}")
    return flags


def _flags(wishes: ConnectionSettings) -> OpenFlag:
    flags = OpenFlag.PRODUCER
    flags |= OpenFlag.INCLUDE_XATTRS if wishes.xattrs else OpenFlag(0)
    flags |= OpenFlag.INCLUDE_DELETE_TIMES if wishes.delete_times else OpenFlag(0)
    return flags | (OpenFlag(0) if wishes.values else OpenFlag.NO_VALUE)


def _controls(
    wishes: ConnectionSettings, features: frozenset[Feature], flags: OpenFlag
) -> Generator[Frame, Frame, frozenset[str]]:
    """The names of those that the server took."""
    taken = []
    for name, value in _settings(wishes, features, flags):
        answer = yield Frame("control", Magic.REQUEST, key=name.encode(), value=value.encode())
        if not answer.status:
            taken.append(name)
        elif answer.status not in _UNKNOWN:
            _check(answer, f"control {name}")
        elif name == "enable_noop" and (Feature.COLLECTIONS in features or OpenFlag.INCLUDE_XATTRS in flags):
            raise ServerError("control enable_noop: refused, but no stream has collections or xattrs without it")
        elif name == "enable_stream_id":
            raise ServerError("control enable_stream_id: the server has one stream a vbucket only; it takes 6.5")
        elif name == "change_streams":
            raise ServerError("history: the bucket keeps none; it takes servers of 7.2 or newer, and Magma")
    return frozenset(taken)


def _settings(wishes: ConnectionSettings, features: frozenset[Feature], flags: OpenFlag) -> Iterator[tuple[str, str]]:
    yield "enable_noop", "true"
    yield "set_noop_interval", str(wishes.noop_interval)
    if wishes.window:
        yield "connection_buffer_size", str(wishes.window)
    yield "send_stream_end_on_client_close_stream", "true"
    if OpenFlag.INCLUDE_DELETE_TIMES in flags:
        yield "enable_expiry_opcode", "true"
    if Feature.COLLECTIONS in features:
        yield "max_marker_version", "2.2"
    if wishes.out_of_order:
        yield "enable_out_of_order_snapshots", "true_with_seqno_advanced"
    if wishes.history:
        yield "change_streams", "true"
    if wishes.backfill_order:
        yield "backfill_order", wishes.backfill_order
    if wishes.stream_ids:
        yield "enable_stream_id", "true"


def _check(answer: Frame, what: str) -> None:
    if answer.status:
        raise ServerError(f"{what}: refused", answer.status, _context(answer))


def _context(answer: Frame) -> str:
    """What the server says of it."""
    try:
        said = answer.body()
    except RemoteProtocolError:
        return ""
    error = said.get("error") if isinstance(said, dict) else None
    return str(error.get("context", ""))[:_LONGEST_CONTEXT] if isinstance(error, dict) else ""
