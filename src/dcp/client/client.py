"""The client: connects to a bucket, streams its changes, and asks its nodes questions."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from importlib.util import find_spec
from os import PathLike
from typing import Any, Literal

from dcp.checkpoint import Checkpoint
from dcp.client import connection_string, queries
from dcp.client.agent import Agent
from dcp.client.commands import CommandConnection
from dcp.client.filters import StreamSelection, resolve_filter
from dcp.client.follow.follower import Follower, RunningStream
from dcp.client.follow.settings import TAP, BatchLimits, StreamSettings, dialect_rules
from dcp.client.options import ConnectionOptions, Use, check_supported, options_of, read_all
from dcp.client.row_format import RowFormat
from dcp.client.stats import Stats, combine
from dcp.client.stream import ChangeStream
from dcp.client.stream_range import resolve_end, resolve_range, resolve_start
from dcp.cluster_map import ClusterMap, Node
from dcp.columns.decoder import DocumentLike
from dcp.columns.path_columns import PATH_COLUMNS, PathColumns
from dcp.errors import UsageError
from dcp.position import FailoverLog
from dcp.wire.memcached import MAX_FRAME

log = logging.getLogger("dcp.client")

# Options of a stream that its decoders take as they are.
_DECODING = (
    *("views", "max_frame", "max_value", "inflate", "xattrs", "keys", "values", "on_bad_value", "types"),
    *("document", "on_bad_document", "only_events", "only_keys", "where"),
)
# Options of a stream that not every dialect supports.
_PROMISES = ("scope", "collections", "persisted_only", "ignore_purged", "out_of_order", "history")


def connect(
    url: str,
    *,
    bootstrap_timeout: float | str | timedelta | None = None,
    ca_cert_path: str | PathLike[str] | None = None,
    cert_path: str | PathLike[str] | None = None,
    compression: Literal["on", "off", "force"] | None = None,
    config_poll_interval: float | str | timedelta | None = None,
    dcp_buffer_size: int | str | None = None,
    dcp_priority: Literal["low", "medium", "high"] | None = None,
    dialect: Literal["dcp", "tap", "upr1", "upr2"] | None = None,
    key_path: str | PathLike[str] | None = None,
    kv_connect_timeout: float | str | timedelta | None = None,
    network: Literal["auto", "default", "external"] | None = None,
    noop_interval: float | str | timedelta | None = None,
    refusal_timeout: float | str | timedelta | None = None,
    sasl_mech_force: str | None = None,
    stats_interval: float | str | timedelta | None = None,
    tls_verify: bool | None = None,
    token: str | Callable[[], str] | None = None,
) -> Client:
    """Connect to a bucket of a cluster, and return its Client.

    url: Connection string `couchbase://user:password@host1,host2/bucket?option=value`, or `couchbases://` for TLS. One
        of the hosts has to answer; a single host without a port may be a name with DNS SRV records.

    Keyword options override those in the URL. A duration is a number of seconds, a timedelta, or text such as `500ms`,
    `2.5s`, `15m` or `1h`; a size is a number of bytes, or text such as `64k` or `20mb`.

    bootstrap_timeout: Time limit of a node for an answer to a command, for the whole handshake of a connection, and
        over TAP for the announcement of a vbucket. Default: 10 s.
    ca_cert_path: PEM file of authorities to trust in addition to the system's. Requires couchbases://.
    cert_path: PEM file of the client's certificate. Requires couchbases://.
    compression: `on` lets nodes send values compressed with Snappy, `off` does not; `force` is the same as `on`.
        Default: on.
    config_poll_interval: Interval at which the cluster map is fetched from nodes that do not push a new one. Default:
        2.5 s.
    dcp_buffer_size: Flow-control window of a connection: bytes that a node may send before they are processed. 0: no
        limit. Default: 20m.
    dcp_priority: Accepted for compatibility with other clients; ignored.
    dialect: Protocol: `dcp`, `tap` for servers up to 4.6 over TAP, `upr1` or `upr2` for the drafts of UPR. Default:
        dcp.
    key_path: PEM file of the key of `cert_path`, if that file does not contain it.
    kv_connect_timeout: Time limit for a TCP connection, and again for TLS on it. Default: 10 s.
    network: Addresses of nodes to use: `default`, `external`, or `auto` for those among which the URL's host is
        found; if it is in neither, the external ones if there are any, as Couchbase's C++ client does (CXXCBC-707).
        Default: auto.
    noop_interval: Interval at which a node sends noops. After two intervals without a byte the client reconnects.
        Default: 120 s.
    refusal_timeout: Time for which a stream repeats what a node refuses for a reason that may pass, such as that it
        starts or is busy; after it the stream ends with the refusal. Also the longest time without progress in the
        search for a time. Default: 600 s.
    sasl_mech_force: The only SASL mechanism to use, of PLAIN, SCRAM-SHA1, SCRAM-SHA256, SCRAM-SHA512. By default the
        strongest on offer; PLAIN, which sends the password, over TLS only.
    stats_interval: Interval at which nodes are asked for high seqnos, for lag, rates and stalled vbuckets. 0: never.
        Default: 10 s.
    tls_verify: Verify the nodes' certificates. Turn it off in tests only. Default: True.
    token: JSON web token to log in with (server 8.1 or newer), instead of a user in the URL, or a function that returns
        the present one. It is called at every login; connections are replaced before their token expires. Requires
        couchbases://.

    Raises UsageError for a wrong URL or option, AuthenticationError for wrong credentials, ServerError if the bucket
    cannot be used, and TransportError if no node answers.
    """
    # Nothing but the parameters is local yet.
    keywords = {name: value for name, value in locals().items() if name != "url"}
    target = connection_string.parse(url)
    options = ConnectionOptions.of(target.options, keywords, tls=target.tls, username=target.username)
    return Client(Agent(target, options))


class Client:
    """A connection to one bucket of a cluster. Made by `dcp.connect`.

    `stream` follows the bucket's changes; the other methods ask its nodes. Thread-safe. Close it, or use it in a `with`
    statement: that ends its streams and closes all connections.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._bucket = agent.target.bucket
        self._streams: list[RunningStream] = []
        self._known_logs = queries.KnownLogs()
        # Counts of streams that ended.
        self._ended = Stats(self._bucket)
        # Not at exit: the interpreter closes sockets by itself, and joining threads there could block.
        weakref.finalize(self, agent.close).atexit = False

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client {self._agent.target}>"

    def close(self) -> None:
        """End all streams, and close all connections."""
        self._agent.close()
        for stream in self._streams:
            stream.close()

    @property
    def dialect(self) -> str:
        """Protocol of streams: `dcp`, `tap`, `upr1` or `upr2`."""
        return self._agent.dialect

    @property
    def map(self) -> ClusterMap:
        """Newest cluster map that any node sent."""
        return self._agent.map

    @property
    def node_addresses(self) -> dict[str, str]:
        """Host and port to connect to of each node of the map, by the name of the node."""
        return {str(node): str(address) for node, address in self._agent.node_addresses.items()}

    def refresh_map(self) -> ClusterMap:
        """Fetch the cluster map from any node that answers, and return the newest one."""
        return self._agent.refresh_map()

    # Streams.

    def stream(
        self,
        start: str | datetime | Checkpoint | None = "beginning",
        end: str | datetime | Checkpoint | None = None,
        *,
        scope: str | None = None,
        collections: str | Iterable[str] | None = None,
        vbuckets: str | Iterable[int] | None = None,
        columns: str | Iterable[str] | None = None,
        batch_rows: int = 65_536,
        batch_bytes: int | str = 4 << 20,
        linger: float | str | timedelta = 0.02,
        on_rollback: Literal["replay", "fail"] = "replay",
        ignore_purged: bool = False,
        persisted_only: bool = False,
        persisted_within: float | str | timedelta = 60.0,
        out_of_order: bool = False,
        history: bool = False,
        views: bool = False,
        max_frame: int = MAX_FRAME,
        max_value: int = MAX_FRAME,
        inflate: bool = True,
        xattrs: Literal["split", "map", "inline"] = "split",
        keys: Literal["binary", "utf8"] = "binary",
        values: Literal["binary", "utf8"] = "binary",
        on_bad_value: Literal["fail", "quarantine"] = "fail",
        types: Literal["wire", "plain"] = "wire",
        document: DocumentLike | None = None,
        on_bad_document: Literal["quarantine", "fail"] = "quarantine",
        only_events: str | Iterable[str] | None = None,
        only_keys: str | bytes | Iterable[str | bytes] | None = None,
        where: str | None = None,
    ) -> ChangeStream:
        """Follow the changes of the bucket, and return an iterator of their batches.

        A duration is a number of seconds, a timedelta, or text such as `500ms`; a size is a number of bytes, or text
        such as `4m`. A time is a datetime with a UTC offset, its ISO text, or text such as `-1h` for a time before now.

        start: Where to begin: "beginning" (also None), "now", a Checkpoint to resume from, or a time: only changes made
            at it or later by their CAS. Default: beginning.
        end: Where to end: None for never, "now" for the high seqnos at the start, a Checkpoint: only changes up to its
            positions, or a past time: only changes made before it.
        scope: Name of a scope: only its collections. With `collections`, the scope of names without one.
        collections: Names of collections, as `scope.name` or in `scope`: only these.
        vbuckets: Numbers of vbuckets, as "0-511,600" or several: only these.
        columns: Names of the columns of a batch, in order; `scope` and `collection` are the names of a row's
            collection. Columns that are not named are not decoded. Default: event, vbucket, seqno, rev_seqno, cas,
            flags, expiry, lock_time, delete_time, datatype, collection_id, key, value, xattrs, snapshot_start,
            snapshot_end, stream_id.
        batch_rows: Number of rows at which a batch is delivered. Default: 65536.
        batch_bytes: Received bytes at which a batch is delivered. Default: 4m.
        linger: Age of its first row at which a batch is delivered, however small. Default: 0.02 s.
        on_rollback: `replay` delivers a row with the event `rollback`, then what the cluster has above its seqno. What
            the lost changes had replaced is not sent: see docs/semantics.md. `fail` raises RollbackError. Default:
            replay.
        ignore_purged: Resume even if deletions after the checkpoint were purged, with a row whose event is `purged`.
            Without it, such a vbucket restarts from seqno 0. Default: False.
        persisted_only: Deliver only changes that every copy of their vbucket has on disk, so that no failover takes
            them back. Default: False.
        persisted_within: Time limit of `persisted_only`, and of the wait for the disk before a TAP stream with an end:
            after it a TransportError names the nodes that lag. Default: 60 s.
        out_of_order: Let nodes send the first snapshot of a collection in any order, which may be faster. Until it is
            complete, positions stay at the beginning. Default: False.
        history: Deliver every version that the bucket keeps of a document, not only the last one of a snapshot.
            Default: False.
        views: Make keys, values and xattrs Arrow views into the received bytes, without a copy. Default: False.
        max_frame: Largest frame that is accepted, the cluster map among them. Default: 30m.
        max_value: Largest size to which a compressed value may inflate; `max_frame` limits the others. Default: 30m.
        inflate: Decompress values that are compressed with Snappy. Default: True.
        xattrs: Extended attributes: `split` off the value as bytes, as a `map`, or left `inline` in the value. Default:
            split.
        keys: Type of the column `key`. `utf8` checks the bytes. Default: binary.
        values: Type of the column `value`. `utf8` checks the bytes. Default: binary.
        on_bad_value: Values that cannot be read: `fail` raises an error, `quarantine` delivers them as received, or
            null as text, with the reason in the column `error`. The column `bad_value` has their bytes. Default: fail.
        types: `wire` has unsigned numbers as wide as sent and events as a dictionary; `plain` has the signed numbers
            and text that Spark takes. Default: wire.
        document: Schema of the documents, for the column `document`: DDL such as `id bigint, customer struct<city
            string>`, an Arrow schema, or names with paths and types. See docs/documents.md.
        on_bad_document: Documents that do not fit the schema: `quarantine` delivers null for what does not, with the
            reason in the column `error`. `fail` raises DocumentError. Default: quarantine.
        only_events: Names of events, such as `mutation`: only these, and rows that report a rollback or a purge.
            Default: all.
        only_keys: Keys, such as `order::*`: only these. A star stands for any bytes, unless a backslash is before it.
            Default: all.
        where: Condition on the document, such as `type = 'order' and total > 100`: only mutations for which it is true.
            Deletions are delivered, and values that are no JSON.

        Raises UsageError for a wrong option, or one that the dialect does not support, CheckpointError for a checkpoint
        of another bucket or selection, and ServerError or TransportError if nodes do not answer questions about it.
        Later errors are raised by the iterator. Lost connections and moved vbuckets are no errors; rollbacks are
        errors only with on_rollback="fail".
        """
        # Nothing but the parameters is local yet.
        given = {name: value for name, value in locals().items() if name != "self"}
        return self._stream(dict(read_all(Use.STREAM, given)))

    def _stream(self, options: dict[str, Any]) -> ChangeStream:
        """Start a stream with parsed options."""
        self._agent.check_open()
        if options["out_of_order"] and options["persisted_only"]:
            raise UsageError("out_of_order: expected it without persisted_only, which waits for whole snapshots")
        check_supported(self.dialect, [name for name in _PROMISES if options[name]], Use.STREAM)
        decoding = {name: options[name] for name in _DECODING}
        columns = options["columns"]
        named = columns is not None and bool({*PATH_COLUMNS} & {*columns})
        received = PathColumns.required(columns) if named else columns
        if named and find_spec("pyarrow") is None:
            raise UsageError("columns: the names of scopes and collections need pyarrow: pip install pyarrow")
        format = RowFormat(self.dialect, received, decoding, in_order=not options["out_of_order"])
        # Wrong columns are refused before any node is asked.
        format.decoder(True)
        vbuckets = self._checked_vbuckets(options["vbuckets"])
        chosen = resolve_filter(self._agent, options["scope"], options["collections"])
        range = resolve_range(self._agent, vbuckets, chosen, options["start"], options["end"])
        format = format.limited(range.since, range.until, range.last_seqnos)
        settings = self._settings(options, format, chosen)
        log.info("bucket %s: following %d vbuckets from %s", self._bucket, len(vbuckets), _described(options["start"]))
        # A stream has connections of its own, and command connections may stay unused for its whole life.
        self.close_idle()
        follower = Follower(self._agent, range.vbuckets(), settings)
        # Without seqnos there is no lag to measure.
        running = RunningStream.start(self._agent, follower, chosen, monitored=settings.rules.resumes)
        self._keep(running)
        names = PathColumns(columns, format.schema, partial(self._paths, follower)) if named else None
        return ChangeStream(self, follower, running, chosen.template, range, format, names)

    def _paths(self, follower: Follower) -> Mapping[int, str]:
        """Return the paths of all collections by id, at least of those that a stream has rows of."""
        newest = max(reached.position.manifest_uid for reached in follower.positions.values())
        return queries.awaited_manifest(self._agent, newest).paths

    def _settings(self, options: dict[str, Any], format: RowFormat, chosen: StreamSelection) -> StreamSettings:
        tap = self.dialect == TAP
        return StreamSettings(
            decoder=format.decoder,
            limits=BatchLimits.within(
                self._agent.options.dcp_buffer_size,
                options["max_frame"],
                rows=options["batch_rows"],
                bytes=options["batch_bytes"],
                linger=options["linger"],
            ),
            rules=dialect_rules(self.dialect, options["start"]),
            report_row=format.report_row(),
            on_rollback=options["on_rollback"],
            filter=chosen.wire,
            ignore_purged=options["ignore_purged"],
            persisted_within=options["persisted_within"] if options["persisted_only"] else None,
            on_disk_within=options["persisted_within"] if tap and options["end"] is not None else None,
            announced_within=self._agent.options.bootstrap_timeout if tap else None,
            requested={
                "out_of_order": options["out_of_order"],
                "history": options["history"],
                "xattrs": format.has_xattrs,
                "values": format.has_values or not queries.can_leave_out_values(self._agent),
            },
        )

    def _keep(self, running: RunningStream) -> None:
        """Keep a stream's handle. Of streams that are closed, only the counts are kept."""
        closed = [stream for stream in self._streams if stream.closed]
        self._ended = combine(self._bucket, [self._ended, *(stream.stats() for stream in closed)])
        self._streams = [*(stream for stream in self._streams if stream not in closed), running]

    def stats(self) -> Stats:
        """Return counts since the client was made, and the state of its streams.

        No node is asked: lag, rates and stuck vbuckets are as old as the last poll (option `stats_interval`).
        """
        return combine(self._bucket, [self._ended, *(stream.stats() for stream in self._streams)])

    def positions(
        self,
        start: str | datetime | Checkpoint | None = "beginning",
        *,
        scope: str | None = None,
        collections: str | Iterable[str] | None = None,
        vbuckets: str | Iterable[int] | None = None,
    ) -> Checkpoint:
        """Return the checkpoint from which a stream with these options would begin; the options are those of `stream`.

        A time is searched for by probes, as `stream` does. Vbuckets of a checkpoint that are not asked for keep their
        position.
        """
        given = {"start": start, "scope": scope, "collections": collections, "vbuckets": vbuckets}
        self._agent.check_open()
        options = dict(read_all(Use.STREAM, given))
        check_supported(self.dialect, [name for name in ("scope", "collections") if options[name]], Use.STREAM)
        numbers = self._checked_vbuckets(options["vbuckets"])
        chosen = resolve_filter(self._agent, options["scope"], options["collections"])
        found = options["start"].by_vbucket() if isinstance(options["start"], Checkpoint) else {}
        found |= resolve_start(self._agent, numbers, chosen, options["start"])
        return replace(chosen.template, positions=tuple(found[number] for number in sorted(found)))

    def end_seqnos(
        self,
        end: str | datetime | Checkpoint | None,
        *,
        scope: str | None = None,
        collections: str | Iterable[str] | None = None,
        vbuckets: str | Iterable[int] | None = None,
    ) -> dict[int, int]:
        """Return the last seqno of each vbucket that a stream with this end delivers.

        The options are those of `stream`.
        A time is searched for by probes, as `stream` does.
        """
        given = {"end": end, "scope": scope, "collections": collections, "vbuckets": vbuckets}
        self._agent.check_open()
        options = dict(read_all(Use.STREAM, given))
        numbers = self._checked_vbuckets(options["vbuckets"])
        chosen = resolve_filter(self._agent, options["scope"], options["collections"])
        return dict(resolve_end(self._agent, numbers, chosen, options["end"]))

    def _checked_vbuckets(self, given: Iterable[int] | None) -> list[int]:
        count = self.map.num_vbuckets
        numbers = [*range(count)] if given is None else sorted(given)
        if not numbers or numbers[-1] >= count:
            raise UsageError(f"vbuckets: expected some of 0 to {count - 1}, found {_abridged(numbers)}")
        return numbers

    # Questions.

    def server_version(self) -> str:
        """Return the version of the node that commands go to."""
        return queries.server_version(self._agent)

    def high_seqnos(self, collection_id: int | Collection[int] | None = None) -> dict[int, int]:
        """Return the high seqno of each vbucket, from its owner. All nodes are asked at the same time.

        collection_id: only changes of this collection count, or of any of several; vbuckets that never had any may be
            missing.
        """
        return queries.high_seqnos(self._agent, [collection_id] if isinstance(collection_id, int) else collection_id)

    def failover_logs(self, vbuckets: Iterable[int] | None = None) -> dict[int, FailoverLog]:
        """Return the failover log of each of these vbuckets, or of all. Vbuckets without an owner are missing.

        Raises ServerError if a node is too busy to send one.
        """
        table = options_of(Use.STREAM)
        return queries.failover_logs(self._agent, self._checked_vbuckets(table["vbuckets"].read(vbuckets)))

    def heads(
        self,
        vbuckets: Iterable[int] | None = None,
        *,
        scope: str | None = None,
        collections: str | Iterable[str] | None = None,
        max_log_age: float = 0.0,
    ) -> queries.Heads:
        """Return high seqnos and failover logs that are consistent with each other, of these vbuckets or of all.

        scope, collections: if the user may not read the seqnos of the whole bucket, only changes of these count.
        max_log_age: age in seconds up to which the failover log of an earlier call is used, while the high seqno of its
            vbucket, the cluster map and the connections are the same. Default: all logs are asked for.

        Raises TransportError if a vbucket has no owner, or if changes are lost while they are read.
        """
        table = options_of(Use.STREAM)
        chosen = table["scope"].read(scope), table["collections"].read(collections)

        def limited_to() -> Collection[int]:
            return resolve_filter(self._agent, *chosen).collection_ids(self._agent)

        wanted = self._checked_vbuckets(table["vbuckets"].read(vbuckets))
        return queries.heads(self._agent, wanted, limited_to, known=self._known_logs, max_age=max_log_age)

    def purge_seqnos(self) -> dict[int, int]:
        """Return the purge seqno of each vbucket: deletions up to it may be gone.

        Missing where the owner does not report it, such as to a user that may not read statistics.
        """
        return queries.purge_seqnos(self._agent)

    def persisted_seqnos(self, histories: Mapping[int, int]) -> dict[int, dict[str, int | None]]:
        """Return the seqno up to which each copy of a vbucket is on disk, by vbucket and node.

        histories: uuid of the history by vbucket. A node that does not answer, or has another history, has None.
        """
        return queries.persisted_seqnos(self._agent, histories)

    def collections(self) -> dict[int, str]:
        """Return the paths (`scope.collection`) of all collections by id; none from a server without collections."""
        return self.manifest().paths

    def manifest(self, newest: int = 0) -> queries.CollectionsManifest:
        """Return the collections and the uid of their manifest.

        newest: uid of the newest manifest that is known. Raises TransportError if the node that was asked has an older
        one.
        """
        return queries.collections_manifest(self._agent, newest)

    def open_command_connection(self, node: Node, *, stream: bool = False) -> CommandConnection:
        """Return a new connection to a node for commands of one's own. The caller closes it.

        stream: open it for DCP, for commands that require that.
        """
        return self._agent.open_command_connection(node, stream=stream)

    def close_idle(self) -> None:
        """Close idle command connections; the next question opens a new one. Streams have their own connections."""
        self._agent.close_idle()


def _described(start: object) -> str:
    return "a checkpoint" if isinstance(start, Checkpoint) else str(start)


def _abridged(numbers: list[int]) -> str:
    return f"{numbers!r:.100}"
