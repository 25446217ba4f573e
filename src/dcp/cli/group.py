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
        except (Exception, KeyboardInterrupt) as error:
            if _interrupted(error):
                click.echo("\ninterrupted", err=True)
                ctx.exit(INTERRUPTED)
            if advice := _advice(error):
                raise click.ClickException(advice) from None
            raise


def _interrupted(error: BaseException | None) -> bool:
    """Libraries clean up when they are interrupted, and what fails then may be all that they raise, as py4j does."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _advice(error: BaseException) -> str | None:
    """What a user reads instead of a traceback. None is for click, which knows its own errors and a closed pipe."""
    match error:
        case DcpError():
            return str(error)
        case ModuleNotFoundError(name=missing):
            extra = "spark" if missing in ("pyspark", "pandas") else "cli,arrow,embedded"
            return f"this command needs {missing}: pip install 'dcp-arrow[{extra}]'"
        case OSError(errno=number) if number != errno.EPIPE:
            return f"{error.filename or 'system'}: {error.strerror or error}"
    return None


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dcp")
def dcp() -> None:
    """Couchbase's change protocol: look at it, follow it, copy it.

    \b
    A URL is couchbase://user:password@host1,host2/bucket?option=value, and couchbases:// for TLS.
    Exit codes: 0 done, 1 it went wrong, 2 wrong usage, 3 the answer is no (checkpoint diff and verify,
    inspect --check), 130 interrupted.
    """
