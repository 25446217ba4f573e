"""Checks of `dcp doctor`: the steps from a URL to a stream of changes, each tried on its own."""

from __future__ import annotations

import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import NamedTuple

import dcp
from dcp.checkpoint import Checkpoint
from dcp.cli.terminal import counted
from dcp.client.agent import tls_settings
from dcp.client.client import Client
from dcp.client.connection_string import HostPort, Target, parse
from dcp.client.options import ConnectionOptions
from dcp.client.tls import TlsSocket
from dcp.client.transport import connect, lookup_srv
from dcp.cluster_map import format_vbuckets
from dcp.errors import AuthenticationError, DcpError, RemoteProtocolError, ServerError, TransportError
from dcp.position import StreamPosition
from dcp.session.handshake import Agreement
from dcp.wire.dcp import DCP
from dcp.wire.memcached import Feature, Status

# Without noops a dead connection is not noticed; without flow control a fast server fills the memory.
_CONTROLS = {"enable_noop": "noop", "connection_buffer_size": "flow control"}
# Seconds by which a CAS may be ahead of this machine's clock. Servers warn above 5 s between nodes; the clock of a
# client may be off by more.
_MAX_AHEAD = 60.0
# Number of vbuckets whose last change is read.
_SAMPLE = 64
# Changes that are read of each. The last one may be of the collections, which has no CAS.
_DEPTHS = (1, 100)
_NANO = 1_000_000_000


class CheckResult(NamedTuple):
    """Result of a step, and a remedy if it failed."""

    name: str
    says: str
    remedy: str = ""
    ok: bool = True


class CheckFailed(Exception):
    """Failure of a step, with a remedy. The next steps depend on it, so it ends the diagnosis."""

    def __init__(self, problem: object, remedy: str) -> None:
        super().__init__(str(problem), remedy)
        self.problem, self.remedy = str(problem), remedy


@dataclass
class DoctorContext:
    """Findings of the steps so far, for the next ones."""

    url: str
    # Longest time of each step in seconds.
    timeout: float
    target: Target | None = None
    client: Client | None = None
    agreements: dict[str, Agreement] = field(default_factory=dict)
    # Highest CAS of the changes that were read.
    newest_cas: int | None = None
    # Node that the present step waits for; empty for none.
    waits_for: str = ""

    @property
    def known(self) -> Target:
        """The parsed URL."""
        assert self.target is not None
        return self.target

    @property
    def connected(self) -> Client:
        """The connected client."""
        assert self.client is not None
        return self.client


def checks(context: DoctorContext) -> Iterator[CheckResult]:
    """Run the steps in order, up to the first that fails. Yield the result of each."""
    for name, step in _STEPS.items():
        try:
            yield CheckResult(name, _run(step, context))
        except CheckFailed as failure:
            yield CheckResult(name, failure.problem, failure.remedy, ok=False)
            return
        except (DcpError, OSError) as error:
            yield CheckResult(
                name, str(error), "see the message; dcp inspect shows the frames of a network capture", ok=False
            )
            return


def _run(step: Callable[[DoctorContext], str], context: DoctorContext) -> str:
    """Return the result of a step. Raises CheckFailed after the time limit, with what stands still."""
    result: Future[str] = Future()

    def run() -> None:
        try:
            result.set_result(step(context))
        except Exception as error:
            result.set_exception(error)

    context.waits_for = ""
    # A daemon: the process does not wait for a step that is blocked on a node.
    thread = threading.Thread(target=run, name="dcp doctor", daemon=True)
    thread.start()
    thread.join(context.timeout)
    if result.done():
        return result.result()
    waits = [f"waiting for {context.waits_for}"] if context.waits_for else []
    standing: defaultdict[str, list[int]] = defaultdict(list)
    if context.client is not None:
        for vbucket, stuck in context.client.stats().stuck.items():
            standing[stuck.detail].append(vbucket)
    still = [f"the streams of vbuckets {format_vbuckets(them)} stand still: {why}" for why, them in standing.items()]
    raise CheckFailed(
        "; ".join([f"no result within {context.timeout:g} s", *waits, *still]),
        "check the node: its load, memory and disk, and the network to it; --timeout 2m waits longer",
    )


