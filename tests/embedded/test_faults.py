"""Every fault on real sockets: its effect on a consumer, its hits, and its end."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

import dcp
from dcp.embedded import Cluster
from dcp.embedded.faults import FAULTS, describe_faults
from dcp.embedded.faults.fault import options_of
from dcp.errors import FrameError, LocalProtocolError
from dcp.wire.body import FAILOVER_LOG
from dcp.wire.dcp import StreamEnd
from dcp.wire.frame import Frame, encode
from dcp.wire.layout import Magic
from dcp.wire.memcached import FEATURES, MAX_FRAME, Feature, Status
from tests.embedded.consumer import ConnectionClosed, Consumer, frames_named, items
from tests.embedded.sockets import Client, request
from tests.waiting import until

COUNT = 20
# The shortest interval that newer releases accept.
NOOPS = {"enable_noop": "true", "set_noop_interval": "0.1"}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Cluster with a few documents in one vbucket."""
    with Cluster(vbuckets=1, seed=5) as cluster:
        for n in range(COUNT):
            cluster.upsert(f"key-{n}", b"x" * 30)
        yield cluster


def everything(cluster: Cluster, window: int = 0) -> list[int]:
    """Return the seqnos of a stream up to now."""
    with Consumer(cluster, controls={"connection_buffer_size": str(window)}) as consumer:
        assert consumer.stream(0, end=COUNT).status == Status.SUCCESS
        return items(consumer.until("stream_end"))


def test_every_fault_has_a_test() -> None:
    tried = {name.removeprefix("test_fault_") for name in globals() if name.startswith("test_fault_")}
    assert tried == set(FAULTS)


# Faults of nodes and of the network.


@pytest.fixture
def pair() -> Iterator[tuple[Cluster, Consumer, Consumer]]:
    """Cluster of two nodes, and a consumer of each. A response of the second one follows a turn of the server."""
    with Cluster(nodes=2, vbuckets=2) as cluster, Consumer(cluster) as one, Consumer(cluster, 1) as other:
        assert one.stream(0).status == other.stream(1).status == Status.SUCCESS
        yield cluster, one, other


def test_fault_pause(pair: tuple[Cluster, Consumer, Consumer]) -> None:
    cluster, one, other = pair
    # A key of the vbucket on the paused node.
    mine = next(key for key in map(str, range(99)) if cluster._bucket.vbucket_of(key.encode()) == 0)
    with cluster.fault("pause", node=0) as fault:
        cluster.upsert(mine, b"")
        one.socket.sendall(encode(Frame("get_failover_log", Magic.REQUEST)))
        assert other.is_quiet()
        assert one.receives_nothing()
        assert fault.hits
    # The stream continues, and the request from before is answered.
    assert {"mutation", "get_failover_log"} <= {frame.name for frame in (next(one.frames()) for _ in range(3))}


def test_fault_partition(pair: tuple[Cluster, Consumer, Consumer]) -> None:
    cluster, one, other = pair
    with cluster.fault("partition", node=0):
        assert other.is_quiet()
        assert one.receives_nothing()
    assert one.remaining() == []
    assert other.is_quiet()
    with Consumer(cluster) as again:
        assert again.stream(0).status == Status.SUCCESS


def test_fault_slow(cluster: Cluster) -> None:
    with cluster.fault("slow", rate=100_000) as fault, Consumer(cluster) as consumer:
        consumer.stream(0, end=COUNT)
        assert items(consumer.until("stream_end")) == list(range(1, COUNT + 1))
        # 50 writes a second at 100,000 bytes a second are 2000 bytes each.
        assert fault.hits >= consumer.received / 2000


@pytest.mark.parametrize("at", [0, 1, 60, 200, 777])
def test_fault_cut(cluster: Cluster, at: int) -> None:
    # The responses before the first snapshot take less than 400 bytes.
    with cluster.fault("cut", sent=400 + at) as fault:
        consumer = Consumer(cluster)
        consumer.stream(0)
        consumer.remaining()
        assert consumer.received == 400 + at
        assert fault.hits == 1
        # By default the fault acts once.
        assert everything(cluster) == list(range(1, COUNT + 1))
    consumer.socket.close()


