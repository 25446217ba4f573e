"""Differences between releases begin and end with the release that the servers' source says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dcp.embedded.release import Release
from dcp.errors import UsageError
from dcp.wire.dcp import OpenFlag, StreamFlag
from dcp.wire.memcached import Status

RELEASES = [
    *("3.0", "3.1", "4.0", "4.1", "4.5", "4.6", "5.0", "5.1", "5.5", "6.0", "6.5", "6.6"),
    *("7.0", "7.1", "7.2", "7.6", "8.0", "8.1", "8.5"),
]
FIRST, LAST = RELEASES[0], RELEASES[-1]
# First and last release that behaves so.
SPANS = {
    "has_users": ("5.0", LAST),
    "has_tokens": ("8.1", LAST),
    "hangs_up_on_misuse": (FIRST, "6.0"),
    "failover_log_for_all": ("4.0", "6.0"),
    "whole_noop_intervals": (FIRST, "7.2"),
    "checks_manifest_uid": ("6.5", "6.6"),
    "sorts_features": ("7.2", LAST),
    "tells_not_locked": ("7.6", LAST),
    "errors_in_words": (FIRST, "3.1"),
    "json_unasked": (FIRST, "3.1"),
    "maps_are_json": ("5.0", LAST),
    "refusals_with_maps_are_json": ("7.0", LAST),
    "tap_forgets_first_checkpoints": (FIRST, "3.1"),
    "stream_id_defect": ("6.5", LAST),
    "no_value_keeps_datatype": (FIRST, "7.6"),
    "backfills_keys_without_metadata": ("7.6", LAST),
    "all_xattrs_of_tombstones": (FIRST, "6.5"),
    "seqno_advanced": ("7.0", LAST),
    "resumes_after_out_of_order": ("7.2", LAST),
    "disk_checkpoints": ("6.5", LAST),
    "tokens_are_of_prepares": (FIRST, "8.1"),
}
CALLED: dict[str, tuple[Callable[[Release], bool], str, str]] = {
    "unknown opcodes are refused with EACCESS": (lambda it: it.unknown_command == Status.EACCESS, "5.0", "6.0"),
    "malformed requests close connections": (lambda it: it.hangs_up_on_malformed(False), "4.0", "6.6"),
    "malformed requests close DCP connections": (lambda it: it.hangs_up_on_malformed(True), "4.0", "6.0"),
    "refused access has its reason in JSON": (lambda it: it.errors_in_json(Status.EACCESS), "5.5", LAST),
    "other errors have their reason in JSON": (lambda it: it.errors_in_json(Status.EINVAL), "6.5", LAST),
    "the purge seqno rolls back": (lambda it: it.rollback.purge, "4.0", LAST),
    "the snapshot start is compared with the purge seqno": (lambda it: it.rollback.purge_window, FIRST, "5.1"),
    "a whole snapshot counts as its end": (lambda it: it.rollback.collapse, "4.0", LAST),
    "versions have build numbers": (lambda it: "-" in it.version, "4.0", LAST),
    "streams may be for the active copy only": (lambda it: StreamFlag.ACTIVE_VB_ONLY in it.stream_flags, "5.0", LAST),
    "streams begin at the latest seqno": (lambda it: StreamFlag.FROM_LATEST in it.stream_flags, "7.2", LAST),
    "notifiers are opened": (lambda it: OpenFlag.NOTIFIER in it.open_flags, FIRST, "6.6"),
    "delete times are sent": (lambda it: OpenFlag.INCLUDE_DELETE_TIMES in it.open_flags, "5.5", LAST),
}


def behaving(answers: dict[str, bool]) -> tuple[str, str]:
    """Return the first and the last release for which something is true; it is so for all between."""
    found = [release for release in RELEASES if answers[release]]
    assert found == RELEASES[RELEASES.index(found[0]) : RELEASES.index(found[-1]) + 1]
    return found[0], found[-1]


@pytest.mark.parametrize("name", SPANS)
def test_a_release_behaves_as_its_source_says(name: str) -> None:
    assert behaving({release: getattr(Release.of(release), name) for release in RELEASES}) == SPANS[name]


def test_every_difference_is_compared() -> None:
    yes_or_no = {name for name in dir(Release) if isinstance(getattr(Release(), name), bool)}
    assert yes_or_no == SPANS.keys()


@pytest.mark.parametrize("what", CALLED)
def test_a_release_does_as_its_source_says(what: str) -> None:
    ask, first, last = CALLED[what]
    assert behaving({release: bool(ask(Release.of(release))) for release in RELEASES}) == (first, last)


@pytest.mark.parametrize("version", ["", "7", "7.x", "x.2", "7.2.x", "2.5", "8.6", "9.0"])
def test_only_known_releases_are_read(version: str) -> None:
    with pytest.raises(UsageError, match="server_version: expected"):
        Release.of(version)