# The steps.


def _url(context: DoctorContext) -> str:
    """Parse the URL."""
    try:
        context.target = target = parse(context.url)
        if (dialect := _options(target).dialect) != DCP.name:
            raise CheckFailed(f"dialect {dialect} cannot be checked", "leave dialect out to check the node over DCP")
    except DcpError as error:
        raise CheckFailed(error, "write it as couchbase://user:password@host1,host2/bucket?option=value") from None
    return str(target)


def _dns(context: DoctorContext) -> str:
    """Resolve SRV records and host names."""
    target = context.known
    # A URL with one host and no port may name an SRV record instead of a host.
    found = lookup_srv(target.srv, _timeout(target)) if target.srv else ()
    if found:
        context.target = target = replace(target, addresses=found)
    results = [f"{target.srv} resolves to {', '.join(map(str, found))}"] if found else []
    for host in {address.host: None for address in target.addresses}:
        try:
            resolved = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            # UnicodeError for names with empty or long parts, such as a..b.
            raise CheckFailed(
                f"{host}: {getattr(error, 'strerror', 'not a host name')}",
                "check the name, and the DNS of this machine: getent hosts, nslookup",
            ) from None
        addresses = ", ".join(sorted({str(entry[4][0]) for entry in resolved}))
        results.append(addresses if addresses == host else f"{host} is {addresses}")
    return "; ".join(results)


def _tcp(context: DoctorContext) -> str:
    """Connect to each address of the URL; one that answers is enough."""
    addresses = context.known.addresses
    # The client needs one address to start with; it learns the others from the cluster map.
    problems = {address: _connection_problem(address, context.known) for address in addresses}
    failed = "; ".join(filter(None, problems.values()))
    reached = [str(address) for address, problem in problems.items() if not problem]
    if not reached:
        raise CheckFailed(
            failed, "check that the data service runs there, the port (11210, or 11207 for TLS), and firewalls"
        )
    return ", ".join(reached) + (f"; {failed}" if failed else "")


def _connection_problem(address: HostPort, target: Target) -> str:
    """Return why a connection to an address fails; empty text if it succeeds."""
    try:
        connect(*address, _timeout(target), None).close()
    except TransportError as error:
        return str(error)
    return ""


def _tls(context: DoctorContext) -> str:
    """Do a TLS handshake with the first address that allows one."""
    target = context.known
    if not target.tls:
        return "off: SCRAM protects the password, but documents are not encrypted; use couchbases:// for TLS"
    problems = []
    for address in target.addresses:
        try:
            with connect(*address, _timeout(target), tls_settings(_options(target)).context()) as sock:
                assert isinstance(sock, TlsSocket)
                cipher = sock.cipher()
                return f"{sock.version()} {cipher[0] if cipher else ''} with {address}"
        except TransportError as error:
            problems.append(str(error))
    raise CheckFailed(
        problems[0],
        "use the port for TLS (11207), a host name of the certificate, and its authority as ?ca_cert_path=FILE",
    )


def _authentication(context: DoctorContext) -> str:
    """Authenticate and select the bucket: both are part of the first connection."""
    try:
        # Streams that stand still are to be known before the time of their step is over.
        context.client = client = dcp.connect(context.url, stats_interval=context.timeout / 10)
    except AuthenticationError as error:
        remedy = "check the user name and password, and that the user exists in this cluster"
        if not context.known.username:
            remedy = "pass --username, or set DCP_USERNAME and DCP_PASSWORD"
        elif error.status is None:
            remedy = (
                "use couchbases://, or add ?sasl_mech_force=PLAIN to the URL if the network is trusted: it sends the "
                "password unencrypted. Servers before 5.0 offer only CRAM-MD5 and PLAIN"
            )
        raise CheckFailed(error, remedy) from None
    except ServerError as error:
        raise CheckFailed(error, "check the name of the bucket, and that the user has a role on it") from None
    except RemoteProtocolError as error:
        raise CheckFailed(error, "check that the port is one of the data service, and not of a proxy") from None
    except TransportError as error:
        raise CheckFailed(
            error, "check that the port is one of the data service; couchbases:// needs another one"
        ) from None
    with client.open_command_connection(client.map.nodes[0]) as caller:
        mechanism = caller.agreement.mechanism
    user = f"{context.known.username} with {mechanism}" if mechanism else "none: the URL has no user"
    return f"{user}; bucket {client.map.name} is open"


