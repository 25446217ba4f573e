"""Who a read says it is. A password is in no text, and travels to no executor if it need not."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from dcp.client import connection_string as urls
from dcp.errors import LocalProtocolError

USERNAME, PASSWORD = "DCP_USERNAME", "DCP_PASSWORD"


@dataclass(frozen=True, slots=True)
class Login:
    """What was said of the user. What was not is looked up where a connection is made, on driver and executors:
    the password in `password_file` or the environment variable DCP_PASSWORD, the name in DCP_USERNAME.
    """

    username: str = ""
    password: str = field(default="", repr=False)
    password_file: str = ""

    @property
    def name(self) -> str:
        return self.username or os.environ.get(USERNAME, "")

    def into(self, url: str) -> str:
        """The url of `split` with name and password in it."""
        if not self.name:
            return url
        scheme, _, rest = url.partition("://")
        return f"{scheme}://{quote(self.name, safe='')}:{quote(self._secret(), safe='')}@{rest}"

    def _secret(self) -> str:
        if self.password:
            return self.password
        if not self.password_file:
            if PASSWORD not in os.environ:
                raise LocalProtocolError(
                    f"password: expected one for {self.name!r}, found none: say password or passwordFile, or set "
                    f"{PASSWORD} on the driver and on every executor"
                )
            return os.environ[PASSWORD]
        try:
            return Path(self.password_file).read_text("utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is no UTF-8"
            raise LocalProtocolError(f"passwordFile: cannot read {self.password_file}: {why}") from None


def split(url: str) -> tuple[str, str, str]:
    """A url without credentials, the name, and the password that were in it."""
    target = urls.parse(url)
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}", target.username, target.password
