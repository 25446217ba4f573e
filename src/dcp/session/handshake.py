"""Handshake of a connection: HELLO, authentication, bucket, map, open and controls.

The order is one that every server since 3.0 accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dcp.errors import AuthenticationError, RemoteProtocolError, ServerError
from dcp.session import sasl
from dcp.session.demands import Demands
from dcp.session.states import SESSION, follow
from dcp.wire.body import JSON
from dcp.wire.dcp import OpenFlag
from dcp.wire.frame import Frame
from dcp.wire.layout import Magic
from dcp.wire.mechanisms import OAUTHBEARER
from dcp.wire.memcached import FEATURES, Feature, Status

# Yields requests, takes their answers, returns what was agreed on.
Dialogue = Generator[Frame, Frame, "Agreement"]

# Flags of OPEN that older servers refuse, newest first: OPEN is repeated without them, one by one.
# Without the flag for metadata a server before 6.0.1 sends the values as well.
_NEWEST_FLAGS = (
    OpenFlag.INCLUDE_DELETED_USER_XATTRS,
    OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE,
    OpenFlag.INCLUDE_DELETE_TIMES,
    OpenFlag.INCLUDE_XATTRS,
)
# Capability of a bucket whose nodes know the open flag for user xattrs of deletions. Older ones send these always, and
# may hang up on a flag that they do not know.
_DELETED_USER_XATTRS = "tombstonedUserXAttrs"
# Seconds between noops of servers whose interval cannot be set (kv_engine 3.0, setting dcp_noop_interval).
_FIXED_INTERVAL = 180.0
_LONGEST_CONTEXT = 200
# Statuses of a command or control that the server does not know.
_UNKNOWN = frozenset({Status.EINVAL, Status.NOT_SUPPORTED, Status.UNKNOWN_COMMAND})
# Statuses with which nodes refuse messages that only another dialect has.
WRONG_DIALECT = frozenset({Status.EINVAL, Status.UNKNOWN_COMMAND})
CHECK_DIALECT = "check dialect: the node may speak another one"


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Requested settings of a connection. Optional ones that an older server does not know are left out.

    name: of the connection. Two of the same name on one node and bucket disconnect each other.
    bucket: name of the bucket.
    credentials: user and password, or the source of tokens; None to connect without a user.
    mechanism: SASL mechanism for passwords; None to choose one.
    tls: True if the connection is encrypted.
    verified: False if it is, but to a node whose certificate was not verified.
    stream: True to open it for DCP, False for commands only.
    collections: keys carry their collection id.
    values: documents are sent, not only their keys and metadata. Without values, the datatype describes the stored
        document: the decoder must not inflate.
    xattrs: extended attributes are sent.
    snappy: values may be compressed.
    delete_times: deletions carry the time of the deletion.
    window: bytes in flight before the node waits for an acknowledgement; 0 for no limit.
    noop_interval: seconds between noops of the node.
    out_of_order: the first snapshot may arrive in the order of the disk.
    history: every kept version of a document. The handshake fails if the bucket keeps none.
    backfill_order: order in which the node reads vbuckets from disk; None for the node's default.
    stream_ids: several streams of one vbucket, each with an id that every request has to carry.
    demands: what the first connection of the client was granted, shared by all of them.
    handshake_timeout: seconds within which the handshake has to succeed.
    """

    name: str
    bucket: str
    credentials: sasl.Credentials | sasl.TokenSource | None = None
    mechanism: str | None = None
    tls: bool = False
    verified: bool = True
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
    demands: Demands = field(default_factory=Demands, compare=False, repr=False)
    handshake_timeout: float = 10.0


@dataclass(frozen=True, slots=True)
class Agreement:
    """Result of a handshake.

    features: features of HELLO that both sides have.
    controls: names of the controls that the server accepted.
    flags: flags of OPEN that the server accepted.
    config: cluster map, parsed from JSON; None if the server sent none.
    window: bytes in flight before the node waits for an acknowledgement; 0 for no limit.
    noop_interval: seconds between noops of the node; None if it sends none.
    mechanism: SASL mechanism that was used; empty without a user.
    usable: seconds from the login after which the connection is to be replaced by one with a new token; None for no
        limit.
    """

    features: frozenset[Feature] = frozenset()
    controls: frozenset[str] = frozenset()
    flags: OpenFlag = OpenFlag(0)  # noqa: RUF009
    config: Any = None
    window: int = 0
    noop_interval: float | None = None
    mechanism: str = ""
    usable: float | None = None

    @property
    def collections(self) -> bool:
        """True if keys carry their collection id."""
        return Feature.COLLECTIONS in self.features


