"""`dcp doctor`: checks each step from a URL to a stream, and says what to do about the first failure."""

from __future__ import annotations

import json

import click
from rich.text import Text

from dcp.cli.arguments import INTERVAL
from dcp.cli.doctor_checks import CheckResult, DoctorContext, checks
from dcp.cli.login import url_argument
from dcp.cli.terminal import console


@click.command()
@url_argument
@click.option(
    "--timeout",
    type=INTERVAL,
    default="30s",
    show_default=True,
    metavar="DURATION",
    help="Longest time of each step, such as 5s or 1m.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the steps as a JSON array.")
def doctor(url: str, timeout: float, as_json: bool) -> None:
    """Check every step from URL to a stream of changes. If one fails, say what to do; exit code 1.

    The steps are: URL, DNS, TCP, TLS, authentication and bucket, cluster map, addresses, connections to all nodes,
    the privilege to read changes, features, flow control, streams, and clocks.

    \b
    Example:
      dcp doctor couchbase://localhost/travel
    """
    context = DoctorContext(url, timeout)
    done: list[CheckResult] = []
    try:
        for check in checks(context):
            done.append(check)
            if not as_json:
                console().print(_shown(check))
    finally:
        if context.client is not None:
            context.client.close()
    if as_json:
        click.echo(json.dumps([check._asdict() for check in done]))
    if not all(check.ok for check in done):
        raise SystemExit(1)


def _shown(check: CheckResult) -> Text:
    """Return the lines that show a result."""
    shown = Text("✓ " if check.ok else "✗ ", style="green" if check.ok else "bold red")
    shown.append(f"{check.name:<13}", style="bold").append(check.says, style="" if check.ok else "red")
    return shown.append(f"\n  {'what to do':<13}{check.remedy}") if check.remedy else shown