# Positions after the response to the request.
@pytest.mark.parametrize("at", [77, 300, 777])
def test_a_connection_is_cut_within_its_streams(cluster: Cluster, at: int) -> None:
    with Consumer(cluster) as consumer, cluster.fault("cut", streamed=at) as fault:
        before = consumer.received
        consumer.stream(0)
        consumer.remaining()
        assert consumer.received - before == at
        assert fault.hits == 1


def test_a_client_that_closes_its_connection_is_not_cut(cluster: Cluster) -> None:
    """It has sent more than the fault allows, but nothing since: the next connection is the first that is cut."""
    consumer = Consumer(cluster)
    with cluster.fault("cut", received_bytes=10, times=1) as fault:
        consumer.socket.close()
        until(lambda: not cluster.stats()[0].connections)
        assert fault.hits == 0


def test_a_connection_is_cut_by_what_is_received(cluster: Cluster) -> None:
    with Consumer(cluster) as consumer, cluster.fault("cut", received_bytes=1000, times=1) as fault:
        with pytest.raises(ConnectionClosed):
            [consumer.request("get_failover_log") for _ in range(1000)]
        assert fault.hits == 1


def test_fault_split(cluster: Cluster) -> None:
    with cluster.fault("split") as fault, Consumer(cluster) as consumer:
        consumer.stream(0, end=COUNT)
        assert items(consumer.until("stream_end")) == list(range(1, COUNT + 1))
        assert fault.hits >= consumer.received


def test_fault_garbage(cluster: Cluster) -> None:
    with cluster.fault("garbage") as fault, Consumer(cluster) as consumer:
        with pytest.raises(FrameError):
            consumer.stream(0)
        assert fault.hits == 1


@pytest.mark.parametrize("name", ["garbage", "oversize"])
def test_invalid_frames_are_sent_on_streams_that_fit_into_one_write(cluster: Cluster, name: str) -> None:
    with cluster.fault(name) as fault, Consumer(cluster) as consumer:
        with pytest.raises(FrameError):
            consumer.stream(0, end=COUNT)
        assert fault.hits == 1


def test_fault_oversize(cluster: Cluster) -> None:
    with cluster.fault("oversize") as fault, Consumer(cluster) as consumer:
        with pytest.raises(FrameError, match=str(MAX_FRAME)):
            consumer.stream(0)
        assert fault.hits == 1


# Faults of streams.


@pytest.mark.parametrize("status", ["ETMPFAIL", "ebusy", Status.ENOMEM, 0x07, "0x1234"])
def test_fault_refuse(cluster: Cluster, status: str | int) -> None:
    expected = Status[status.upper()] if isinstance(status, str) and not status[0].isdigit() else status
    if status == "0x1234":
        # Numbers in text are decimal.
        with pytest.raises(LocalProtocolError, match="fault refuse: status: expected a name of Status or a number"):
            cluster.fault("refuse", status=status)
        return
    with Consumer(cluster) as consumer, cluster.fault("refuse", status=status, times=2) as fault:
        assert [consumer.stream(0).status for _ in range(3)] == [expected, expected, Status.SUCCESS]
        assert fault.hits == 2


def test_a_fault_of_some_vbuckets_leaves_the_others_alone() -> None:
    with (
        Cluster(vbuckets=4) as cluster,
        Consumer(cluster) as consumer,
        cluster.fault("refuse", status="NOT_MY_VBUCKET", map=True, vbuckets="1-2"),
    ):
        statuses = [consumer.stream(n).status for n in range(4)]
    assert statuses == [Status.SUCCESS, Status.NOT_MY_VBUCKET, Status.NOT_MY_VBUCKET, Status.SUCCESS]


@pytest.mark.parametrize("command", ["sasl_auth", "select_bucket", "open"])
def test_other_commands_are_refused_too(cluster: Cluster, command: str) -> None:
    with pytest.raises(LocalProtocolError, match="fault refuse: command: expected the name of a command"):
        cluster.fault("refuse", command="no_such")
    with dcp.connect(cluster.url) as client:
        (node,) = client.map.nodes
        with cluster.fault("refuse", command=command, status="ENOMEM", times=1) as fault:
            with pytest.raises(dcp.ServerError) as refused:
                client.open_command_connection(node, stream=True)
            assert (refused.value.step, refused.value.status, refused.value.node) == (command, Status.ENOMEM, str(node))
            client.open_command_connection(node, stream=True).close()
            assert fault.hits == 1


