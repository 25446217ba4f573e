"""User and password from outside a URL: options, a file, the environment. No text shows a password."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from dcp.client.connection_string import parse
from dcp.errors import UsageError

# Environment variables.
USERNAME, PASSWORD = "DCP_USERNAME", "DCP_PASSWORD"


@dataclass(frozen=True, slots=True)
class Login:
    """User and password: explicit ones first, then a file, then the environment.

    Files and environment variables are read wherever a connection is made: with Spark, on the driver and on every
    executor.
    """

    username: str = ""
    password: str = field(default="", repr=False)
    password_file: str = ""

    @property
    def name(self) -> str:
        """Name of the user; empty if none is set anywhere."""
        return self.username or os.environ.get(USERNAME, "")

    def add_to(self, url: str, remedy: str) -> str:
        """Return a URL of `split_url` with these credentials.

        Raises UsageError with the remedy if there is a user without a password.
        """
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


def split_url(url: str) -> tuple[str, str, str]:
    """Return a URL without its credentials, the user name, and the password."""
    target = parse(url)
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}", target.username, target.password


def with_login(url: str, username: str, password: str) -> str:
    """Return a URL of `split_url` with a user and password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{quote(username, safe='')}:{quote(password, safe='')}@{rest}"
