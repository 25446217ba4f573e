"""The command `dcp` and what its subcommands share."""

from __future__ import annotations

from typing import Any

import click

from dcp import __version__
from dcp.cli.inspect import inspect
from dcp.cli.serve import serve
from dcp.errors import DcpError


class _Group(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DcpError as error:
            raise click.ClickException(str(error)) from None


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dcp")
def dcp() -> None:
    """Couchbase's change protocol: look at it, follow it, copy it."""


dcp.add_command(inspect)
dcp.add_command(serve)