@pytest.mark.parametrize(
    ("defect", "found"),
    [("no_vbuckets", "1 to 65536 vbuckets"), ("no_locator", "nodeLocator"), ("other_bucket", None)],
)
def test_fault_bad_map(cluster: Cluster, defect: str, found: str | None) -> None:
    with cluster.fault("bad_map", defect=defect) as fault:
        if found is None:
            with dcp.connect(cluster.url) as client:
                assert client.map.name != "default"
        else:
            with pytest.raises(dcp.RemoteProtocolError, match=found):
                dcp.connect(cluster.url)
        assert fault.hits
    with pytest.raises(LocalProtocolError, match="fault bad_map: defect: expected no_vbuckets or no_locator"):
        cluster.fault("bad_map", defect="another")


def rolled_back(consumer: Consumer, start: int, vbuuid: int) -> int | None:
    response = consumer.stream(0, start, vbuuid=vbuuid)
    return int(response.fields["rollback_seqno"]) if response.status == Status.ROLLBACK else None


def test_fault_rollback(cluster: Cluster) -> None:
    with Consumer(cluster) as consumer:
        vbuuid = next(iter(FAILOVER_LOG.decode(consumer.request("get_failover_log").value, {})))[0]
        with cluster.fault("rollback", to=(12, 7)) as fault:
            assert [rolled_back(consumer, start, vbuuid) for start in (COUNT, 12, 7)] == [12, 7, None]
            assert fault.hits == 2
        with Consumer(cluster) as another, cluster.fault("rollback", to=0, forever=True):
            assert [rolled_back(another, start, vbuuid) for start in (5, 0, 0, 0)] == [0] * 4


@pytest.mark.parametrize("reason", StreamEnd)
def test_fault_end(cluster: Cluster, reason: StreamEnd) -> None:
    with cluster.fault("end", status=reason.name.lower(), times=1) as fault:
        with Consumer(cluster) as consumer:
            consumer.stream(0)
            end = consumer.until("stream_end")[-1]
            # Consumers without collections do not get the newer reasons.
            assert end.fields["reason"] == (reason if reason <= StreamEnd.ROLLBACK else StreamEnd.OK)
            assert consumer.stream(0).status == Status.SUCCESS
            assert items(consumer.until("", seqno=COUNT))
        assert fault.hits == 1


def test_a_stream_ends_after_some_items(cluster: Cluster) -> None:
    with cluster.fault("end", after=COUNT), Consumer(cluster) as consumer:
        consumer.stream(0)
        assert items(consumer.until("stream_end")) == list(range(1, COUNT + 1))


