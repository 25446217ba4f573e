"""`dcp serve`: runs an embedded cluster on local sockets."""

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

from dcp.cli.arguments import SIZE_OR_ZERO, WrongValue
from dcp.embedded import Cluster, FaultHandle
from dcp.embedded.faults import describe_faults
from dcp.embedded.server import Traffic
from dcp.errors import UsageError
from dcp.wire import DIALECTS

# Seconds between two readings of the counters.
_INTERVAL = 1.0
_UNITS = ("B", "kB", "MB", "GB")
_FILE = click.Path(exists=True, dir_okay=False)
# Options that turn TLS on.
_TLS_OPTIONS = ("tls", "certificate", "key", "client_ca")


class _FaultArgument(NamedTuple):
    """Name and options of a fault, as text."""

    name: str
    options: dict[str, object]


def _parse_faults(ctx: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> list[_FaultArgument]:
    """Return the values of --fault: NAME or NAME:key=value:key=value. The cluster checks names and values."""
    found = []
    for text in texts:
        name, *pairs = text.split(":")
        options: dict[str, object] = {}
        for pair in pairs:
            key, equals, value = pair.partition("=")
            if not equals:
                raise click.BadParameter(f"expected NAME:key=value, found {text!r}", ctx, option)
            options[key] = value
        found.append(_FaultArgument(name, options))
    return found


def _list_faults(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:
    """Print all faults and exit, if --list-faults is given."""
    if wanted:
        click.echo(describe_faults())
        ctx.exit()


@click.command()
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="Number of nodes, up to 8.")
@click.option("--vbuckets", type=click.IntRange(1), default=64, show_default=True, help="Number of vbuckets.")
@click.option(
    "--replicas",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Replicas of each vbucket, fewer than nodes.",
)
@click.option("--bucket", default="default", show_default=True, help="Name of the bucket.")
@click.option("--server-version", default="8.0", show_default=True, help="Server release to emulate, such as 7.2.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port of the first node; the others use the next ones. After them follow those for TLS, for management, for "
    "management with TLS, and one for the page.  [default: free ones]",
)
@click.option(
    "--username",
    envvar="DCP_USERNAME",
    default="dcp",
    show_default=True,
    help="User that clients log in as, also from the environment variable DCP_USERNAME.",
)
@click.option(
    "--password",
    envvar="DCP_PASSWORD",
    help="Password of that user, also from the environment variable DCP_PASSWORD.  [default: random]",
)
@click.option(
    "--dialect",
    type=click.Choice(list(DIALECTS)),
    default="dcp",
    show_default=True,
    help="Protocol generation that the nodes speak.",
)
@click.option("--tls", is_flag=True, help="Open a TLS port for each node as well. The next three options imply it.")
@click.option(
    "--certificate", type=_FILE, help="PEM file with the nodes' certificate; needs --key.  [default: generated]"
)
@click.option("--key", type=_FILE, help="PEM file with the private key of --certificate.")
@click.option(
    "--client-ca", type=_FILE, help="PEM file of an authority. Clients with its certificates need no password."
)
@click.option("--seed", type=int, help="Seed of all random choices.  [default: a random one]")
@click.option("--history", is_flag=True, help="Keep every version of a document, for change history (7.2).")
@click.option("--load", type=click.IntRange(0), default=0, metavar="N", help="Write N documents first.")
@click.option(
    "--value-size",
    type=SIZE_OR_ZERO,
    default=100,
    show_default=True,
    metavar="SIZE",
    help="Size of each, such as 100 or 4k.",
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    callback=_parse_faults,
    metavar="NAME[:KEY=VALUE]...",
    help="Inject a fault, with options; repeatable. --list-faults has the names.",
)
@click.option(
    "--list-faults",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_faults,
    help="List all faults with their options, and exit.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
def serve(load: int, value_size: int, faults: list[_FaultArgument], as_json: bool, **options: Any) -> None:
    """Run an embedded cluster until Ctrl-C. Print its URLs, and counters of connections, streams and bytes.

    It keeps all documents in memory, and speaks the real protocol to any client. Open its page in a browser to watch
    it, fail nodes over and start faults; programs do the same with requests to its control URL.

    \b
    Example:
      dcp serve --nodes 3 --replicas 1 --load 100000
      dcp serve --fault rollback:to=300,100 --fault slow:rate=50000:node=0
      dcp serve --tls --username me --password secret
    """
    options["tls"] = tls = any(options[name] for name in _TLS_OPTIONS)
    console = Console(stderr=True, highlight=False, markup=False)
    if not _is_loopback(options["host"]):
        console.print(
            f"warning: {options['host']} is no loopback address: other machines can connect and try passwords, "
            "and connections are not encrypted unless the client uses TLS",
            style="bold yellow",
        )
    # Before the cluster starts, so that a signal during the load is not lost.
    stopped = _stopped_by_signals()
    with Cluster(**options) as cluster:
        cluster.load(load, value_size=value_size)
        # After the load, which faults must not disturb.
        handles = [_start(cluster, fault) for fault in faults]
        _greet(cluster, load, tls=tls, as_json=as_json)
        show = _show_json if as_json else _show_live if sys.stdout.isatty() else _show_lines
        show(cluster, stopped)
        for handle in handles:
            click.echo(f"{handle.name}: {handle.hits} hits", err=True)


def _start(cluster: Cluster, fault: _FaultArgument) -> FaultHandle:
    """Start a fault of the command line. Raises WrongValue if its name or an option is wrong."""
    try:
        return cluster.fault(fault.name, **fault.options)
    except UsageError as error:
        # It begins with "fault".
        raise WrongValue(f"--{error}") from None


def _is_loopback(host: str) -> bool:
    """True if only this machine can reach an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _stopped_by_signals() -> threading.Event:
    """Return an event that SIGINT and SIGTERM set."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    return stopped


def _greet(cluster: Cluster, documents: int, *, tls: bool, as_json: bool) -> None:
    """Print what a client needs to connect."""
    # The password is random by default and printed nowhere else, so the user has to see it here.
    user = cluster.credentials
    secure: dict[str, str] = {}
    if tls:
        secure = {"tls_url": cluster.tls_url, "tls_management_url": cluster.tls_management_url}
        secure |= {"ca_file": cluster.ca_file}
    if as_json:
        urls = {"url": cluster.url, "management_url": cluster.management_url, **secure}
        urls |= {"page_url": cluster.page_url, "control_url": cluster.control_url}
        login = {"username": user.username, "password": user.password}
        _print_json({**urls, "addresses": cluster.addresses, **login, "documents": documents})
        return
    click.echo(f"url        {cluster.url}")
    if secure:
        click.echo(f"with TLS   {cluster.tls_url}?ca_cert_path={quote(cluster.ca_file, safe='/')}")
    click.echo(f"management {cluster.management_url}")
    if secure:
        click.echo(f"with TLS   {cluster.tls_management_url}")
    click.echo(f"page       {cluster.page_url}")
    click.echo(f"control    {cluster.control_url}")
    click.echo(f"nodes      {', '.join(cluster.addresses)}")
    click.echo(f"user       {user.username}")
    click.echo(f"password   {user.password}")
    click.echo(f"documents  {documents:,}\n")
    sys.stdout.flush()


# The counters.

Stats = dict[int, Traffic]


def _watch(cluster: Cluster, stopped: threading.Event, show: Callable[[Stats, Stats], None]) -> None:
    """Call `show` with the present and the last counters, once each interval, until the end."""
    before: Stats = {}
    while not stopped.wait(_INTERVAL):
        now = cluster.stats()
        show(now, before)
        before = now


def _show_live(cluster: Cluster, stopped: threading.Event) -> None:
    """Show a table that is updated in place."""
    zero = cluster.stats()
    with Live(_table(zero, zero), auto_refresh=False) as live:
        _watch(cluster, stopped, lambda now, before: live.update(_table(now, before), refresh=True))


def _show_lines(cluster: Cluster, stopped: threading.Event) -> None:
    """Print a line for every node whose counters changed."""

    def show(now: Stats, before: Stats) -> None:
        for number, traffic in now.items():
            if traffic != before.get(number, Traffic()):
                click.echo(f"node {number}: " + ", ".join(f"{count} {name}" for name, count in _named(traffic)))
                sys.stdout.flush()

    _watch(cluster, stopped, show)


def _show_json(cluster: Cluster, stopped: threading.Event) -> None:
    """Print all counters as JSON when any of them changed."""

    def show(now: Stats, before: Stats) -> None:
        if now != before:
            _print_json({"nodes": {number: traffic._asdict() for number, traffic in now.items()}})

    _watch(cluster, stopped, show)


def _print_json(found: dict[str, object]) -> None:
    """Print an object on a line."""
    click.echo(json.dumps(found))
    # A program that reads from a pipe waits for this line.
    sys.stdout.flush()


def _named(traffic: Traffic) -> list[tuple[str, int]]:
    """Return each counter with its title."""
    return [(name.replace("_", " "), count) for name, count in traffic._asdict().items()]


def _table(now: Stats, before: Stats) -> Table:
    """Return a table of counters and rates."""
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
    """Return a number of bytes with a unit, in powers of 1000."""
    for unit in _UNITS[:-1]:
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} {_UNITS[-1]}"