class Handshake:
    """Requests of a handshake, one at a time. `request` is the one that waits for its answer.

    on_collections: called with True or False as soon as it is known whether keys will carry collection ids.
    """

    def __init__(self, settings: ConnectionSettings, on_collections: Callable[[bool], None]) -> None:
        self._state = next(iter(SESSION))
        self._dialogue = self._converse(settings, on_collections)
        self._ask(next(self._dialogue))

    def answer(self, frame: Frame) -> Agreement | None:
        """Take the answer to `request`. Return the agreement, or None if `request` is now another one.

        Raises RemoteProtocolError if the frame answers something else, and whatever error a refusal means.
        """
        if (frame.name, frame.opaque) != (self.request.name, self.request.opaque):
            raise RemoteProtocolError(f"expected the answer to {self.request.name}, found one to {frame.name}")
        try:
            self._ask(self._dialogue.send(frame))
        except StopIteration as done:
            self._state = follow(SESSION, self._state, "agreed", "handshake")
            agreement: Agreement = done.value
            return agreement
        return None

    def _ask(self, request: Frame) -> None:
        self._state = follow(SESSION, self._state, request.name, "handshake")
        self.request = request

    def _converse(self, settings: ConnectionSettings, on_collections: Callable[[bool], None]) -> Dialogue:
        features = yield from _hello(settings)
        on_collections(Feature.COLLECTIONS in features)
        return (yield from _after_hello(settings, features))


def _hello(settings: ConnectionSettings) -> Generator[Frame, Frame, frozenset[Feature]]:
    """Send HELLO. Return the requested features that the server has; none where it has no HELLO."""
    wanted = _wanted(settings)
    answer = yield Frame("hello", Magic.REQUEST, key=settings.name.encode()[:250], value=FEATURES.encode(wanted))
    granted = () if answer.status else FEATURES.decode(answer.value, {})
    features = frozenset(feature for feature in wanted if feature in granted)
    # Before the client shows who it is.
    settings.demands.check(_names(wanted), _names(features))
    return features


def _wanted(settings: ConnectionSettings) -> list[Feature]:
    wanted = [Feature.XERROR, Feature.SELECT_BUCKET, Feature.JSON, Feature.XATTR, Feature.DUPLEX]
    # A connection for commands reads only when it waits for an answer, so it must not be sent notifications.
    wanted += [Feature.CLUSTERMAP_CHANGE_NOTIFICATION] if settings.stream else []
    wanted += [Feature.ALT_REQUEST_SUPPORT]
    wanted += [Feature.SNAPPY] if settings.snappy else []
    wanted += [Feature.COLLECTIONS] if settings.collections else []
    return wanted


def _names(features: Iterable[Feature] | OpenFlag) -> list[str]:
    # Before Python 3.11, a combination of flags yields none of them.
    known = OpenFlag if isinstance(features, OpenFlag) else features
    return [str(each.name) for each in known if each in features]


def _after_hello(settings: ConnectionSettings, features: frozenset[Feature]) -> Dialogue:
    mechanism, usable = "", None
    if isinstance(settings.credentials, sasl.Credentials):
        mechanism = yield from _authenticate(settings, settings.credentials)
    elif settings.credentials is not None:
        mechanism, usable = OAUTHBEARER, (yield from _authenticate_by_token(settings.credentials))
    if Feature.SELECT_BUCKET in features or not features:
        yield from _select(settings, required=bool(features))
    config = yield from _config()
    if not settings.stream:
        settings.demands.learn(_names(_wanted(settings)), _names(features), mechanism)
        return Agreement(features, config=config, mechanism=mechanism, usable=usable)
    flags = yield from _open(settings, config)
    controls = yield from _controls(settings, features, flags)
    sent = [name for name, _ in _control_values(settings, features, flags)]
    requested = [*_names(_wanted(settings)), *_names(_flags(settings)), *sent]
    settings.demands.learn(requested, {*_names(features), *_names(flags), *controls}, mechanism)
    interval = float(settings.noop_interval) if "set_noop_interval" in controls else _FIXED_INTERVAL
    window = settings.window if "connection_buffer_size" in controls else 0
    noop_interval = interval if "enable_noop" in controls else None
    return Agreement(features, controls, flags, config, window, noop_interval, mechanism, usable)


