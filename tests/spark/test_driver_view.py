"""The driver's view of its cluster."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

import dcp
from dcp.checkpoint import Checkpoint
from dcp.embedded import Cluster
from dcp.position import FailoverLog
from dcp.spark.driver_view import DriverView
from dcp.spark.offsets import LoggedPosition, Offset
from dcp.spark.options import Options
from dcp.spark.resume import ObservedVbucket
from dcp.spark.retry import Timing
from tests.spark.ports import at_a_port_of_its_own


def test_a_collection_that_was_dropped_since_is_an_error_or_leaves_the_end_unknown() -> None:
    with Cluster(vbuckets=1) as cluster:
        cluster.create_collection("_default", "x")
        given = {"url": cluster.url, "collections": "x"}
        strict = DriverView(Options.of(given))
        lenient = DriverView(Options.of({**given, "failOnDataLoss": "false"}))
        with closing(strict), closing(lenient):
            states = strict.current(), lenient.current()
            cluster.drop_collection("_default", "x")
            with pytest.raises(dcp.ServerError, match="was dropped, or is not readable for this user"):
                strict.filtered_highs(states[0])
            assert lenient.filtered_highs(states[1]) == {}


def test_a_recreated_bucket_is_not_taken_for_one_whose_collections_were_dropped() -> None:
    cluster, port = at_a_port_of_its_own(vbuckets=1)
    with cluster:
        cluster.create_collection("_default", "x")
        options = Options.of({"url": cluster.url, "collections": "x", "failOnDataLoss": "false"})
        view = DriverView(options)
        password = cluster.credentials.password
        assert view.current().identity.collections
    with closing(view), Cluster(vbuckets=1, port=port, password=password) as recreated:
        # The revision of its map is newer than that of the old bucket.
        recreated.rebalance_in()
        recreated.move(0, 1)
        view.hurry()
        with pytest.raises(dcp.DcpError, match="bucket 'default' was deleted and recreated"):
            view.current()


def test_failover_logs_of_vbuckets_without_changes_are_asked_for_once_in_a_while() -> None:
    with Cluster(vbuckets=4) as cluster, closing(DriverView(Options.of({"url": cluster.url}))) as view:
        cluster.load(20)
        before = view.current()
        with cluster.fault("refuse", command="kv_get_failover_log", status="etmpfail", times=1) as refused:
            view.hurry()
            assert view.current().vbuckets == before.vbuckets
            assert refused.hits == 0
            cluster.upsert("key", b"1")
            view.hurry()
            view.current()
            assert refused.hits == 1


def test_the_pause_before_an_observation_is_as_long_as_allowed_unless_it_is_urgent() -> None:
    with (
        Cluster(vbuckets=1) as cluster,
        closing(DriverView(Options.of({"url": cluster.url}), Timing(interval=0.06))) as view,
    ):
        pauses = []
        for urgent in (False, False, False, True, False):
            if urgent:
                view.hurry()
            view.current()
            pauses.append(view._pause)
        assert pauses == [0.0, 0.05, 0.06, 0.0, 0.05]


@pytest.mark.parametrize(("interval", "asked_again"), [(1e6, False), (-1.0, True)])
def test_purge_seqnos_are_asked_for_once_in_a_while(interval: float, asked_again: bool) -> None:
    with (
        Cluster(vbuckets=1) as cluster,
        closing(DriverView(Options.of({"url": cluster.url}), Timing(interval=interval))) as view,
    ):
        for number in range(3):
            cluster.upsert(f"key {number}", b"1")
        begin, here = (Offset(Checkpoint(), (LoggedPosition(0, seqno, seqno, seqno),)) for seqno in (0, 3))
        assert view.purge_seqnos(here) == {0: 0}
        cluster.delete("key 1")
        cluster.upsert("key 2", b"2")
        cluster.purge()
        assert view.purge_seqnos(here) == {0: 4 if asked_again else 0}
        # A first batch cannot have missed deletions.
        assert view.purge_seqnos(begin) == {}


def test_what_no_copy_confirms_is_not_on_disk() -> None:
    with (
        Cluster(nodes=2, vbuckets=2, replicas=1) as cluster,
        closing(DriverView(Options.of({"url": cluster.url}))) as view,
    ):
        cluster.load(20)
        state = view.current()
        assert view.persisted_seqnos(state, [0]) == {0: state.highs[0]}
        assert view.lagging == {}
        # The copies are of another history.
        high, log = state.vbuckets[0]
        other = replace(state, vbuckets={0: ObservedVbucket(high, FailoverLog.of([(log.newest.vbuuid + 1, 0)]))})
        assert view.persisted_seqnos(other, [0]) == {0: 0}
        assert view.lagging == dict.fromkeys(cluster.addresses, high)
    with Cluster(nodes=2, vbuckets=2) as cluster, closing(DriverView(Options.of({"url": cluster.url}))) as view:
        cluster.load(20)
        state = view.current()
        # It was the only copy.
        lost = next(vbucket for vbucket in (0, 1) if str(view.client.map.owner(vbucket)) == cluster.addresses[0])
        cluster.failover(0)
        view.client.refresh_map()
        assert view.persisted_seqnos(state, [lost]) == {lost: 0}


def test_a_closed_view_has_no_connection_and_connects_again_when_it_is_used() -> None:
    with Cluster(vbuckets=1) as cluster:
        view = DriverView(Options.of({"url": cluster.url}))
        client = view.client
        view.close()
        with pytest.raises(dcp.ClosedError):
            client.high_seqnos()
        with closing(view):
            assert view.client.high_seqnos() == {0: 0}
