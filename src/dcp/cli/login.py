"""The argument URL with the options of a login, so that no password has to stand on a command line."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any
from urllib.parse import unquote

import click

from dcp.cli.arguments import LocalPath
from dcp.client.login import PASSWORD, USERNAME, Login, split_url, with_login
from dcp.errors import UsageError

Command = Callable[..., Any]


def url_argument(command: Command) -> Command:
    """Give a command the argument URL, and the options of a login, which become a part of its `url`."""

    @click.argument("url")
    @click.option("--username", help=f"User, if URL has none.  [env: {USERNAME}]")
    @click.option(
        "--password-file",
        type=LocalPath(exists=True, dir_okay=False),
        help=f"File with the user's password. Without it, {PASSWORD} from the environment, or a prompt.",
    )
    @wraps(command)
    def with_url(url: str, username: str | None, password_file: str | None, **options: Any) -> Any:
        return command(url=_with_credentials(url, Login(username or "", "", password_file or "")), **options)

    return with_url


def _with_credentials(url: str, given: Login) -> str:
    """Return the URL with user and password."""
    user, url = _user_without_password(url)
    if user and given.username:
        raise click.UsageError("--username: expected no user in URL beside it")
    if user:
        given = replace(given, username=user)
    try:
        bare, in_url, _ = split_url(url)
    except UsageError:
        # The command itself says what is wrong with it.
        return url
    if in_url and (given.username or given.password_file):
        raise click.UsageError("--username and --password-file: expected no user in URL beside them")
    if in_url or not given.name:
        if given.password_file and not in_url:
            raise click.UsageError(f"--password-file: expected --username or {USERNAME} beside it, found none")
        return url
    password = given.find_password()
    if password is None:
        if not sys.stdin.isatty():
            raise click.UsageError(f"no password for {given.name!r}: set {PASSWORD}, or pass --password-file")
        password = click.prompt(f"Password of {given.name}", hide_input=True, err=True)
    return with_login(bare, given.name, password)


def _user_without_password(url: str) -> tuple[str, str]:
    """Return the user of a URL such as couchbase://me@host, and the URL without it; "" if there is no such user."""
    scheme, colon, rest = url.partition("://")
    authority = re.split("[/?]", rest, maxsplit=1)[0]
    user, at, hosts = authority.rpartition("@")
    # What follows a / or ? with an @ may be a part of a password.
    if not (colon and at and user) or ":" in user or "@" in rest[len(authority) :]:
        return "", url
    return unquote(user), f"{scheme}://{hosts}{rest[len(authority) :]}"