def _authenticate(settings: ConnectionSettings, credentials: sasl.Credentials) -> Generator[Frame, Frame, str]:
    """Return the mechanism, once the server accepted the credentials."""
    offered = yield from _mechanisms()
    mechanism = sasl.choose(
        offered, settings.mechanism, tls=settings.tls, verified=settings.verified, before=settings.demands.mechanism
    )
    answer = yield from _exchange(mechanism, sasl.exchange(mechanism, credentials))
    if not answer.status:
        return mechanism
    if answer.status in (Status.AUTH_ERROR, Status.KEY_ENOENT):
        raise AuthenticationError(
            f"{mechanism}: the server refuses user {credentials.username!r}: wrong name or password; check both, and "
            "percent-encode special characters of a user and password in the URL",
            answer.status,
        )
    raise AuthenticationError(
        f"{mechanism}: the server cannot authenticate user {credentials.username!r} now",
        answer.status,
        _context(answer),
    )


def _authenticate_by_token(source: sasl.TokenSource) -> Generator[Frame, Frame, float | None]:
    """Return the seconds for which the connection is usable, once the server accepted the token."""
    offered = yield from _mechanisms()
    sasl.check_accepts_tokens(offered)
    token = source()
    answer = yield from _exchange(OAUTHBEARER, sasl.bearer(token))
    if answer.status == Status.AUTH_ERROR:
        raise AuthenticationError(
            f"{OAUTHBEARER}: the server refuses the token; check its expiry, issuer and audience",
            answer.status,
        )
    if answer.status:
        problem = f"{OAUTHBEARER}: the server cannot check the token now"
        raise AuthenticationError(problem, answer.status, _context(answer))
    return token.usable


def _mechanisms() -> Generator[Frame, Frame, list[str]]:
    answer = yield Frame("sasl_list_mechs", Magic.REQUEST)
    return [] if answer.status else answer.value.decode(errors="replace").split()


def _exchange(mechanism: str, steps: sasl.Exchange) -> Generator[Frame, Frame, Frame]:
    """Return the last answer of an authentication; a failure if the server refused it."""
    message, name = next(steps), "sasl_auth"
    while True:
        answer = yield Frame(name, Magic.REQUEST, key=mechanism.encode(), value=message)
        if answer.status not in (Status.SUCCESS, Status.AUTH_CONTINUE):
            return answer
        try:
            message, name = steps.send((answer.status == Status.SUCCESS, answer.value)), "sasl_step"
        except StopIteration:
            return answer


def _select(settings: ConnectionSettings, *, required: bool) -> Generator[Frame, Frame, None]:
    """Select the bucket. Servers without HELLO may not know the command: there, a user has the bucket of its name."""
    answer = yield Frame("select_bucket", Magic.REQUEST, key=settings.bucket.encode())
    subject = f"bucket {settings.bucket!r}"
    if answer.status == Status.KEY_ENOENT:
        raise ServerError(f"{subject}: bucket not found; check the path of the URL", answer.status)
    if answer.status == Status.EACCESS and settings.credentials is None:
        raise AuthenticationError(
            f"{subject}: no user; write couchbase://user:password@host/bucket, or for the command dcp set DCP_USERNAME "
            "or pass --username"
        )
    if answer.status == Status.EACCESS and required:
        raise ServerError(
            f"{subject}: bucket not found, or the user may not use it; grant a role on it, such as data_dcp_reader",
            answer.status,
        )
    if required:
        _check(answer, subject)


def _config() -> Generator[Frame, Frame, Any]:
    answer = yield Frame("get_cluster_config", Magic.REQUEST)
    return None if answer.status else JSON.decode(answer.value, {})


