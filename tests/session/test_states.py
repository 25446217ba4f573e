"""Tables of states: they are complete, and docs/session.md shows their diagrams."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcp.errors import RemoteProtocolError
from dcp.session.states import OVER, READY, SESSION, STREAM, TAP, UPR, Table, follow, mermaid

PAGE = Path(__file__).parents[2] / "docs" / "session.md"
TABLES = {"SESSION": SESSION, "STREAM": STREAM, "UPR": UPR, "TAP": TAP}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_state_is_reached_and_only_ends_are_ends(table: Table) -> None:
    reached, todo = set(), [next(iter(table))]
    while todo:
        state = todo.pop()
        if state not in reached:
            reached.add(state)
            todo += table[state].values()
    assert reached == set(table)
    assert [state for state, possible in table.items() if not possible] in ([READY], [OVER])


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_what_cannot_happen_is_refused_and_says_what_can(table: Table) -> None:
    events = {event for possible in table.values() for event in possible}
    for state, possible in table.items():
        for event in events:
            if event in possible:
                assert follow(table, state, event, "it") in table
                continue
            with pytest.raises(RemoteProtocolError) as caught:
                follow(table, state, event, "it")
            assert str(caught.value).startswith(f"it, {state}: expected {', '.join(possible) or 'nothing'}, found")


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_the_page_shows_the_table(table: Table) -> None:
    assert f"```mermaid\n{mermaid(table)}\n```" in PAGE.read_text("utf-8")
