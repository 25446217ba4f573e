"""Whatever legal producers do, the consumer ends up with their documents, and each row is as it was written."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.chaos.running import failures, play_all

FIRST = int(os.environ.get("CHAOS_SEED", "0"))
COUNT = int(os.environ.get("MODEL_COUNT", "200"))
# Without these events the schedules would prove little.
EVENTS = ("write_some", "persist", "read", "cut", "end_stream", "move", "fail_over", "restart", "rollback rows")


def test_no_change_is_lost_altered_or_delivered_twice() -> None:
    outcomes = list(play_all("model", range(FIRST, FIRST + COUNT)))
    if failed := failures("model", outcomes):
        pytest.fail(failed)
    done = sum((outcome.done for outcome in outcomes), Counter[str]())
    assert [name for name in EVENTS if not done[name]] == []