def _open(settings: ConnectionSettings, config: Any) -> Generator[Frame, Frame, OpenFlag]:
    """Open the connection for DCP. Return the flags that the server accepted."""
    flags = _flags(settings)
    deleted = OpenFlag.INCLUDE_DELETED_USER_XATTRS
    # A node that sends no map knows the flag if another one of its cluster does.
    if not (_announces_deleted_user_xattrs(config) or settings.demands.include(str(deleted.name))):
        flags &= ~deleted
    newest = iter(_NEWEST_FLAGS)
    while True:
        answer = yield Frame("open", Magic.REQUEST, fields={"flags": int(flags)}, key=settings.name.encode())
        refused = next((flag for flag in newest if flag in flags), None)
        if answer.status != Status.EINVAL or refused is None:
            break
        flags &= ~refused
    if answer.status == Status.EACCESS:
        raise ServerError("the user may not read changes; grant the role data_dcp_reader on the bucket", answer.status)
    if answer.status == Status.NOT_SUPPORTED:
        raise ServerError(f"bucket {settings.bucket!r}: buckets of its type do not support DCP", answer.status)
    if answer.status in WRONG_DIALECT:
        raise ServerError(f"open of {settings.name!r}: refused; {CHECK_DIALECT}", answer.status, _context(answer))
    _check(answer, f"open of {settings.name!r}")
    return flags


def _announces_deleted_user_xattrs(config: Any) -> bool:
    """Return whether a cluster map, which has not been checked yet, has the capability."""
    capabilities = config.get("bucketCapabilities") if isinstance(config, dict) else None
    return isinstance(capabilities, list) and _DELETED_USER_XATTRS in capabilities


def _flags(settings: ConnectionSettings) -> OpenFlag:
    flags = OpenFlag.PRODUCER
    flags |= OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETED_USER_XATTRS if settings.xattrs else OpenFlag(0)
    flags |= OpenFlag.INCLUDE_DELETE_TIMES if settings.delete_times else OpenFlag(0)
    # Not NO_VALUE: with it, nodes from 7.6 on read only keys from disk, and send CAS 0, flags 0, expiry 0 and
    # revision 1 (seen with 8.0.1). With this flag they need the datatype, and read the metadata (kv_engine, isKeyOnly).
    return flags | (OpenFlag(0) if settings.values else OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE)


def _controls(
    settings: ConnectionSettings, features: frozenset[Feature], flags: OpenFlag
) -> Generator[Frame, Frame, frozenset[str]]:
    """Send the controls. Return the names of those that the server accepted."""
    accepted = []
    for name, value in _control_values(settings, features, flags):
        answer = yield Frame("control", Magic.REQUEST, key=name.encode(), value=value.encode())
        if not answer.status:
            accepted.append(name)
            continue
        if answer.status not in _UNKNOWN:
            _check(answer, f"control {name}")
        settings.demands.check([name], accepted)
        if name == "enable_noop" and (Feature.COLLECTIONS in features or OpenFlag.INCLUDE_XATTRS in flags):
            raise ServerError(
                "control enable_noop: refused, but servers do not stream collections or xattrs without it"
            )
        elif name == "enable_stream_id":
            raise ServerError("control enable_stream_id: refused; several streams per vbucket need server 6.5 or newer")
        elif name == "change_streams":
            raise ServerError("history: the bucket keeps none; that needs server 7.2 or newer, and Magma storage")
    return frozenset(accepted)


def _control_values(
    settings: ConnectionSettings, features: frozenset[Feature], flags: OpenFlag
) -> Iterator[tuple[str, str]]:
    yield "enable_noop", "true"
    yield "set_noop_interval", str(settings.noop_interval)
    if settings.window:
        yield "connection_buffer_size", str(settings.window)
    yield "send_stream_end_on_client_close_stream", "true"
    if OpenFlag.INCLUDE_DELETE_TIMES in flags:
        yield "enable_expiry_opcode", "true"
    if Feature.COLLECTIONS in features:
        yield "max_marker_version", "2.2"
    if settings.out_of_order:
        yield "enable_out_of_order_snapshots", "true_with_seqno_advanced"
    if settings.history:
        yield "change_streams", "true"
    if settings.backfill_order:
        yield "backfill_order", settings.backfill_order
    if settings.stream_ids:
        yield "enable_stream_id", "true"


def _check(answer: Frame, subject: str) -> None:
    if answer.status:
        raise ServerError(f"{subject}: refused", answer.status, _context(answer))


def _details(answer: Frame) -> str:
    context = _context(answer)
    return f" (status 0x{answer.status:02x}{f', {context}' if context else ''})"


def _context(answer: Frame) -> str:
    """Return the server's explanation of a refusal, cut to a sane length; empty if there is none."""
    try:
        body = answer.body()
    except RemoteProtocolError:
        return ""
    error = body.get("error") if isinstance(body, dict) else None
    return str(error.get("context", ""))[:_LONGEST_CONTEXT] if isinstance(error, dict) else ""
