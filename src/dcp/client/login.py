"""User and password from outside a URL: options, a file, a function, the environment. No text shows a password."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dcp.client.connection_string import parse
from dcp.errors import UsageError

# Environment variables.
USERNAME, PASSWORD = "DCP_USERNAME", "DCP_PASSWORD"


@dataclass(frozen=True, slots=True)
class Login:
    """User and password: explicit ones first, then a file, then the environment; or those that a function returns.

    Files and environment variables are read, and the function is called, wherever a connection is made: with Spark, on
    the driver and on every executor.

    provider: name of the function, as `module:function`.
    """

    username: str = ""
    password: str = field(default="", repr=False)
    password_file: str = ""
    provider: str = ""

    @property
    def name(self) -> str:
        """Name of the user; empty if none is set anywhere."""
        return self.username or os.environ.get(USERNAME, "")

    def add_to(self, url: str, remedy: str) -> str:
        """Return a URL of `split_url` with these credentials.

        Raises UsageError with the remedy if there is a user without a password.
        """
        if self.provider:
            return with_login(url, *_provided(self.provider))
        if not self.name:
            return url
        password = self.find_password()
        if password is None:
            raise UsageError(f"password: expected one for {self.name!r}, found none: {remedy}")
        return with_login(url, self.name, password)

    def find_password(self) -> str | None:
        """Return the password; None if none is set anywhere. Raises UsageError if the file cannot be read."""
        if self.password:
            return self.password
        if not self.password_file:
            return os.environ.get(PASSWORD)
        try:
            password = Path(self.password_file).read_text("utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
            raise UsageError(f"password file: cannot read {self.password_file}: {reason}") from None
        if not password:
            raise UsageError(f"password file: expected a password in {self.password_file}, found an empty file")
        return password


def _provided(name: str) -> tuple[str, str]:
    """Return the user and password that a function returns. Raises UsageError with the reason if it does not."""
    module, _, attribute = name.partition(":")
    try:
        function: Callable[[], Any] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"credential provider: expected the name of a function, as module:function, found {name!r}: {error}; the "
            "module has to be importable on the driver and on every executor"
        ) from None
    found = function()
    if not (isinstance(found, tuple) and len(found) == 2 and all(isinstance(each, str) and each for each in found)):
        raise UsageError(f"credential provider: expected user and password from {name}, found a {type(found).__name__}")
    return found


def split_url(url: str) -> tuple[str, str, str]:
    """Return a URL without its credentials, the user name, and the password."""
    target = parse(url)
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}", target.username, target.password


def with_login(url: str, username: str, password: str) -> str:
    """Return a URL of `split_url` with a user and password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{quote(username, safe='')}:{quote(password, safe='')}@{rest}"
