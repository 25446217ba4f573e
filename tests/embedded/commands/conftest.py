"""What the commands are put to."""

from __future__ import annotations

import pytest

from tests.embedded.raw_client import CommandClient


@pytest.fixture
def client() -> CommandClient:
    made = CommandClient()
    made.hello()
    return made
