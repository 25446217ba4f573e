"""The steps from a URL to a stream of changes, each tried by itself."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
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
from dcp.client.transport import connect, lookup_srv
from dcp.cluster_map import format_vbuckets
from dcp.errors import AuthenticationError, DcpError, RemoteProtocolError, ServerError, TransportError
from dcp.position import StreamPosition
from dcp.session.handshake import Agreement
from dcp.wire.memcached import Feature, Status

# Without these a stream cannot be kept, or not be stopped from filling the memory.
_CONTROLS = {"enable_noop": "noop", "connection_buffer_size": "flow control"}
# A server counts a peer's clock as ahead beyond five seconds; clocks of clients are worse.
_AHEAD = 60.0
# Of how many vbuckets the last change is looked at.
_SAMPLE = 64
_NANO = 1_000_000_000


class Check(NamedTuple):
    """A step, what came of it, and, where it failed, what to do."""

    name: str
    says: str
    remedy: str = ""
    ok: bool = True


class Failed(Exception):
    """A step that the next ones cannot do without has failed."""

    def __init__(self, problem: object, remedy: str) -> None:
        super().__init__(str(problem), remedy)
        self.problem, self.remedy = str(problem), remedy


@dataclass
class Patient:
    """What the steps so far found out."""

    url: str
    target: Target | None = None
    client: Client | None = None
    agreements: dict[str, Agreement] = field(default_factory=dict)

    @property
    def known(self) -> Target:
        assert self.target is not None
        return self.target

    @property
    def connected(self) -> Client:
        assert self.client is not None
        return self.client


def checks(patient: Patient) -> Iterator[Check]:
    """Each step in turn; the first one that fails is the last."""
    for name, step in _STEPS.items():
        try:
            yield Check(name, step(patient))
        except Failed as failure:
            yield Check(name, failure.problem, failure.remedy, ok=False)
            return
        except (DcpError, OSError) as error:
            yield Check(name, str(error), "see the message; dcp inspect shows what a capture of it says", ok=False)
            return


# The steps.


def _url(patient: Patient) -> str:
    try:
        patient.target = target = parse(patient.url)
    except DcpError as error:
        raise Failed(error, "write it as couchbase://user:password@host1,host2/bucket?option=value") from None
    return str(target)


def _dns(patient: Patient) -> str:
    target = patient.known
    found = lookup_srv(target.srv, _timeout(target)) if target.srv else ()
    if found:
        patient.target = target = replace(target, addresses=found)
    said = [f"{target.srv} leads to {', '.join(map(str, found))}"] if found else []
    for host in {address.host: None for address in target.addresses}:
        try:
            resolved = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError as error:
            raise Failed(
                f"{host}: {error.strerror}", "check the name, and the DNS of this machine: getent hosts, nslookup"
            ) from None
        addresses = ", ".join(sorted({str(entry[4][0]) for entry in resolved}))
        said.append(addresses if addresses == host else f"{host} is {addresses}")
    return "; ".join(said)


def _tcp(patient: Patient) -> str:
    addresses = patient.known.addresses
    reached = [address for address in addresses if _reachable(address, patient.known)]
    if not reached:
        ports = ", ".join(map(str, addresses))
        raise Failed(
            f"{ports}: nobody answers",
            "check that the data service runs there, the port (11210, or 11207 for TLS), and firewalls",
        )
    refused = [str(address) for address in addresses if address not in reached]
    return ", ".join(map(str, reached)) + (f"; not {', '.join(refused)}" if refused else "")


def _reachable(address: HostPort, target: Target) -> bool:
    try:
        connect(address.host, address.port, _timeout(target), None).close()
    except TransportError:
        return False
    return True


def _tls(patient: Patient) -> str:
    target = patient.known
    if not target.tls:
        return "not asked for: passwords are safe with SCRAM, documents are not; couchbases:// asks for it"
    problems = []
    for address in target.addresses:
        try:
            with connect(*address, _timeout(target), tls_settings(_options(target)).context()) as sock:
                assert isinstance(sock, ssl.SSLSocket)
                cipher = sock.cipher()
                return f"{sock.version()} {cipher[0] if cipher else ''} with {address}"
        except TransportError as error:
            problems.append(str(error))
    raise Failed(
        problems[0],
        "take a port for TLS (11207), a host that the certificate names, and its authority as ?ca_cert_path=FILE",
    )


def _authentication(patient: Patient) -> str:
    """And hello, and the bucket: they come with the first connection."""
    try:
        patient.client = client = dcp.connect(patient.url)
    except AuthenticationError as error:
        remedy = "check the user, the password, and whether the user is of this cluster"
        if error.status is None:
            remedy = "use couchbases://, or sasl_mech_force where the network is safe"
        raise Failed(error, remedy) from None
    except ServerError as error:
        raise Failed(error, "check the name of the bucket, and that the user has a role for it") from None
    except RemoteProtocolError as error:
        raise Failed(error, "check that the port is one of the data service, and not of a proxy") from None
    except TransportError as error:
        raise Failed(error, "check that the port is one of the data service; couchbases:// has another one") from None
    with client.open_command_connection(client.map.nodes[0]) as caller:
        mechanism = caller.agreement.mechanism
    who = f"{patient.known.username} by {mechanism}" if mechanism else "nobody: the url has no user"
    return f"{who}; bucket {client.map.name} is open"


def _map(patient: Patient) -> str:
    found = patient.connected.map
    orphans = [vbucket for vbucket in range(found.num_vbuckets) if found.owner(vbucket) is None]
    if orphans:
        raise Failed(
            f"{counted(len(orphans), 'vbucket')} of {found.num_vbuckets} have no active node: "
            f"{format_vbuckets(orphans)}",
            "fail over or recover the node that had them; until then their changes wait",
        )
    return (
        f"{counted(found.num_vbuckets, 'vbucket')} on {counted(len(found.nodes), 'node')}, "
        f"{counted(found.num_replicas, 'replica')}, revision {found.epoch}.{found.revision}"
    )


def _addresses(patient: Patient) -> str:
    nodes = patient.connected.map.nodes
    others = [f"{node} (outside {node.external})" for node in nodes if node.external not in (None, node.address)]
    outside = [str(node) for node in nodes if node.external == node.address]
    if outside:
        return f"the external ones: {', '.join(outside)}"
    return f"the default ones: {', '.join(others or map(str, nodes))}"


def _nodes(patient: Patient) -> str:
    client = patient.connected
    problems = []
    for node in client.map.nodes:
        try:
            client.open_command_connection(node).close()
        except DcpError as error:
            problems.append(str(error))
    if problems:
        raise Failed(
            "; ".join(problems),
            "open the ports of every node; from outside its network, use ?network=external, and alternate addresses",
        )
    return f"all of {len(client.map.nodes)} answer"


def _privileges(patient: Patient) -> str:
    client = patient.connected
    for node in client.map.nodes:
        try:
            with client.open_command_connection(node, stream=True) as caller:
                patient.agreements[str(node)] = caller.agreement
        except ServerError as error:
            if error.status != Status.EACCESS:
                raise
            raise Failed(
                error, f"give {patient.known.username} the role data_dcp_reader on {client.map.name}"
            ) from None
    return "DCP may be opened on every node"


def _features(patient: Patient) -> str:
    features = set.intersection(*(set(found.features) for found in patient.agreements.values()))
    names = {int(feature): feature.name.lower() for feature in Feature}
    return ", ".join(sorted(names.get(code, f"0x{code:x}") for code in features)) or "none: a server before 4.0"


def _control(patient: Patient) -> str:
    unwanted = {"connection_buffer_size"} if patient.known.options.get("dcp_buffer_size") == 0 else set()
    for node, found in patient.agreements.items():
        missing = [what for name, what in _CONTROLS.items() if name not in found.controls | unwanted]
        if missing:
            raise Failed(f"{node}: refuses {' and '.join(missing)}", "update the server; without, a stream may stall")
    accepted = [what for name, what in _CONTROLS.items() if name not in unwanted]
    return f"every node accepts {' and '.join(accepted)}"


def _clock(patient: Patient) -> str:
    newest = _newest_cas(patient.connected)
    return "no change to look at" if newest is None else judge_clock(newest, time.time())


def judge_clock(newest: int, now: float) -> str:
    """Whether a CAS, which counts nanoseconds since 1970, is too far in the future: new ones stay behind it."""
    ahead = newest / _NANO - now
    when = _moment(newest)
    if ahead > _AHEAD:
        raise Failed(
            f"the newest CAS is {ahead:,.0f} s in the future ({when})",
            "mend the clocks of all nodes and of clusters that replicate into this one, and of this machine (NTP)",
        )
    return f"the newest change is of {when}"


def _moment(cas: int) -> str:
    try:
        return datetime.fromtimestamp(cas // _NANO, timezone.utc).isoformat(sep=" ")
    except (OverflowError, ValueError, OSError):
        return f"CAS {cas}"


def _newest_cas(client: Client) -> int | None:
    """Of the last change of some vbuckets."""
    chosen = dict([(vbucket, high) for vbucket, high in client.high_seqnos().items() if high][:_SAMPLE])
    if not chosen:
        return None
    logs = client.failover_logs(chosen)
    before = [
        StreamPosition(vbucket, logs[vbucket].newest.vbuuid, high - 1, high - 1, high - 1)
        for vbucket, high in chosen.items()
        if vbucket in logs and high > 1
    ]
    newest = None
    with client.stream(Checkpoint(tuple(before)), "now", vbuckets=chosen, columns=["event", "cas"]) as stream:
        for batch in stream:
            newest = max([newest or 0, *batch.to_arrow().column("cas").to_pylist()])
    return newest


def _timeout(target: Target) -> float:
    return _options(target).kv_connect_timeout


def _options(target: Target) -> ConnectionOptions:
    return ConnectionOptions.of(target.options, {}, tls=target.tls)


_STEPS: dict[str, Callable[[Patient], str]] = {
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
    "clock": _clock,
}