@pytest.mark.parametrize("after", [1, COUNT // 2, COUNT])
def test_a_stream_that_fits_into_one_write_ends_after_some_items(cluster: Cluster, after: int) -> None:
    with Consumer(cluster) as consumer:
        with cluster.fault("end", status="SLOW", after=after, times=1) as fault:
            consumer.stream(0, end=COUNT)
            *sent, end = consumer.until("stream_end")
            assert items(sent) == list(range(1, after + 1))
            assert end.fields["reason"] == StreamEnd.SLOW
            assert fault.hits == 1
        consumer.stream(0, end=COUNT)
        assert items(consumer.until("stream_end")) == list(range(1, COUNT + 1))


def test_fault_beyond_end(cluster: Cluster) -> None:
    with Consumer(cluster) as consumer:
        consumer.stream(0, end=COUNT + 1)
        consumer.until("", seqno=COUNT)
        with cluster.fault("beyond_end", items=2) as fault:
            with cluster._changing():
                for n in range(5):
                    cluster.upsert(f"new-{n}", b"")
            assert items(consumer.until("stream_end"))[:3] == [COUNT + 1, COUNT + 2, COUNT + 3]
            assert fault.hits == 1


def test_a_stream_goes_beyond_its_end_into_the_snapshot_after_it(cluster: Cluster) -> None:
    """Without the fault, the end of the snapshot that has the end seqno is the end of the stream."""
    with Consumer(cluster, controls={"connection_buffer_size": "200"}) as consumer:
        consumer.stream(0, end=COUNT)
        within = items(consumer.until("", seqno=2))
        assert consumer.is_quiet()
        with cluster.fault("beyond_end", items=2):
            cluster.upsert("new", b"")
            # The window does not hold the rest of the snapshot.
            cluster.fault("overfill", bytes=100_000)
            assert within + items(consumer.until("stream_end")) == list(range(1, COUNT + 2))


def test_fault_silent(cluster: Cluster) -> None:
    with cluster.fault("silent", vbuckets=[0]) as fault, Consumer(cluster) as consumer:
        assert consumer.stream(0, end=COUNT).status == Status.SUCCESS
        assert consumer.is_quiet()
        fault.clear()
        assert items(consumer.until("stream_end")) == list(range(1, COUNT + 1))


def test_fault_overfill(cluster: Cluster) -> None:
    # A window of two or three items.
    with Consumer(cluster, controls={"connection_buffer_size": "200"}) as consumer:
        consumer.stream(0)
        within = items(consumer.until("", seqno=2))
        assert consumer.is_quiet()
        with cluster.fault("overfill", bytes=100_000) as fault:
            cluster.upsert("new", b"")
            seen = items(consumer.until("", seqno=COUNT + 1))
            assert fault.hits > 200
    assert (within + seen)[-1] == COUNT + 1


def test_fault_underfill(cluster: Cluster) -> None:
    with cluster.fault("underfill", bytes=4000) as fault:
        with Consumer(cluster, controls={"connection_buffer_size": "4096"}) as consumer:
            consumer.stream(0)
            assert items(consumer.until("snapshot_marker", "mutation")) in ([], [1])
            first = items(consumer.until("mutation"))
            assert consumer.is_quiet()
            fault.clear()
            assert (first + items(consumer.until("", seqno=COUNT)))[-1] == COUNT
        assert fault.hits == 1


# Faults of frames.


def test_fault_no_noops(cluster: Cluster) -> None:
    with Consumer(cluster, controls=NOOPS) as consumer:
        assert consumer.until("dcp_noop")
    with cluster.fault("no_noops") as fault, Consumer(cluster, controls=NOOPS) as consumer:
        while not fault.hits:
            assert consumer.is_quiet()
        assert consumer.is_quiet()


def test_fault_bare_marker(cluster: Cluster) -> None:
    with cluster.fault("bare_marker") as fault:
        with Consumer(cluster) as consumer:
            consumer.stream(0)
            assert [frame.name for frame in consumer.remaining()] == ["snapshot_marker"]
        assert fault.hits == 1
        assert everything(cluster) == list(range(1, COUNT + 1))


def test_fault_gap(cluster: Cluster) -> None:
    with cluster.fault("gap", items=3, after=2) as fault:
        assert everything(cluster, window=100_000) == [1, 2, *range(6, COUNT + 1)]
        assert fault.hits == 3


def test_fault_missing_tail(cluster: Cluster) -> None:
    with cluster.fault("missing_tail") as fault:
        assert everything(cluster) == list(range(1, COUNT))
        assert fault.hits == 1


def test_fault_repeat_marker(cluster: Cluster) -> None:
    with cluster.fault("repeat_marker", after=4) as fault, Consumer(cluster) as consumer:
        consumer.stream(0, end=COUNT)
        frames = consumer.until("stream_end")
        first, second = frames_named(frames, "snapshot_marker")
        assert first.fields == second.fields
        assert items(frames[: frames.index(second, 1)]) == [1, 2, 3, 4]
        assert items(frames) == list(range(1, COUNT + 1))
        assert fault.hits == 1


@pytest.mark.parametrize("counted", [True, False])
def test_fault_stream_ids(cluster: Cluster, counted: bool) -> None:
    cluster.delete("key-3")
    controls = NOOPS | {"enable_stream_id": "true"}
    with (
        cluster.fault("stream_ids", counted=counted) as fault,
        Consumer(cluster, features=[Feature.XERROR, Feature.COLLECTIONS], controls=controls) as consumer,
    ):
        assert consumer.stream(0, sid=3).status == Status.SUCCESS
        deletion = consumer.until("deletion")[-1]
    assert deletion.stream_id == 3
    assert [info.counted for info in deletion.frame_info] == [counted]
    # Servers do not count it.
    assert fault.hits == counted


def test_fault_downgrade(cluster: Cluster) -> None:
    hello = request("hello", value=FEATURES.encode([Feature.XERROR, Feature.JSON]))
    with Client(cluster) as client:
        with cluster.fault("downgrade", without="XERROR,PLAIN") as fault:
            features, mechanisms = client.exchange(hello, request("sasl_list_mechs"))
            assert (features.body(), fault.hits) == ((Feature.JSON,), 2)
            assert mechanisms.value == b"SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1"
        assert client.exchange(hello)[0].body() == (Feature.XERROR, Feature.JSON)


def test_a_downgrade_refuses_controls_and_flags_as_unknown(cluster: Cluster) -> None:
    with Consumer(cluster) as consumer, cluster.fault("downgrade", without="enable_noop") as fault:
        assert consumer.request("control", key=b"enable_noop", value=b"true").status == Status.EINVAL
        assert consumer.request("control", key=b"set_noop_interval", value=b"1").status == Status.SUCCESS
        assert fault.hits == 1
    with cluster.fault("downgrade", without=["INCLUDE_XATTRS"]) as fault, Consumer(cluster):
        assert fault.hits == 0
    with cluster.fault("downgrade", without=["INCLUDE_DELETE_TIMES"]) as fault, pytest.raises(AssertionError):
        Consumer(cluster)
    assert fault.hits == 1


# The table of faults, and errors of its users.


def test_frames_left_out_do_not_fill_the_window(cluster: Cluster) -> None:
    """Clients cannot acknowledge frames that they did not receive, so these must not count."""
    controls = {"connection_buffer_size": "300"}
    with cluster.fault("gap", items=COUNT - 2, after=1), Consumer(cluster, controls=controls) as consumer:
        consumer.stream(0)
        assert items(consumer.until("", seqno=COUNT)) == [1, COUNT]


def test_the_same_seed_makes_the_same_garbage() -> None:
    seen = []
    for _ in range(2):
        with Cluster(vbuckets=1, seed=3) as cluster, cluster.fault("garbage", size=40):
            fault = cluster._faults.active[0]
            seen.append(fault.random.randbytes(8))
    assert seen[0] == seen[1]


def test_an_unknown_name_or_option_lists_the_known_ones(cluster: Cluster) -> None:
    with pytest.raises(LocalProtocolError, match=r"expected one of pause, .*, downgrade; found 'x'"):
        cluster.fault("x")
    with pytest.raises(LocalProtocolError, match=r"fault gap: expected options among .*items, after, found 'most'"):
        cluster.fault("gap", most=1)
    for name, value in (("items", "-1"), ("items", "x"), ("node", -1), ("vbuckets", "3-x")):
        with pytest.raises(LocalProtocolError, match=f"fault gap: {name}: expected"):
            cluster.fault("gap", **{name: value})


@pytest.mark.parametrize("option", ["node", "vbuckets"])
def test_an_unknown_node_or_vbucket_is_refused(cluster: Cluster, option: str) -> None:
    with pytest.raises(LocalProtocolError, match=f"fault gap: {option}: expected 0 to 0, found 1"):
        cluster.fault("gap", **{option: 1})
    cluster.fault("gap", **{option: 0})


def test_the_table_describes_every_fault_and_option() -> None:
    text = describe_faults()
    for name, fault in FAULTS.items():
        assert dataclasses.is_dataclass(fault)
        assert f"{name}: " in text
        assert all(f"  {one.name}=" in text for one in options_of(fault))
    # Where there is no default, nothing is shown.
    assert "=None" not in text


def test_a_cleared_fault_has_no_effect(cluster: Cluster) -> None:
    for name in FAULTS:
        cluster.fault(name).clear()
    assert cluster._faults.active == ()
    assert everything(cluster) == list(range(1, COUNT + 1))


def test_a_fault_is_cleared_once(cluster: Cluster) -> None:
    with cluster.fault("partition") as fault:
        fault.clear()
        with Consumer(cluster) as consumer:
            # The network is back already.
            fault.clear()
            assert consumer.stream(0, end=COUNT).status == Status.SUCCESS
            assert items(consumer.until("stream_end")) == list(range(1, COUNT + 1))
    assert [event.text.partition("(")[0] for event in cluster._log.since(0)] == ["fault", "clear_fault"]


def test_a_stream_is_ended_by_one_fault_only(cluster: Cluster) -> None:
    with Consumer(cluster) as consumer, cluster.fault("end") as first, cluster.fault("end") as second:
        consumer.stream(0)
        consumer.until("stream_end")
        assert first.hits + second.hits == 1
