"""INCREMENT and DECREMENT."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.wire.document import Datatype
from dcp.wire.memcached import Status
from tests.embedded.raw_client import KEY, NOW, CommandClient, store, stored_item


def count(client: CommandClient, name: str, delta: int, initial: int = 0, expiry: int = 0, **more: Any) -> Any:
    return client.request(name, key=KEY, fields={"delta": delta, "initial": initial, "expiry": expiry}, **more)


def test_a_counter_is_created_and_stored_as_text(client: CommandClient) -> None:
    assert count(client, "increment", 5, initial=100).fields["number"] == 100
    assert count(client, "increment", 5, initial=100).fields["number"] == 105
    assert count(client, "decrement", 6).fields["number"] == 99
    assert (stored_item(client).value, stored_item(client).datatype) == (b"99", Datatype.JSON)


def test_a_count_changes_neither_flags_nor_expiry(client: CommandClient) -> None:
    count(client, "increment", 1, expiry=NOW + 50)
    assert (stored_item(client).flags, stored_item(client).expiry) == (0, NOW + 50)
    store(client, value=b"1", flags=7, expiry=NOW + 60)
    count(client, "increment", 1, expiry=NOW + 70)
    assert (stored_item(client).flags, stored_item(client).expiry) == (7, NOW + 60)


@given(number=st.integers(0, (1 << 64) - 1), delta=st.integers(0, (1 << 64) - 1))
def test_a_counter_wraps_around_at_the_top_and_stops_at_zero(number: int, delta: int) -> None:
    client = CommandClient()
    client.hello()
    store(client, value=b"%d" % number)
    assert count(client, "increment", delta).fields["number"] == (number + delta) % (1 << 64)
    store(client, value=b"%d" % number)
    assert count(client, "decrement", delta).fields["number"] == max(0, number - delta)


def test_a_counter_is_not_created_if_the_client_forbids_it(client: CommandClient) -> None:
    assert count(client, "increment", 1, expiry=0xFFFFFFFF).status == Status.KEY_ENOENT


@pytest.mark.parametrize("value", [b"", b"x", b"-1", b"1.5", b"18446744073709551616", b"\xb2", b"9" * 5000])
def test_only_a_number_of_64_bits_can_be_counted(client: CommandClient, value: bytes) -> None:
    store(client, value=value)
    assert count(client, "increment", 1).status == Status.DELTA_BADVAL
    assert stored_item(client).value == value