def _map(context: DoctorContext) -> str:
    """Check that every vbucket has an active node."""
    found = context.connected.map
    # A vbucket without an owner is not an error for the client, which waits for one.
    orphans = [vbucket for vbucket in range(found.num_vbuckets) if found.owner(vbucket) is None]
    if orphans:
        raise CheckFailed(
            f"{counted(len(orphans), 'vbucket')} of {found.num_vbuckets} have no active node: "
            f"{format_vbuckets(orphans)}",
            "fail over or recover the node that had them; until then their changes are not delivered",
        )
    return (
        f"{counted(found.num_vbuckets, 'vbucket')} on {counted(len(found.nodes), 'node')}, "
        f"{counted(found.num_replicas, 'replica')}, revision {found.epoch}.{found.revision}"
    )


def _addresses(context: DoctorContext) -> str:
    """Report which of the nodes' addresses are used."""
    nodes = context.connected.map.nodes
    others = [f"{node} (external: {node.external})" for node in nodes if node.external not in (None, node.address)]
    outside = [str(node) for node in nodes if node.external == node.address]
    if outside:
        return f"external: {', '.join(outside)}"
    return f"default: {', '.join(others or map(str, nodes))}"


def _nodes(context: DoctorContext) -> str:
    """Connect to every node."""
    client = context.connected
    problems = []
    for node in client.map.nodes:
        context.waits_for = str(node)
        try:
            client.open_command_connection(node).close()
        except DcpError as error:
            problems.append(str(error))
    if problems:
        raise CheckFailed(
            "; ".join(problems),
            "open the ports of every node; from outside its network, set alternate addresses and use ?network=external",
        )
    return f"all {len(client.map.nodes)} answer"


def _privileges(context: DoctorContext) -> str:
    """Open a DCP connection to every node."""
    client = context.connected
    for node in client.map.nodes:
        context.waits_for = str(node)
        try:
            with client.open_command_connection(node, stream=True) as caller:
                context.agreements[str(node)] = caller.agreement
        except ServerError as error:
            if error.status != Status.EACCESS:
                raise
            raise CheckFailed(
                error, f"give {context.known.username} the role data_dcp_reader on {client.map.name}"
            ) from None
    context.waits_for = ""
    _check_bucket_read(client, context.known.username)
    return "the user may open DCP on every node"


def _check_bucket_read(client: Client, user: str) -> None:
    """Check that the user may read the whole bucket. If not, find the collections that it may read."""
    try:
        client.high_seqnos()
    except ServerError as error:
        if error.status != Status.EACCESS:
            raise
    else:
        return
    readable = []
    for number, name in client.collections().items():
        try:
            client.high_seqnos(number)
            readable.append(name)
        except ServerError as error:
            # A collection on which the user has no privilege at all is unknown to it.
            if error.status not in (Status.EACCESS, Status.UNKNOWN_COLLECTION):
                raise
    grant = f"grant {user} the role data_dcp_reader on {client.map.name}"
    works = f"; or read single collections, which works: --collection {' --collection '.join(readable)}"
    raise CheckFailed(
        f"the user may open DCP on every node, but read no seqnos and no changes of the whole bucket (status 0x24); "
        f"readable collections: {', '.join(readable) or 'none'}",
        grant + (works if readable else ""),
    )


