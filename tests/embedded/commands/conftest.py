"""Fixtures of command tests."""

from __future__ import annotations

import pytest

from tests.embedded.raw_client import CommandClient


@pytest.fixture
def client() -> CommandClient:
    """Client with the usual features."""
    client = CommandClient()
    client.hello()
    return client
