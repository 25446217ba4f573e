"""A schedule drawn from a seed: writes, trouble of every kind, and a consumer that has to end with all documents."""

from __future__ import annotations

import json
import random
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dcp
from dcp.embedded.certificate import Authority
from tests.model.history import Change, Vbucket, newest, visible
from tests.model.node import Connection, Node
from tests.model.producer import (
    ALT,
    COLLECTIONS,
    DUPLEX,
    HOTEL,
    JSON,
    MAP_PUSHED,
    SELECT,
    SNAPPY,
    XATTR,
    XERROR,
    Habits,
)

# Seconds in which a consumer has to have everything that there is.
PATIENCE = 60
_KEYS = [b"k%d" % number for number in range(12)]
_NEEDED = {XERROR, SELECT, JSON, ALT}
_CONTROLS = {"enable_noop", "set_noop_interval", "connection_buffer_size"}
_MORE_CONTROLS = ("send_stream_end_on_client_close_stream", "enable_expiry_opcode", "max_marker_version")
_NO_TLS: tuple[ssl.SSLContext | None, str | None] = (None, None)
_OPTIONS = {"kv_connect_timeout": "2s", "bootstrap_timeout": "2s", "config_poll_interval": "100ms"}


class ModelSchedule:
    """One cluster of the model, and one consumer of it."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(f"model {seed}")
        self.done: Counter[str] = Counter()
        self.lock = threading.Lock()
        oso = draw.random() < 0.5
        collections = draw.random() < 0.8
        features = _NEEDED | {f for f in (XATTR, SNAPPY) if draw.random() < 0.7}
        features |= {COLLECTIONS} if collections else set()
        features |= {DUPLEX, MAP_PUSHED} if draw.random() < 0.5 else set()
        controls = _CONTROLS | {name for name in _MORE_CONTROLS if draw.random() < 0.6}
        controls |= {"enable_out_of_order_snapshots"} if oso and collections else set()
        tls = draw.random() < 0.2
        self.habits = Habits(frozenset(features), frozenset(controls), oso, b"s3cret" if tls else b"")
        self.filter = draw.choice([None, None, HOTEL]) if collections else 0
        self.persisted = draw.random() < 0.3
        self._revision = 1
        context, self._authority = _tls() if tls else _NO_TLS
        number_of_nodes = draw.randint(1, 3)
        self.nodes = [Node(self, number, self.lock, f"model {seed}", context) for number in range(number_of_nodes)]
        self.vbuckets = [self._new_vbucket(number) for number in range(draw.choice((2, 4, 8)))]
        self.rows: dict[int, list[dict[str, Any]]] = {}
        self._saved: tuple[dict[int, list[dict[str, Any]]], dcp.Checkpoint | None] = ({}, None)
        self._options: dict[str, Any] = _OPTIONS | {
            "dcp_buffer_size": draw.choice((0, 200, 5000, 20 << 20)),
        }
        self._stream_options: dict[str, Any] = {
            "linger": draw.choice((0.0, 0.0, 0.002, 0.05)),
            "batch_rows": draw.choice((1, 3, 1000)),
            "persisted_only": self.persisted,
            "out_of_order": oso and collections and self.filter == HOTEL and not self.persisted,
        }
        if self.filter == HOTEL:
            self._stream_options["collections"] = "hotel"

    def _new_vbucket(self, number: int) -> Vbucket:
        order = self.draw.sample(range(len(self.nodes)), len(self.nodes))
        copies = order[: self.draw.randint(1, len(order))]
        return Vbucket(number, copies, [(self.draw.getrandbits(48) | 1, 0)], persisted=[0] * len(copies))

    # What producers ask.

    def revision(self) -> int:
        return self._revision

    def map_for(self, node: int) -> bytes:
        """Return the map as a node tells it. With TLS it has no other port."""
        port = "kvSSL" if self._authority else "kv"
        chains = [[*vbucket.copies, *[-1] * (3 - len(vbucket.copies))] for vbucket in self.vbuckets]
        return json.dumps(
            {
                "rev": self._revision,
                "revEpoch": 1,
                "name": "travel",
                "uuid": "0123456789abcdef",
                "nodeLocator": "vbucket",
                "bucketCapabilities": ["collections"] if COLLECTIONS in self.habits.features else [],
                "nodesExt": [
                    {"hostname": "127.0.0.1", "services": {port: each.port}}
                    | ({"thisNode": True} if each.number == node else {})
                    for each in self.nodes
                ],
                "vBucketServerMap": {
                    "hashAlgorithm": "CRC",
                    "numReplicas": 2,
                    "serverList": [f"127.0.0.1:{each.port}" for each in self.nodes],
                    "vBucketMap": chains,
                },
            }
        ).encode()

    # The schedule.

    def run(self) -> Counter[str]:
        try:
            self._write(self.draw.randint(0, 40))
            with self._connect() as self._client:
                self._stream = self._open(None)
                for _ in range(self.draw.randint(10, 40)):
                    self._step()
                self._finish()
                self._stream.close()
        finally:
            for node in self.nodes:
                node.close()
        problems = [each.problem for each in self._connections() if each.problem]
        if problems:
            raise AssertionError("the client broke the protocol") from problems[0]
        return self.done

    def _connect(self) -> dcp.Client:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        login = "reader:s3cret@" if self._authority else ""
        scheme = "couchbases" if self._authority else "couchbase"
        return dcp.connect(f"{scheme}://{login}{hosts}/travel", ca_cert_path=self._authority, **self._options)

    def _open(self, start: dcp.Checkpoint | None) -> dcp.ChangeStream:
        return self._client.stream(start or "beginning", **self._stream_options)

    def _step(self) -> None:
        steps = {
            self._write_some: 30,
            self._persist: 15,
            self._read: 40,
            self._cut: 6,
            self._end_stream: 6,
            self._move: 5,
            self._fail_over: 8,
            self._restart: 5,
        }
        step = self.draw.choices(list(steps), list(steps.values()))[0]
        step()
        self.done[step.__name__.strip("_")] += 1

    def _write_some(self) -> None:
        self._write(self.draw.randint(1, 20))

    def _write(self, count: int) -> None:
        with self.lock:
            for _ in range(count):
                vbucket = self.draw.choice(self.vbuckets)
                kind = self.draw.choices(("mutation", "deletion", "expiration"), (8, 2, 1))[0]
                length = self.draw.choice((0, 1, 10, 60, 65, 400))
                value = self.draw.choice((b"a" * length, self.draw.randbytes(length)))
                collection = self.draw.choice((0, HOTEL)) if COLLECTIONS in self.habits.features else 0
                cas = self.draw.getrandbits(60)
                key = self.draw.choice(_KEYS)
                vbucket.write(self.draw, collection, key, kind, value if kind == "mutation" else b"", cas)
        self._wake()

    def _persist(self) -> None:
        with self.lock:
            for vbucket in self.vbuckets:
                vbucket.persist(self.draw)

    def _read(self) -> None:
        most = self.draw.choice((1, 3, 10, 1000))
        while most and self._take(0.02):
            most -= 1

    def _cut(self) -> None:
        with self.lock:
            if found := self._connections():
                self.draw.choice(found).cut()

    def _end_stream(self) -> None:
        with self.lock:
            found = [(each, stream) for each in self._connections() for stream in each.producer.streams.values()]
            if found:
                connection, stream = self.draw.choice(found)
                connection.queue(connection.producer.end_stream(stream, self.draw.choice((2, 3, 4, 5, 6, 77))))

    def _move(self) -> None:
        """Let a vbucket go on at another node, with the same history."""
        with self.lock:
            vbucket = self.draw.choice(self.vbuckets)
            self._leave(vbucket)
            vbucket.copies.append(vbucket.copies.pop(0))
            vbucket.persisted.append(vbucket.persisted.pop(0))
            self._revision += 1
        self._wake()

    def _fail_over(self) -> None:
        """Let another copy take over which lacks the newest changes. What all have on disk is never lost."""
        with self.lock:
            vbucket = self.draw.choice(self.vbuckets)
            least = vbucket.safe if self.persisted else 0
            keep = self.draw.choice((vbucket.high, least, self.draw.randint(least, vbucket.high)))
            self.done["changes lost"] += sum(change.seqno > keep for change in vbucket.changes)
            self._leave(vbucket)
            vbucket.promote(self.draw, keep)
            self._revision += 1
        self._wake()

    def _leave(self, vbucket: Vbucket) -> None:
        """End the streams of a vbucket: with a message, or with their connection."""
        for connection in self._connections():
            for stream in [each for each in connection.producer.streams.values() if each.vbucket is vbucket]:
                end = connection.producer.end_stream(stream, 2)
                if self.draw.random() < 0.5:
                    connection.queue(end)
                else:
                    connection.cut()

    def _restart(self) -> None:
        """Go on as a new process would: from the checkpoint that was saved last, and what was stored with it."""
        self._stream.close()
        rows, checkpoint = self._saved
        reached = {} if checkpoint is None else checkpoint.by_vbucket()
        # A checkpoint does not cover what has arrived of an out-of-order snapshot that is incomplete.
        self.rows = {number: [*kept] for number, kept in rows.items() if number in reached and reached[number].seqno}
        self._stream = self._open(checkpoint)

    def _finish(self) -> None:
        deadline = time.monotonic() + PATIENCE
        with self.lock:
            for vbucket in self.vbuckets:
                vbucket.persisted = [vbucket.high] * len(vbucket.copies)
        self._wake()
        # A rollback may be on its way while the newest changes are all there.
        while (wrong := self._missing() + self._altered()) and time.monotonic() < deadline:
            self._take(0.05)
        assert not wrong, wrong

    # The consumer.

    def _take(self, timeout: float) -> bool:
        try:
            batch = self._stream.next(timeout)
        except TimeoutError:
            return False
        assert batch is not None, "the stream has ended"
        for row in batch.to_arrow().to_pylist():
            self._keep(row)
        if self.draw.random() < 0.5:
            self._saved = {vbucket: [*kept] for vbucket, kept in self.rows.items()}, self._stream.checkpoint
        return True

    def _keep(self, row: dict[str, Any]) -> None:
        self.done["rows"] += 1
        kept = self.rows.setdefault(row["vbucket"], [])
        if row["event"] == "rollback":
            assert not self.persisted, f"a change that every copy had on disk is taken back: {row}"
            self.done["rollback rows"] += 1
            kept[:] = [one for one in kept if one["seqno"] <= row["seqno"]]
            return
        assert row["seqno"] not in {one["seqno"] for one in kept}, f"delivered twice: {row}"
        if self.persisted:
            # The safe seqno never falls: one that was safe when the row was delivered is safe now.
            assert row["seqno"] <= self.vbuckets[row["vbucket"]].safe, f"delivered before every copy had it: {row}"
        kept.append(row)

    def _missing(self) -> list[str]:
        """Return the documents of which the consumer does not have the newest change."""
        return [
            f"vbucket {vbucket.number}: {change.key!r} of {change.collection} at {change.seqno}"
            for vbucket in self.vbuckets
            for change in newest([each for each in vbucket.changes if visible(each, self._visible)])
            if (change.collection, change.key) not in self._newest(vbucket.number)
            or self._newest(vbucket.number)[change.collection, change.key]["seqno"] != change.seqno
        ]

    @property
    def _visible(self) -> frozenset[int] | None:
        return None if self.filter is None else frozenset([self.filter])

    def _newest(self, vbucket: int) -> dict[tuple[int, bytes], dict[str, Any]]:
        rows = sorted(self.rows.get(vbucket, ()), key=lambda row: row["seqno"])
        return {(row["collection_id"] or 0, row["key"]): row for row in rows if row["key"] is not None}

    def _altered(self) -> list[str]:
        """Return the rows that were not taken back, and are no change of the history as it was written."""
        return [
            f"{row}, written: {change}"
            for vbucket in self.vbuckets
            for row in self.rows.get(vbucket.number, ())
            for change in [next((each for each in vbucket.changes if each.seqno == row["seqno"]), None)]
            if change is None or not _is_same(row, change)
        ]

    def _connections(self) -> list[Connection]:
        return [connection for node in self.nodes for connection in node.connections]

    def _wake(self) -> None:
        for connection in self._connections():
            connection.wake()


def _is_same(row: dict[str, Any], change: Change) -> bool:
    return (
        (row["collection_id"] or 0, row["key"]) == (change.collection, change.key)
        and (row["value"] or b"", row["cas"]) == (change.value, change.cas)
        and (row["event"] == "mutation") == (change.kind == "mutation")
    )


_KEPT: list[Iterator[Any] | TemporaryDirectory[str]] = []


@cache
def _tls() -> tuple[ssl.SSLContext, str]:
    """Return the context of all nodes, and the file with its authority."""
    directory = TemporaryDirectory()
    _KEPT.append(directory)
    authority = Authority()
    issued = authority.issue("node", ("127.0.0.1",))
    files = {"ca.pem": authority.certificate, "node.pem": issued.certificate, "key.pem": issued.key}
    for name, text in files.items():
        Path(directory.name, name).write_bytes(text)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(Path(directory.name, "node.pem"), Path(directory.name, "key.pem"))
    return context, str(Path(directory.name, "ca.pem"))
