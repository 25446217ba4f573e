"""Credentials of a Spark read. No text shows a password, and none travels to an executor that has its own source."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from dcp.client.connection_string import parse
from dcp.errors import UsageError

USERNAME, PASSWORD = "DCP_USERNAME", "DCP_PASSWORD"


@dataclass(frozen=True, slots=True)
class SparkCredentials:
    """Credentials: explicit ones first, then a file, then the environment.

    Files and environment variables are read wherever a connection is made: on the driver and on every executor.
    """

    username: str = ""
    password: str = field(default="", repr=False)
    password_file: str = ""

    @property
    def name(self) -> str:
        """Name of the user; empty if none is set anywhere."""
        return self.username or os.environ.get(USERNAME, "")

    def add_to(self, url: str) -> str:
        """Return a URL of `split_url` with these credentials. Raises UsageError if there is no password."""
        if not self.name:
            return url
        scheme, _, rest = url.partition("://")
        return f"{scheme}://{quote(self.name, safe='')}:{quote(self._password(), safe='')}@{rest}"

    def _password(self) -> str:
        if self.password:
            return self.password
        if not self.password_file:
            if PASSWORD not in os.environ:
                raise UsageError(
                    f"password: expected one for {self.name!r}, found none: set the option password or passwordFile, "
                    f"or {PASSWORD} on the driver and on every executor"
                )
            return os.environ[PASSWORD]
        try:
            return Path(self.password_file).read_text("utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
            raise UsageError(f"passwordFile: cannot read {self.password_file}: {reason}") from None


def split_url(url: str) -> tuple[str, str, str]:
    """Return a URL without its credentials, the user name, and the password."""
    target = parse(url)
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}", target.username, target.password
