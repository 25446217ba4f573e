"""`dcp serve`: a cluster in memory for any client, until it is told to stop."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import quote

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from dcp.embedded import Cluster
from dcp.embedded.faults import describe_faults
from dcp.embedded.server import Traffic
from dcp.wire import DIALECTS

# How often the counters are looked at.
_INTERVAL = 1.0
_UNITS = ("B", "kB", "MB", "GB")
_FILE = click.Path(exists=True, dir_okay=False)
_WITH_TLS = ("tls", "certificate", "key", "client_ca")


class _Fault(NamedTuple):
    """A fault as the command line says it."""

    name: str
    options: dict[str, object]


def _fault(ctx: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> list[_Fault]:
    """From NAME or NAME:key=value:key=value."""
    found = []
    for text in texts:
        name, *pairs = text.split(":")
        options: dict[str, object] = {}
        for pair in pairs:
            key, equals, value = pair.partition("=")
            if not equals:
                raise click.BadParameter(f"expected NAME:key=value, found {text!r}", ctx, option)
            options[key] = value
        found.append(_Fault(name, options))
    return found


def _list_faults(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(describe_faults())
        ctx.exit()


@click.command()
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True)
@click.option("--vbuckets", type=click.IntRange(1), default=64, show_default=True)
@click.option("--replicas", type=click.IntRange(0), default=0, show_default=True)
@click.option("--bucket", default="default", show_default=True)
@click.option("--server-version", default="8.0", show_default=True, help="The release whose features it shows.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The first node's; others have the next ones.")
@click.option("--username", default="dcp", show_default=True)
@click.option("--password", envvar="DCP_PASSWORD", help="Random unless given, here or as DCP_PASSWORD.")
@click.option(
    "--dialect", type=click.Choice(list(DIALECTS)), default="dcp", show_default=True, help="What nodes speak."
)
@click.option("--tls", is_flag=True, help="A second door for each node, with TLS; the next three imply it.")
@click.option("--certificate", type=_FILE, help="PEM file of the nodes, with --key. Made unless given.")
@click.option("--key", type=_FILE, help="PEM file, with --certificate.")
@click.option("--client-ca", type=_FILE, help="PEM file of whose clients need no password.")
@click.option("--seed", type=int, help="Of all that is random.")
@click.option("--history", is_flag=True, help="Keep every version, as change streams show them.")
@click.option("--load", type=click.IntRange(0), default=0, metavar="N", help="Write so many documents first.")
@click.option("--value-size", type=click.IntRange(0), default=100, show_default=True, help="Bytes of each of them.")
@click.option(
    "--fault", "faults", multiple=True, callback=_fault, metavar="NAME[:KEY=VALUE]...", help="Let it go wrong."
)
@click.option(
    "--list-faults",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_faults,
    help="Say what can go wrong.",
)
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line, for programs.")
def serve(load: int, value_size: int, faults: list[_Fault], as_json: bool, **options: Any) -> None:
    """Run a cluster in memory until Ctrl-C, and say where it is and what its clients do.

    \b
    Example:
      dcp serve --nodes 3 --replicas 1 --load 100000
      dcp serve --fault rollback:to=300,100 --fault slow:rate=50000:node=0
      dcp serve --tls --username me --password secret
    """
    options["tls"] = tls = any(options[name] for name in _WITH_TLS)
    console = Console(stderr=True, highlight=False)
    if not _is_loopback(options["host"]):
        console.print(
            f"warning: {options['host']} is no loopback address: whoever reaches it may try the password, "
            "and nothing is encrypted unless the client asks for it",
            style="bold yellow",
        )
    stopped = _stopped_by_signals()
    with Cluster(**options) as cluster:
        cluster.load(load, value_size=value_size)
        handles = [cluster.fault(name, **given) for name, given in faults]
        _greet(cluster, load, tls=tls, as_json=as_json)
        show = _show_json if as_json else _show_live if sys.stdout.isatty() else _show_lines
        show(cluster, stopped)
        for handle in handles:
            click.echo(f"{handle.name}: {handle.hits} hits", err=True)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _stopped_by_signals() -> threading.Event:
    """What is set when the process is asked to end."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    return stopped


def _greet(cluster: Cluster, documents: int, *, tls: bool, as_json: bool) -> None:
    # The password is shown, since whoever started the cluster needs it, and it is in no other place.
    user = cluster.credentials
    secure = {"tls_url": cluster.tls_url, "ca_file": cluster.ca_file} if tls else {}
    if as_json:
        said = {"url": cluster.url, **secure, "addresses": cluster.addresses, "username": user.username}
        _say_json(said | {"password": user.password, "documents": documents})
        return
    click.echo(f"url        {cluster.url}")
    if secure:
        click.echo(f"with TLS   {cluster.tls_url}?ca_cert_path={quote(cluster.ca_file, safe='/')}")
    click.echo(f"nodes      {', '.join(cluster.addresses)}")
    click.echo(f"user       {user.username}")
    click.echo(f"password   {user.password}")
    click.echo(f"documents  {documents:,}\n")
    sys.stdout.flush()


# The counters.

Stats = dict[int, Traffic]


def _watch(cluster: Cluster, stopped: threading.Event, show: Callable[[Stats, Stats], None]) -> None:
    """Show the counters, with those of the last time, as often as it is time, until the end."""
    before: Stats = {}
    while not stopped.wait(_INTERVAL):
        now = cluster.stats()
        show(now, before)
        before = now


def _show_live(cluster: Cluster, stopped: threading.Event) -> None:
    zero = cluster.stats()
    with Live(_table(zero, zero), auto_refresh=False) as live:
        _watch(cluster, stopped, lambda now, before: live.update(_table(now, before), refresh=True))


def _show_lines(cluster: Cluster, stopped: threading.Event) -> None:
    """A line for every node about which there is something new."""

    def show(now: Stats, before: Stats) -> None:
        for number, traffic in now.items():
            if traffic != before.get(number, Traffic()):
                click.echo(f"node {number}: " + ", ".join(f"{count} {name}" for name, count in _named(traffic)))
                sys.stdout.flush()

    _watch(cluster, stopped, show)


def _show_json(cluster: Cluster, stopped: threading.Event) -> None:
    def show(now: Stats, before: Stats) -> None:
        if now != before:
            _say_json({"nodes": {number: traffic._asdict() for number, traffic in now.items()}})

    _watch(cluster, stopped, show)


def _say_json(said: dict[str, object]) -> None:
    click.echo(json.dumps(said))
    sys.stdout.flush()


def _named(traffic: Traffic) -> list[tuple[str, int]]:
    return [(name.replace("_", " "), count) for name, count in traffic._asdict().items()]


def _table(now: Stats, before: Stats) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("node", "connections", "streams", "items", "items/s", "sent", "sent/s"):
        table.add_column(title, justify="right")
    for number, traffic in now.items():
        last = before.get(number, Traffic())
        items, sent = traffic.items - last.items, traffic.bytes_sent - last.bytes_sent
        counts = (number, traffic.connections, traffic.streams, traffic.items, round(items / _INTERVAL))
        table.add_row(*(f"{count:,}" for count in counts), _size(traffic.bytes_sent), _size(sent / _INTERVAL))
    return table


def _size(count: float) -> str:
    for unit in _UNITS[:-1]:
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} {_UNITS[-1]}"
