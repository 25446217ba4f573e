"""`dcp doctor`: each step from a URL to a stream, and what to do about the first that fails."""

from __future__ import annotations

import json

import click
from rich.text import Text

from dcp.cli.diagnosis import Check, Patient, checks
from dcp.cli.terminal import console


@click.command()
@click.argument("url")
@click.option("--json", "as_json", is_flag=True, help="An array of the steps.")
def doctor(url: str, as_json: bool) -> None:
    """Check every step from URL to a stream of changes. Exit code 1 if one fails, with what to do.

    \b
    Example:
      dcp doctor couchbase://me:secret@localhost/travel
    """
    patient = Patient(url)
    done: list[Check] = []
    try:
        for check in checks(patient):
            done.append(check)
            if not as_json:
                console().print(_shown(check))
    finally:
        if patient.client is not None:
            patient.client.close()
    if as_json:
        click.echo(json.dumps([check._asdict() for check in done]))
    if not all(check.ok for check in done):
        raise SystemExit(1)


def _shown(check: Check) -> Text:
    shown = Text("✓ " if check.ok else "✗ ", style="green" if check.ok else "bold red")
    shown.append(f"{check.name:<13}", style="bold").append(check.says, style="" if check.ok else "red")
    return shown.append(f"\n  {'what to do':<13}{check.remedy}") if check.remedy else shown
