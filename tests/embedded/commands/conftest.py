"""What the commands are put to."""

from __future__ import annotations

import pytest

from tests.embedded.talk import Client


@pytest.fixture
def client() -> Client:
    made = Client()
    made.hello()
    return made
