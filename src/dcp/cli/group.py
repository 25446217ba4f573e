"""The command `dcp` and what its subcommands share."""

from __future__ import annotations

import errno
from typing import Any

import click

from dcp import __version__
from dcp.cli.bench import bench
from dcp.cli.checkpoint import checkpoint
from dcp.cli.copy import copy
from dcp.cli.count import count
from dcp.cli.demo import demo
from dcp.cli.doctor import doctor
from dcp.cli.inspect import inspect
from dcp.cli.replay import replay
from dcp.cli.serve import serve
from dcp.cli.tail import tail
from dcp.errors import DcpError

# What shells say of a program that SIGINT ended.
INTERRUPTED = 130


class _Group(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DcpError as error:
            raise click.ClickException(str(error)) from None
        except ModuleNotFoundError as missing:
            extra = "spark" if missing.name in ("pyspark", "pandas") else "cli,arrow,embedded"
            raise click.ClickException(f"this command needs {missing.name}: pip install 'dcp-arrow[{extra}]'") from None
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            raise click.ClickException(f"{error.filename or 'system'}: {error.strerror or error}") from None
        except KeyboardInterrupt:
            click.echo("\ninterrupted", err=True)
            ctx.exit(INTERRUPTED)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dcp")
def dcp() -> None:
    """Couchbase's change protocol: look at it, follow it, copy it.

    \b
    A URL is couchbase://user:password@host1,host2/bucket?option=value, and couchbases:// for TLS.
    Exit codes: 0 done, 1 it went wrong, 2 wrong usage, 3 the answer is no (checkpoint diff and verify,
    inspect --check), 130 interrupted.
    """


for command in (bench, checkpoint, copy, count, demo, doctor, inspect, replay, serve, tail):
    dcp.add_command(command)
