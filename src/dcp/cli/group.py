"""The command `dcp` and what its subcommands share."""

from __future__ import annotations

import errno
from importlib import import_module
from typing import Any

import click

from dcp import __version__
from dcp.cli import INTERRUPTED
from dcp.errors import DcpError

_COMMANDS = ("bench", "checkpoint", "copy", "count", "demo", "doctor", "inspect", "replay", "serve", "tail")


class _Group(click.Group):
    """Each command is in a module of its name, which is imported when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        # For a name that is none all are needed, to find those that are like it.
        for name in (cmd_name,) if cmd_name in _COMMANDS else _COMMANDS:
            if name not in self.commands:
                self.add_command(getattr(import_module(f"dcp.cli.{name}"), name))
        return super().get_command(ctx, cmd_name)

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
