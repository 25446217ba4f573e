"""Cluster and consumer in one thread, without sockets, with failures of all kinds by a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import dcp
from dcp._codec import LazyPosition
from dcp.embedded import topology
from dcp.embedded.bucket import BucketStore
from dcp.embedded.commands.dcp import HANDLERS
from dcp.embedded.connection import ConnectionState as Features
from dcp.embedded.connection import ServerConnection
from dcp.embedded.manifest import BucketManifest, ManifestStep
from dcp.embedded.release import Release
from dcp.embedded.store import StoredItem
from dcp.position import Progress, StreamPosition
from dcp.session.events import Event, StreamAccepted, StreamEnded, StreamRefused, StreamRolledBack
from dcp.session.handshake import Agreement
from dcp.session.session import Delivery, Session
from dcp.session.stream import ConsumerStream
from dcp.wire.dcp import OpenFlag, StreamEnd
from dcp.wire.dcp_body import StreamFilter
from dcp.wire.frame import Frame, encode
from dcp.wire.layout import Magic
from dcp.wire.memcached import Feature, Status
from tests.session.harness import ready_session

VBUCKETS = 2
KEYS = [b"k%d" % n for n in range(5)]
COLUMNS = ["event", "vbucket", "seqno", "key", "value", "collection_id", "stream_id"]
GENERATIONS = ("4.0", "6.0", "7.0", "7.2", "8.0", "8.5")

Identity = tuple[int, bytes]
Row = tuple[int, Identity, bytes | None]
Key = tuple[int, int | None]


@dataclass
class Follower:
    """Consumer of one stream: the rows it applied and its position, always changed together."""

    chosen: StreamFilter | None
    position: StreamPosition
    applied: list[Row] = field(default_factory=list)
    saved: tuple[tuple[Row, ...], StreamPosition] | None = None
    stream: ConsumerStream | None = None
    disordered: bool = False

    def forget_above(self, seqno: int) -> None:
        self.applied = [row for row in self.applied if row[0] <= seqno]
        self.disordered = False

    def state(self) -> dict[Identity, bytes]:
        state = {identity: value for _, identity, value in sorted(self.applied, key=lambda row: row[0])}
        return {identity: value for identity, value in state.items() if value is not None}


class World:
    """Random schedule of one cluster and its consumer: `play` any number of steps, `catch_up`, then `check`."""

    generations: tuple[str, ...] = GENERATIONS

    def __init__(self, seed: int) -> None:
        self.random = pick = random.Random(seed)
        self.clock = 1_000_000.0
        self.release = Release.of(pick.choice(self.generations))
        self.collections = self.release.number >= (7, 0) and pick.random() < 0.7
        self.bucket = BucketStore(
            "b",
            nodes=2,
            vbuckets=VBUCKETS,
            replicas=1,
            release=self.release,
            clock=lambda: self.clock,
            seed=seed,
            history=self.release.number >= (7, 2) and pick.random() < 0.3,
        )
        for number in range(VBUCKETS):
            if self.bucket.owners[number][0] != 0:
                self.move(number)
        self.bucket.set_replica_lag(pick.choice([0, 1, 3, 8]))
        if self.collections:
            self.manage(*self.bucket.manifest.create_collection("_default", "lasting"))
        self.controls = self._controls()
        self.window = pick.choice([0, 300, 5000])
        self.max_rows = pick.choice([1, 2, 7, 1000])
        self.followers = {
            (vbucket, sid): Follower(chosen, StreamPosition(vbucket))
            for sid, chosen in self._filters()
            for vbucket in range(VBUCKETS)
        }
        # All changes of the current history, in order.
        self.versions: dict[int, list[Row]] = {vbucket: [] for vbucket in range(VBUCKETS)}
        self.talk: ServerConnection | None = None
        self.session: Session | None = None
        self.waiting: list[Delivery] = []
        self.counts: dict[str, int] = {}
        for control in self.controls:
            self.count(control)
        self.count(f"window {self.window}")

    def _filters(self) -> Iterator[tuple[int | None, StreamFilter | None]]:
        lasting = self.bucket.manifest.collection("_default", "lasting").id if self.collections else 0
        some = [StreamFilter(collections=(0,)), StreamFilter(collections=(lasting,)), StreamFilter(scope=0)]
        if "enable_stream_id" in self.controls:
            yield 3, StreamFilter(sid=3, collections=(0,))
            yield 9, StreamFilter(sid=9, collections=(lasting,))
        else:
            yield None, self.random.choice([None, *some]) if self.collections else None

    def _controls(self) -> dict[str, str]:
        wanted = {
            "max_marker_version": "2.2",
            "enable_out_of_order_snapshots": self.random.choice(["true", "true_with_seqno_advanced"]),
            "flatbuffers_system_events": "true",
            "change_streams": "true",
            "enable_stream_id": "true",
            "enable_expiry_opcode": "true",
        }
        chosen = {name: value for name, value in wanted.items() if self.random.random() < 0.5}
        if not self.collections:
            chosen.pop("enable_stream_id", None)
        return {"enable_noop": "true", "send_stream_end_on_client_close_stream": "true"} | chosen

    @property
    def ends_are_told(self) -> bool:
        """True if out-of-order snapshots report their end. Those of 7.0 do not, and may end below the last change."""
        return self.controls.get("enable_out_of_order_snapshots") != "true"

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # ------------------------------------------------------------------ the cluster

    def active(self) -> int:
        return self.bucket.owners[0][0]

    def write(self) -> None:
        ids = list(self.bucket.manifest.collections()) if self.collections else [0]
        key, collection = self.random.choice(KEYS), self.random.choice(ids)
        self.clock += 1
        if self.random.random() < 0.7:
            size = self.random.choice([0, 3, 40])
            value = b"%d." % self.random.getrandbits(32) + b"x" * size
            item: StoredItem | None = self.bucket.store(key, value, collection_id=collection)
        else:
            item = self.bucket.remove(key, collection, event=self.random.choice(["deletion", "expiration"]))
        if item is not None:
            vbucket = self.bucket.vbucket_of(key)
            value_of = item.value if item.alive else None
            self.versions[vbucket].append((item.seqno, (collection, key), value_of))

    def manage(self, manifest: BucketManifest, changes: list[ManifestStep]) -> None:
        """Change collections on all nodes at once: the cluster manager never loses such changes."""
        lag = self.bucket.replica_lag
        self.bucket.set_replica_lag(0)
        self.bucket.change_manifest(manifest, changes)
        self.bucket.set_replica_lag(lag)

    def write_some(self) -> None:
        for _ in range(self.random.randrange(1, 12)):
            self.write()

    def change_collections(self) -> None:
        if not self.collections:
            return
        temporary = [c.name for c in self.bucket.manifest.scope("_default").collections if c.name.startswith("t")]
        if temporary and self.random.random() < 0.5:
            name = self.random.choice(temporary)
            gone = self.bucket.manifest.collection("_default", name).id
            self.manage(*self.bucket.manifest.drop_collection("_default", name))
            for vbucket, rows in self.versions.items():
                self.versions[vbucket] = [row for row in rows if row[1][0] != gone]
        elif len(temporary) < 3:
            name = f"t{self.random.getrandbits(40)}"
            self.manage(*self.bucket.manifest.create_collection("_default", name))

    def fail_over(self) -> None:
        """Promote the replicas, without the changes that they lack."""
        self.hang_up()
        for number in range(VBUCKETS):
            kept = self.move(number)
            self.versions[number] = [row for row in self.versions[number] if row[0] <= kept]

    def move(self, number: int) -> int:
        """Promote a vbucket's replica. Return the seqno up to which it has everything."""
        bucket = self.bucket
        _, new = bucket.owners[number]
        topology.promote(bucket, number, new)
        return bucket.active(number).high_seqno

    def purge(self) -> None:
        """Purge tombstones. Servers end the streams that still need them."""
        lag = self.bucket.replica_lag
        self.bucket.set_replica_lag(0)
        for node in self.bucket.nodes:
            for vbucket in node.vbuckets.values():
                vbucket.purge()
        self.bucket.set_replica_lag(lag)
        self.hang_up()

    def evict_checkpoint(self) -> None:
        for node in self.bucket.nodes:
            for vbucket in node.vbuckets.values():
                vbucket.evict_checkpoint()

    # ------------------------------------------------------------------ the connection

    def connect(self) -> None:
        self.count("connections")
        node = self.bucket.nodes[self.active()]
        new = {Feature.XERROR} if self.release.number >= (5, 0) else set()
        features = {Feature.SNAPPY, Feature.XATTR, *new} | ({Feature.COLLECTIONS} if self.collections else set())
        self.talk = ServerConnection(self.bucket, node, HANDLERS, state=Features(features=frozenset(features)))
        flags = OpenFlag.PRODUCER | (OpenFlag.INCLUDE_DELETE_TIMES if self.release.number >= (5, 5) else 0)
        self._command(Frame("open", Magic.REQUEST, fields={"flags": int(flags)}, key=b"c"))
        settings = self.controls | {"connection_buffer_size": str(self.window)}
        taken = [
            name
            for name, value in settings.items()
            if not self._command(Frame("control", Magic.REQUEST, key=name.encode(), value=value.encode()))
        ]
        if "enable_stream_id" in self.controls:
            assert "enable_stream_id" in taken
        agreement = Agreement(frozenset(features), frozenset(taken), flags, None, self.window, 120.0)
        self.session = ready_session(
            agreement, lambda collections: dcp.Decoder(columns=COLUMNS, collections=collections)
        )

    def _command(self, frame: Frame) -> int:
        assert self.talk is not None
        self.talk.receive(encode(frame), 0.0)
        answer = dcp.decode(b"".join(self.talk.send(0.0)))[-1]
        return answer.status

    def hang_up(self) -> None:
        """Lose the connection. What it delivered is either applied or lost with it."""
        if self.session is None:
            return
        if self.random.random() < 0.5:
            self.waiting.append(self.session.take())
            self.apply(len(self.waiting))
        self.waiting.clear()
        self.session = self.talk = None
        for follower in self.followers.values():
            follower.stream = None

    def open_streams(self) -> None:
        assert self.session is not None
        for follower in self.followers.values():
            if follower.stream is None:
                if follower.disordered:
                    # Out-of-order rows are sent again, except for deletions that were purged meanwhile.
                    follower.forget_above(follower.position.seqno)
                follower.stream = self.session.open(Progress(follower.position), stream_filter=follower.chosen)

    def turn_some(self) -> None:
        for _ in range(self.random.randrange(1, 4)):
            self.turn()

    def cut(self) -> None:
        self.turn(cut=True)

    def lose_the_end_of_a_snapshot(self) -> None:
        """Fail over inside a snapshot: versions that it had replaced are current again, and were never sent."""
        self.write_some()
        self.cut()
        self.fail_over()

    def turn(self, cut: bool = False) -> bool:
        """Exchange bytes in both directions. Return whether there were any.

        cut: lose the last ones, and the connection.
        """
        if self.session is None:
            self.connect()
        assert self.session is not None
        assert self.talk is not None
        self.open_streams()
        sent = self.session.outgoing()
        self.talk.receive(sent, 0.0)
        data = b"".join(self.talk.send(0.0))
        if cut:
            data = data[: self.random.randrange(len(data) + 1)]
        while data and self.session is not None:
            # Single bytes are slow, so only for little data.
            size = self.random.choice([1, 50, len(data)]) if len(data) < 2000 else len(data)
            self.receive(self.session, data[:size])
            data = data[size:]
        if cut:
            self.hang_up()
        return bool(sent or data)

    def receive(self, session: Session, data: bytes) -> None:
        while data:
            with session.buffer() as room:
                count = min(len(room), len(data))
                room[:count] = data[:count]
            data = data[count:]
            events, full = session.received(count, 0.0, self.max_rows, 1 << 20)
            self.happened(events)
            while full:
                self.waiting.append(session.take())
                events, full = session.advance(self.max_rows, 1 << 20)
                self.happened(events)

    def happened(self, events: Sequence[Event]) -> None:
        for event in events:
            assert isinstance(event, StreamAccepted | StreamRolledBack | StreamRefused | StreamEnded)
            self.count(type(event).__name__)
            if isinstance(event, StreamAccepted):
                continue
            assert self.session is not None
            self.waiting.append(self.session.take())
            self.apply(len(self.waiting))
            follower = self.followers[event.stream.key]
            follower.stream = None
            if isinstance(event, StreamRolledBack):
                self.roll_back(follower, event.seqno)
            elif isinstance(event, StreamEnded):
                assert event.reason == StreamEnd.STATE_CHANGED
            else:
                raise AssertionError(f"refused: {Status(event.status).name}")

    def roll_back(self, follower: Follower, seqno: int) -> None:
        # As the client does: before it forgets everything, it asks under the previous history.
        older = follower.position.under_older_uuid() if seqno == 0 else None
        if older is not None:
            follower.position = older
            return
        before = follower.position
        follower.position = before.rolled_back(seqno)
        assert follower.position.seqno <= seqno
        follower.forget_above(follower.position.seqno)

    # ------------------------------------------------------------------ the consumer

    def apply(self, count: int) -> None:
        """Process deliveries: rows and positions together, as in one transaction."""
        todo, self.waiting = self.waiting[:count], self.waiting[count:]
        for delivery in todo:
            for row in delivery.batch.to_arrow().to_pylist():
                follower = self.followers[row["vbucket"], row["stream_id"]]
                identity = (row["collection_id"] or 0, row["key"])
                follower.applied.append((row["seqno"], identity, row["value"] if row["event"] == "mutation" else None))
                self.count("rows")
            for key, mark in delivery.positions.items():
                self.mark(self.followers[key], mark)
            if self.session is not None:
                self.session.processed(delivery.flow_bytes)

    def mark(self, follower: Follower, mark: LazyPosition) -> None:
        follower.position = mark.position
        follower.disordered = mark.progress.disorder is not None
        if follower.disordered:
            self.count("marks in disorder")
        if not follower.disordered:
            # The position of a delivery covers all of its rows.
            assert all(seqno <= follower.position.seqno for seqno, _, _ in follower.applied)
        if follower.position.complete and not follower.disordered and self.ends_are_told:
            self.compare(follower)

    def compare(self, follower: Follower) -> None:
        """Check that at the end of a snapshot the consumer has the vbucket's state at that seqno."""
        number, seqno = follower.position.vbucket, follower.position.seqno
        log = self.bucket.active(number).log
        # In another history than the current one, `versions` is not what the consumer was sent.
        if follower.position.vbuuid != log.newest.vbuuid and seqno:
            return
        alive = self.visible(follower)
        then = {identity: value for at, identity, value in self.versions[number] if at <= seqno}
        truth = {identity: value for identity, value in then.items() if value is not None and identity[0] in alive}
        assert {identity: value for identity, value in follower.state().items() if identity[0] in alive} == truth

    def visible(self, follower: Follower) -> set[int]:
        alive = set(self.bucket.manifest.collections()) if self.collections else {0}
        chosen = follower.chosen
        return alive if chosen is None or chosen.collections is None else alive & set(chosen.collections)

    def crash(self) -> None:
        """Restart the consumer from what it saved."""
        self.session = self.talk = None
        self.waiting.clear()
        for follower in self.followers.values():
            follower.stream = None
            rows, position = follower.saved or ((), StreamPosition(follower.position.vbucket))
            follower.applied, follower.position = list(rows), position

    def save(self) -> None:
        for follower in self.followers.values():
            if not follower.disordered:
                follower.saved = tuple(follower.applied), follower.position

    def apply_some(self) -> None:
        self.apply(self.random.randrange(len(self.waiting) + 1))

    # ------------------------------------------------------------------ all of it

    def play(self) -> None:
        action = self.random.choices(list(ACTIONS), list(ACTIONS.values()))[0]
        self.count(action.__name__)
        action(self)

    def catch_up(self) -> None:
        # Two turns without bytes: acknowledgements of the first could still release more.
        quiet = 0
        for _ in range(10_000):
            busy = self.turn()
            assert self.session is not None
            if self.session.has_updates:
                self.waiting.append(self.session.take())
            busy = busy or bool(self.waiting)
            self.apply(len(self.waiting))
            quiet = 0 if busy else quiet + 1
            if quiet == 2:
                delivery = self.session.take()
                assert not len(delivery.batch)
                self.waiting.append(delivery)
                self.apply(1)
                return
        raise AssertionError("the stream does not come to rest")

    def check(self) -> None:
        for follower in self.followers.values():
            vbucket = self.bucket.active(follower.position.vbucket)
            position = follower.position
            rows = [row for row in self.versions[vbucket.number] if row[1][0] in self.visible(follower)]
            truth = {identity: value for _, identity, value in rows}
            alive = self.visible(follower)
            state = {identity: value for identity, value in follower.state().items() if identity[0] in alive}
            assert state == {identity: value for identity, value in truth.items() if value is not None}
            assert position.complete
            if self.collections and self.ends_are_told:
                assert position.seqno == vbucket.high_seqno
            if self.collections and follower.chosen is None and self.ends_are_told:
                assert position.manifest_uid == self.bucket.manifest.uid


# Actions of a schedule, and their weights.
ACTIONS = {
    World.write_some: 30,
    World.turn_some: 30,
    World.cut: 6,
    World.lose_the_end_of_a_snapshot: 4,
    World.apply_some: 10,
    World.save: 4,
    World.crash: 2,
    World.fail_over: 3,
    World.purge: 2,
    World.evict_checkpoint: 3,
    World.change_collections: 3,
}

STEPS = 60


def play(seed: int) -> World:
    world = World(seed)
    try:
        for _ in range(STEPS):
            world.play()
        world.catch_up()
        world.check()
    except BaseException:
        print(f"seed {seed}")
        raise
    return world