def _features(context: DoctorContext) -> str:
    """List the features that all nodes agreed to."""
    features = set.intersection(*(set(found.features) for found in context.agreements.values()))
    names = {int(feature): feature.name.lower() for feature in Feature}
    return (
        ", ".join(sorted(names.get(code, f"0x{code:x}") for code in features)) or "none: the server is older than 4.0"
    )


def _control(context: DoctorContext) -> str:
    """Check that every node accepts noops and flow control."""
    # dcp_buffer_size=0 turns flow control off, so its absence is no failure.
    unwanted = {"connection_buffer_size"} if context.known.options.get("dcp_buffer_size") == 0 else set()
    for node, found in context.agreements.items():
        missing = [title for name, title in _CONTROLS.items() if name not in found.controls | unwanted]
        if missing:
            raise CheckFailed(
                f"{node}: refuses {' and '.join(missing)}", "upgrade the server; without them a stream may stall"
            )
    accepted = [title for name, title in _CONTROLS.items() if name not in unwanted]
    return f"every node accepts {' and '.join(accepted)}"


def _streams(context: DoctorContext) -> str:
    """Read the last changes of some vbuckets."""
    client = context.connected
    chosen = dict([(vbucket, high) for vbucket, high in client.high_seqnos().items() if high][:_SAMPLE])
    if not chosen:
        return "no changes to read"
    # The uuid of the present history, since without it the node would order a rollback to 0.
    logs = client.failover_logs(chosen)
    for depth in _DEPTHS:
        # Positions shortly before the last change, so that each stream delivers a few.
        starts = {vbucket: high - depth for vbucket, high in chosen.items() if vbucket in logs and high > depth}
        before = [StreamPosition(vbucket, logs[vbucket].newest.vbuuid, at, at, at) for vbucket, at in starts.items()]
        with client.stream(Checkpoint(tuple(before)), "now", vbuckets=chosen, columns=["event", "cas"]) as stream:
            for batch in stream:
                context.newest_cas = max([context.newest_cas or 0, *batch.to_arrow().column("cas").to_pylist()])
        if context.newest_cas is not None:
            break
    return f"{counted(len(chosen), 'vbucket')} read to the end"


def _clock(context: DoctorContext) -> str:
    """Compare the newest CAS with the clock."""
    newest = context.newest_cas
    return (
        "no document among the changes that were read: nothing to compare with"
        if newest is None
        else judge_clock(newest, time.time())
    )


def judge_clock(newest: int, now: float) -> str:
    """Describe the newest CAS, in ns since 1970. Raises CheckFailed if it is too far ahead of `now`, in s since 1970.

    A node never gives a change a lower CAS than the one before: while the newest is ahead of its clock, it only counts.
    """
    ahead = newest / _NANO - now
    when = _moment(newest)
    if ahead > _MAX_AHEAD:
        raise CheckFailed(
            f"the newest CAS is {ahead:,.0f} s in the future ({when})",
            "correct the clocks of all nodes, of clusters that replicate into this one, and of this machine (NTP)",
        )
    return f"the newest change is from {when}"


def _moment(cas: int) -> str:
    """Return the time of a CAS as text; the number itself if it is beyond the calendar."""
    try:
        return datetime.fromtimestamp(cas // _NANO, timezone.utc).isoformat(sep=" ")
    except (OverflowError, ValueError, OSError):
        return f"CAS {cas}"


def _timeout(target: Target) -> float:
    """Return the seconds that a connection may take."""
    return _options(target).kv_connect_timeout


def _options(target: Target) -> ConnectionOptions:
    """Return the connection options of a URL."""
    return ConnectionOptions.of(target.options, {}, tls=target.tls)


_STEPS: dict[str, Callable[[DoctorContext], str]] = {
    "url": _url,
    "dns": _dns,
    "tcp": _tcp,
    "tls": _tls,
    "user, bucket": _authentication,
    "cluster map": _map,
    "addresses": _addresses,
    "nodes": _nodes,
    "privileges": _privileges,
    "features": _features,
    "control": _control,
    "streams": _streams,
    "clock": _clock,
}
