"""Who a read says it is. A password is in no text, and travels to no executor if it need not."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from dcp.client import url as urls
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

    def into(self, url: str) -> str:
        """The url of `split` with name and password in it."""
        username = self.username or os.environ.get(USERNAME, "")
        if not username:
            return url
        scheme, _, rest = url.partition("://")
        return f"{scheme}://{quote(username, safe='')}:{quote(self._secret(), safe='')}@{rest}"

    def _secret(self) -> str:
        if self.password:
            return self.password
        if not self.password_file:
            return os.environ.get(PASSWORD, "")
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
