"""The command `dcp`: its subcommands, and how their errors are shown."""

from __future__ import annotations

import errno
from importlib import import_module
from typing import Any

import click

from dcp import __version__
from dcp.cli import INTERRUPTED, raise_at_interrupt
from dcp.cli.arguments import WrongValue
from dcp.errors import DcpError, UsageError

_COMMANDS = (
    *("bench", "checkpoint", "copy", "count", "demo", "doctor", "inspect", "replay", "schema", "serve", "sync"),
    "tail",
)


# Errors of disks that a repeated run may not meet again. What was committed before stays as it is.
_DISK_REMEDIES = {
    errno.ENOSPC: "free some space, and run the command again",
    errno.EDQUOT: "raise the quota or remove files, and run the command again",
    errno.EIO: "check the disk, and run the command again",
    errno.EROFS: "mount the file system writable, or name another directory",
    errno.EACCES: "give this user the right to write there, or name another directory",
}


# Extras that have a library; others are in those of every command.
_EXTRAS = {"pyspark": "spark", "pandas": "spark", "deltalake": "lake", "duckdb": "lake", "pyiceberg": "lake"}

# Key of the arguments of the command line in the meta data of its context.
_ARGUMENTS = "dcp.arguments"


class _LazyGroup(click.Group):
    """Commands that are imported on first use, each from the module of its name, so that `dcp --help` starts fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; None if there is none of this name."""
        # For an unknown name click suggests similar ones, which it looks up among the imported commands.
        for name in (cmd_name,) if cmd_name in _COMMANDS else _COMMANDS:
            if name not in self.commands:
                self.add_command(getattr(import_module(f"dcp.cli.{name}"), name))
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and keep them for errors."""
        ctx.meta[_ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Import a command. From then on Ctrl-C is the command's."""
        found = super().resolve_command(ctx, args)
        raise_at_interrupt()
        return found

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Show an expected error as one line, and an interrupt as such."""
        try:
            return super().invoke(ctx)
        except (Exception, KeyboardInterrupt) as error:
            if _is_interrupt(error):
                click.echo("\ninterrupted", err=True)
                ctx.exit(INTERRUPTED)
            if message := _message(error):
                raise self._about_option(ctx, error, message) or click.ClickException(message) from None
            raise

    def _about_option(self, ctx: click.Context, error: BaseException, message: str) -> WrongValue | None:
        """Return an error that names an option of Python as one about the option of the command; None for others."""
        name, _, rest = message.partition(": ")
        command = self.get_command(ctx, ctx.invoked_subcommand or "")
        if not isinstance(error, UsageError) or command is None:
            return None
        if name == "url":
            return WrongValue(message)
        given = {argument.partition("=")[0] for argument in ctx.meta[_ARGUMENTS]}
        flags = {one.name: one.opts[0] for one in command.params if given & set(one.opts)}
        # Others depend on the cluster, such as names of collections.
        return WrongValue(f"{flags[name]}: {rest}") if name in flags and rest.startswith("expected") else None


def _is_interrupt(error: BaseException | None) -> bool:
    """True if an error is KeyboardInterrupt, or was raised while one was handled.

    Libraries such as py4j clean up when they are interrupted, and then raise only the error of the cleanup.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _message(error: BaseException) -> str | None:
    """Return the line that replaces a traceback; None for errors that click handles, such as its own."""
    match error:
        case DcpError():
            return str(error)
        case ModuleNotFoundError(name=missing):
            extra = _EXTRAS.get((missing or "").partition(".")[0], "cli,arrow,testing")
            return f"this command needs {missing}: pip install 'dcp-arrow[{extra}]'"
        # A closed pipe, as with `dcp tail | head`, is no failure: click ends the process quietly.
        case OSError(errno=number) if number != errno.EPIPE:
            remedy = _DISK_REMEDIES.get(number or 0)
            # The text of an error without a number, such as that of an object store, is its only argument.
            reason = error.strerror or ", ".join(map(str, error.args))
            return f"{error.filename or 'system'}: {reason}{f'; {remedy}' if remedy else ''}"
    return None


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dcp")
def dcp() -> None:
    """Read, copy and debug Couchbase's change protocol (DCP).

    \b
    A URL is couchbase://host1,host2/bucket?option=value; couchbases:// uses TLS. The user comes from --username or
    DCP_USERNAME, the password from --password-file, DCP_PASSWORD or a prompt. Other users of this machine can see a
    user:password@ in the URL.
    Exit codes: 0 success, 1 failure, 2 wrong usage, 3 negative result (checkpoint diff and verify,
    inspect --check), 130 interrupted.
    """
