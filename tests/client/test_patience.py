"""For how long refusals are repeated: the clock is an argument."""

from __future__ import annotations

import pytest

from dcp.client.follow.patience import _BREAK, RefusalPatience
from dcp.errors import ServerError
from dcp.session.refusals import CONFIRMATIONS, OPEN, STREAM_REQUEST, Reaction, reaction
from dcp.wire.memcached import Status

WITHIN = 1000.0
BUSY, UNSURE = (
    next(status for status in Status if reaction(STREAM_REQUEST, status) is wanted)
    for wanted in (Reaction.RETRY, Reaction.CONFIRM)
)


def refusal(status: Status = BUSY) -> ServerError:
    error = ServerError("refused", status)
    error.step = STREAM_REQUEST
    return error


def test_a_doubtful_refusal_to_open_is_final_until_any_node_has_opened_a_connection() -> None:
    error = ServerError("refused", next(status for status in Status if reaction(OPEN, status) is Reaction.CONFIRM))
    error.step = OPEN
    patience = RefusalPatience(WITHIN)
    assert patience.exhausted("node", "node", error, 0) is error
    patience.ready("another")
    assert patience.exhausted("node", "node", error, 0) is None


def test_a_series_of_refusals_ends_the_stream_when_its_time_is_over() -> None:
    patience = RefusalPatience(WITHIN)
    ended = [patience.exhausted(7, "node", refusal(), now) is not None for now in (5, 50, 100)]
    assert ended == [False] * 3
    times = [100 + number * _BREAK for number in range(1, 16)]
    assert [now for now in times if patience.exhausted(7, "node", refusal(), now)] == [
        now for now in times if now >= 5 + WITHIN
    ]


def test_after_a_break_a_new_series_begins() -> None:
    patience = RefusalPatience(WITHIN)
    assert patience.exhausted(7, "node", refusal(), 0) is None
    assert patience.exhausted(7, "node", refusal(), WITHIN + _BREAK) is None
    assert patience.exhausted(7, "node", refusal(), 2 * WITHIN + _BREAK) is None


def test_what_was_accepted_has_all_its_time_again() -> None:
    patience = RefusalPatience(10)
    assert patience.exhausted(7, "node", refusal(), 0) is None
    patience.forget(7)
    assert patience.exhausted(7, "node", refusal(), 15) is None
    assert patience.exhausted(8, "node", refusal(), 20) is None
    assert patience.exhausted(7, "node", refusal(), 25) is not None


def test_a_doubtful_refusal_ends_the_stream_when_it_is_repeated_without_another_between() -> None:
    patience = RefusalPatience(WITHIN)
    one_less = CONFIRMATIONS - 1
    for error in (UNSURE,) * one_less + (BUSY,) + (UNSURE,) * one_less:
        assert patience.exhausted(7, "node", refusal(error), 0) is None
    assert patience.exhausted(7, "node", refusal(UNSURE), 0) is not None


def test_the_log_says_what_ends_a_series(caplog: pytest.LogCaptureFixture) -> None:
    patience = RefusalPatience(WITHIN)
    for number, status in enumerate((BUSY, UNSURE)):
        assert patience.exhausted(number, "node", refusal(status), _BREAK * number) is None
    busy, unsure = (record.getMessage() for record in caplog.records)
    assert busy.endswith("; retrying for up to 1000 s (refusal_timeout)")
    assert unsure.endswith(f"; it ends the stream when it is repeated {CONFIRMATIONS} times")
