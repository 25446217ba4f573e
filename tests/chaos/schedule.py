"""A schedule: random steps that change a cluster and its consumer, drawn from a seed."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from random import Random

import dcp
from dcp.embedded import Cluster
from dcp.embedded.faults import FaultHandle
from tests.chaos.fault_options import AT_REQUESTS, BREAKING, FAULT_OPTIONS
from tests.chaos.reader import Reader
from tests.chaos.setting import LASTING, PATH, SCOPE, Setting

KEYS = [f"key{n}" for n in range(8)]
# Steps of a schedule before everything is repaired.
STEPS = 20
# Seconds for which the consumer waits for rows that have to arrive.
TIMEOUT = 30
# Seconds for which it waits for rows that may arrive.
_SHORT_WAIT = 0.1
_MAX_NODES = 5

_End = str | datetime | dcp.Checkpoint | None


class Schedule:
    """One run. The steps of the cluster depend on the seed only, not on the progress of the consumer."""

    def __init__(self, seed: int, log: Callable[[str], None] = lambda line: None) -> None:
        self.seed = seed
        self.setting = Setting.draw(seed)
        self.done: Counter[str] = Counter(self.setting.kinds)
        self.random = Random(f"steps {seed}")
        self._log = log
        # The number of random choices of the consumer depends on timing, so they have a generator of their own.
        self._consumer_random = Random(f"consumer {seed}")
        self._faults: list[FaultHandle] = []
        # True if a fault that has ended has broken the protocol since the consumer connected.
        self._broken = False
        self._down: list[int] = []
        self._written = 0
        # This node never leaves: a client that knows it finds all others.
        self._permanent_node = self.random.randrange(self.setting.cluster["nodes"])
        # True if no step has taken back anything that every copy of a vbucket had.
        self._nothing_taken_back = not self.setting.takes_back
        self._readers: list[Reader] = []

    def run(self) -> Counter[str]:
        self._log(f"{self.setting}")
        with Cluster(**self.setting.cluster) as self.cluster:
            if self.setting.collections:
                self.cluster.create_scope(SCOPE)
                self.cluster.create_collection(SCOPE, LASTING)
            in_order = not self.setting.stream.get("out_of_order")
            self._readers = [Reader(self.cluster, each, in_order=in_order) for each in self.setting.selections]
            self._resume()
            try:
                for _ in range(STEPS):
                    self._step()
                self._settle()
                self._resume_to_the_end()
            finally:
                self.client.close()
        return self.done

    def _step(self) -> None:
        name = self.random.choices(list(STEPS_OF), [weight for weight, _ in STEPS_OF.values()])[0]
        try:
            STEPS_OF[name][1](self)
        except dcp.LocalProtocolError as impossible:
            # The step is not possible now: there is no such node, document or replica.
            self._log(f"{name}: {impossible}")
            return
        self._log(name)
        self.done[name] += 1

    # Consumer.

    def _resume(self, end: _End = None) -> None:
        """Connect, and resume each stream from its last checkpoint, without the rows since then."""
        self._connect([(reader.resume(), end) for reader in self._readers])

    def _connect(self, ranges: Sequence[tuple[dcp.Checkpoint | None, _End]]) -> None:
        """Connect, and begin each stream with its range."""
        self._broken = False
        tls = self.setting.cluster["tls"]
        options = self.setting.options | ({"ca_cert_path": self.cluster.ca_file} if tls else {})
        while True:
            # A process manager would restart the consumer.
            try:
                self.client = dcp.connect(self.cluster.tls_url if tls else self.cluster.url, **options)
            except dcp.TransportError:
                self._clear_faults()
                continue
            try:
                for reader, (start, end) in zip(self._readers, ranges, strict=True):
                    chosen = self.setting.stream | reader.selection.arguments
                    reader.stream = self.client.stream(start or "beginning", end, **chosen)
                return
            except dcp.TransportError:
                self.client.close()
                self._clear_faults()

    def _read(self, reader: Reader, timeout: float) -> bool:
        """Take a batch; return whether there was one."""
        try:
            batch = reader.stream.next(timeout)
        except TimeoutError:
            return False
        except dcp.RemoteProtocolError as error:
            assert self._broken or any(map(_breaks, self._faults)), error
            self._restart()
            return True
        if batch is None:
            return False
        reader.ledger.take(batch)
        assert not (self._nothing_taken_back and reader.ledger.rollbacks), reader.ledger.rollbacks
        self.done["batches"] += 1
        self.done["rows"] += len(batch)
        # Checkpoints are stored after some batches only, so that a restart repeats others.
        if self._consumer_random.random() < 0.5:
            reader.save()
        return True

    def _restart(self) -> None:
        """Restart the consumer."""
        self._close()
        self._resume()

    def _close(self) -> None:
        self.client.close()
        for reader in self._readers:
            counters = reader.stream.counters
            self.done["rollback rows"] += counters.rollbacks
            self.done["reconnects"] += counters.reconnects
            self.done.update({f"stream ends: {name}": count for name, count in counters.stream_ends.items()})

    def _settle(self) -> None:
        """Repair everything; then the consumer has to get all documents."""
        self._repair()
        deadline = time.monotonic() + TIMEOUT
        # The restart of one stream restarts all.
        while behind := [reader for reader in self._readers if not reader.agrees()]:
            assert time.monotonic() < deadline, behind[0].difference()
            assert self._read(behind[0], TIMEOUT), behind[0].difference()

    def _resume_to_the_end(self) -> None:
        """Resume from the last checkpoint up to now: the stream has to get all documents as well, and to end."""
        # Some streams get writes while they run to their end, and another one has to deliver these.
        later = self.random.random() < 0.3
        kind = self.random.choice(("now", "now", "checkpoint", "time"))
        ends = [self._end(kind, reader) for reader in self._readers]
        self._close()
        with contextlib.ExitStack() as stack:
            if kind != "time":
                # A search for a time would be given the items beyond the end.
                fault = stack.enter_context(self.cluster.fault("beyond_end", items=self.random.randrange(1, 4)))
            self._connect([(reader.resume(), end) for reader, end in zip(self._readers, ends, strict=True)])
            self.done[f"end at {kind}"] += 1
            if later:
                self._write()
            for reader in self._readers:
                while self._read(reader, TIMEOUT):
                    pass
            self.done["fault beyond_end"] += kind != "time" and fault.hits > 0
            if later:
                reached = [(reader.stream.checkpoint, None) for reader in self._readers]
                self._close()
                self._connect(reached)
                self._settle()
        for reader in self._readers:
            assert reader.agrees(), reader.difference()
            reader.check_versions()
        self._close()

    def _end(self, kind: str, reader: Reader) -> _End:
        """Return the end of a stream that has to get all documents that there are now."""
        if kind == "time":
            return datetime.now(timezone.utc)
        if kind != "checkpoint":
            return "now"
        while True:
            # The timeouts are so short that a busy machine may exceed them.
            with contextlib.suppress(dcp.TransportError):
                return self.client.positions("now", **reader.selection.arguments)

    # Documents.

    def _path(self) -> str:
        paths = sorted(self.cluster.collection_ids())
        return self.random.choice(paths) if self.random.random() < 0.3 or PATH not in paths else PATH

    def _write(self) -> None:
        for _ in range(self.random.choice((1, 1, 3, 10))):
            self._written += 1
            value = f'{{"n":{self._written},"x":"{"x" * self.random.choice((0, 0, 30, 300))}"}}'
            self.cluster.upsert(self.random.choice(KEYS), value, collection=self._path())

    def _delete(self) -> None:
        self._remove(self.cluster.delete)

    def _expire(self) -> None:
        self._remove(self.cluster.expire)

    def _remove(self, action: Callable[..., int]) -> None:
        path = self._path()
        alive = sorted(self.cluster.truth(path))
        if not alive:
            raise dcp.LocalProtocolError("nothing is there to be removed")
        action(self.random.choice(alive), collection=path)

    def _page(self) -> None:
        """Write a document whose expiry has passed, and run the pager."""
        self.cluster.upsert(self.random.choice(KEYS), '"short"', collection=self._path(), expiry=1)
        self.cluster.run_pager()

    def _change_collections(self) -> None:
        if not self.setting.collections:
            raise dcp.LocalProtocolError("there are no collections")
        name = self.random.choice(("cart", "note"))
        there = f"{SCOPE}.{name}" in self.cluster.collection_ids()
        if there:
            self.cluster.drop_collection(SCOPE, name)
        if not there or self.random.random() < 0.5:
            self.cluster.create_collection(SCOPE, name)
        self.done["collections dropped"] += there

    def _purge(self) -> None:
        self._take_back()
        self.cluster.purge()

    def _stop_persisting(self) -> None:
        """Let a node keep its writes in memory, or persist them again."""
        if "persisted_only" not in self.setting.stream:
            raise dcp.LocalProtocolError("the consumer does not wait for disks")
        self.cluster.set_persistence(self.random.randrange(len(self.cluster.stats())), self.random.random() < 0.3)

    def _take_back(self) -> None:
        """Raise LocalProtocolError if nothing may be taken back that every copy of a vbucket has."""
        if not self.setting.takes_back:
            raise dcp.LocalProtocolError("persisted changes stay")

    def _lag(self) -> None:
        self.cluster.set_lag(self.random.choice((0, 1, 2, 5)))

    # Nodes.

    def _node(self) -> int:
        """Choose a node that may leave."""
        others = [
            node for node in range(len(self.cluster.stats())) if node != self._permanent_node and node not in self._down
        ]
        if not others:
            raise dcp.LocalProtocolError("no node can leave")
        return self.random.choice(others)

    def _has_orphans(self) -> bool:
        """Return whether a vbucket has no owner."""
        return any(self.cluster.owner(f"key{n}") < 0 for n in range(32))

    def _failover(self) -> None:
        node, lose = self._node(), self.random.choice((None, 1, 2, 4))
        if not self.setting.takes_back:
            lose = None
        try:
            self.cluster.failover(node, lose)
            self.done["failover that loses writes"] += lose is not None
        except dcp.LocalProtocolError:
            # The node has fewer writes than that.
            self.cluster.failover(node)
        if self._has_orphans():
            # The last copy is gone: what comes next is a copy that left before, or a new vbucket.
            self._nothing_taken_back = False

    def _crash(self) -> None:
        node = self._node()
        self.cluster.crash(node)
        self._down.append(node)

    def _recover(self) -> None:
        if not self._down:
            raise dcp.LocalProtocolError("no node is down")
        node, lose = self._down[-1], self.random.choice((0, 0, 1, 3))
        if not self.setting.takes_back:
            lose = 0
        self.cluster.recover(node, lose)
        self._down.pop()
        self.done["recovery that loses writes"] += lose > 0

    def _promote(self, *vbuckets: int) -> None:
        self._hand_over(self.cluster.promote, vbuckets)

    def _lose_the_end_of_a_snapshot(self) -> None:
        """Restart the consumer in the middle of a snapshot, the rest of which is lost.

        Versions that the lost ones had replaced are current again, and the consumer has never received them.
        """
        self._read_for_a_while()
        self._close()
        self.cluster.set_lag(self.random.choice((1, 2, 5)))
        try:
            self._write()
            self._write()
        finally:
            self._resume()
        for reader in self._readers:
            self._read(reader, _SHORT_WAIT)
            reader.save()
        self._close()
        try:
            for vbucket in range(self.setting.cluster["vbuckets"]):
                with contextlib.suppress(dcp.LocalProtocolError):
                    self._promote(vbucket)
        finally:
            self._resume()

    def _move(self) -> None:
        self._hand_over(self.cluster.move)

    def _hand_over(self, action: Callable[[int, int], None], chosen: Sequence[int] = ()) -> None:
        """Hand a vbucket (one of `chosen`, if given) over to another node that can take it."""
        vbuckets, nodes = chosen or range(self.setting.cluster["vbuckets"]), range(len(self.cluster.stats()))
        places = [(vbucket, node) for vbucket in vbuckets for node in nodes]
        for vbucket, node in self.random.sample(places, len(places)):
            with contextlib.suppress(dcp.LocalProtocolError):
                action(vbucket, node)
                return
        raise dcp.LocalProtocolError("no node can take a vbucket")

    def _lose_again_and_again(self) -> None:
        """Lose writes that the consumer has received, several times."""
        for _ in range(self.random.choice((1, 2, 3))):
            self.cluster.set_lag(self.random.choice((1, 2, 5)))
            self._write()
            self._read_for_a_while()
            self._promote()

    def _rebalance_in(self) -> None:
        if len(self.cluster.stats()) >= _MAX_NODES:
            raise dcp.LocalProtocolError("there are nodes enough")
        self.cluster.rebalance_in()

    def _rebalance_out(self) -> None:
        self.cluster.rebalance_out(self._node())

    # Faults.

    def _fault(self) -> None:
        name = self.random.choice(list(FAULT_OPTIONS))
        if name == "rollback":
            self._take_back()
        self._faults.append(self.cluster.fault(name, **FAULT_OPTIONS[name](self.random)))
        self._log(f"{self._faults[-1]}")
        if self.random.random() < 0.5:
            self._write()
        if self.random.random() < (0.8 if name in AT_REQUESTS else 0.1):
            self._restart()
            self._read_for_a_while()

    def _clear_faults(self) -> None:
        """Clear all faults, and count those that have acted."""
        for fault in self._faults:
            fault.clear()
            self._broken |= _breaks(fault)
            self.done[f"fault {fault.name}"] += fault.hits > 0
        self._faults.clear()

    def _repair(self) -> None:
        self._clear_faults()
        while self._down:
            with contextlib.suppress(dcp.LocalProtocolError):
                self.cluster.recover(self._down.pop())
                self.done["recover"] += 1
        if self._has_orphans():
            self.cluster.rebalance_in()
        if "persisted_only" in self.setting.stream:
            self.cluster.set_lag(0)
            for node in range(len(self.cluster.stats())):
                with contextlib.suppress(dcp.LocalProtocolError):
                    self.cluster.set_persistence(node, True)

    def _read_for_a_while(self) -> None:
        deadline = time.monotonic() + _SHORT_WAIT
        for reader in self._readers:
            while not reader.agrees() and self._read(reader, _SHORT_WAIT / 2) and time.monotonic() < deadline:
                pass

    def _read_one_batch(self) -> None:
        self._read(self._consumer_random.choice(self._readers), 0.0)


def _breaks(fault: FaultHandle) -> bool:
    return fault.name in BREAKING and fault.hits > 0


# Steps, with their relative frequencies.
STEPS_OF: dict[str, tuple[int, Callable[[Schedule], None]]] = {
    "write": (30, Schedule._write),
    "delete": (8, Schedule._delete),
    "expire": (3, Schedule._expire),
    "page": (2, Schedule._page),
    "collections": (6, Schedule._change_collections),
    "snapshot": (4, lambda self: self.cluster.snapshot()),
    "purge": (3, Schedule._purge),
    "lag": (5, Schedule._lag),
    "stop persisting": (6, Schedule._stop_persisting),
    "failover": (4, Schedule._failover),
    "crash": (1, Schedule._crash),
    "recover": (2, Schedule._recover),
    "promote": (5, Schedule._promote),
    "writes lost in a row": (6, Schedule._lose_again_and_again),
    "end of a snapshot lost": (6, Schedule._lose_the_end_of_a_snapshot),
    "move": (3, Schedule._move),
    "rebalance in": (1, Schedule._rebalance_in),
    "rebalance out": (1, Schedule._rebalance_out),
    "fault": (15, Schedule._fault),
    "calm": (3, Schedule._clear_faults),
    "read one batch": (8, Schedule._read_one_batch),
    "read for a while": (16, Schedule._read_for_a_while),
    "catch up": (2, Schedule._settle),
    "die and resume": (5, Schedule._restart),
}
