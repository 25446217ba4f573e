"""Writes and reads with the Python SDK.

Each line on standard input is a job: name=value with spaces between. The answer is a line: what the program found, or
`failed` and why. See tests/interop/programs.py.
"""

from __future__ import annotations

import sys
import threading
import time
import zlib
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from couchbase import subdocument
from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.durability import (
    ClientDurability,
    DurabilityLevel,
    PersistTo,
    ReplicateTo,
    ServerDurability,
)
from couchbase.exceptions import (
    CasMismatchException,
    DocumentExistsException,
    DocumentLockedException,
    DocumentNotFoundException,
    DurabilityImpossibleException,
    PathExistsException,
    TimeoutException,
    TransactionFailed,
)
from couchbase.kv_range_scan import PrefixScan, RangeScan, SamplingScan, ScanTerm
from couchbase.mutation_state import MutationState
from couchbase.options import (
    ClusterOptions,
    DecrementOptions,
    GetOptions,
    IncrementOptions,
    MutateInOptions,
    ReplaceOptions,
    ScanOptions,
    SignedInt64,
    UpsertOptions,
)
from couchbase.subdocument import MutationMacro, StoreSemantics
from couchbase.transcoder import RawBinaryTranscoder, Transcoder

_LARGE = "x" * 2000


class RawTranscoder(Transcoder):  # type: ignore[misc]
    """Leaves values as they are stored."""

    def encode_value(self, value: Any) -> tuple[bytes, int]:
        return value, 3 << 24

    def decode_value(self, value: bytes, flags: int) -> bytes:
        return value


class Job:
    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        begin = time.monotonic()
        certificate = {"cert_path": options["ca"]} if "ca" in options else {}
        who = PasswordAuthenticator(options["user"], options["password"], **certificate)
        self.cluster = Cluster(options["url"], ClusterOptions(who))
        self.bucket = self.cluster.bucket(options["bucket"])
        self.cluster.wait_until_ready(timedelta(seconds=10))
        self.ready = time.monotonic() - begin
        self.count = self.sum = 0

    def answer(self) -> str:
        try:
            getattr(self, self.options["do"])()
        finally:
            self.cluster.close()
        return f"ready={self.ready:.3f} documents={self.count} checksum={self.sum}"

    def connect(self) -> None:
        """Do nothing else."""

    def documents(self) -> None:
        c = self.bucket.default_collection()
        bulk = {f"doc-{n:03}": {"n": n, "pad": _LARGE} for n in range(200)}
        assert c.upsert_multi(bulk).all_ok
        assert c.remove_multi([f"doc-{n:03}" for n in range(0, 200, 7)]).all_ok
        for step in (self.conditions, self.counters, self.expiries, self.parts, self.replicas):
            step(c)
        self.collections()
        names = ["condition", "locked", "counter", "text", "lasting", "parts", "made", "durable", "observed"]
        self.read("_default", "_default", [*names, *(f"doc-{n:03}" for n in range(200) if n % 7)])
        self.read("shop", "order", [f"order-{n:02}" for n in range(50)])

    def scan(self) -> None:
        """Read the documents that it has just written, in three ways."""
        c = self.bucket.default_collection()
        written = [c.upsert(f"scan-{n:02}", {"n": n}) for n in range(100)]
        c.upsert("other", 1)
        consistent = ScanOptions(consistent_with=MutationState(*written))
        found = list(c.scan(PrefixScan("scan-"), consistent))
        assert sum(item.content_as[dict]["n"] for item in found) == 4950
        keys = RangeScan(ScanTerm("scan-10"), ScanTerm("scan-20", exclusive=True))
        ids = sorted(item.id for item in c.scan(keys, ScanOptions(ids_only=True)))
        assert ids == [f"scan-{n}" for n in range(10, 20)], ids
        ids = [item.id for item in c.scan(SamplingScan(7, 5), ScanOptions(ids_only=True))]
        assert len(ids) == 7, ids
        c.remove("other")
        self.read("_default", "_default", [item.id for item in found])

    def conditions(self, c: Any) -> None:
        first = c.insert("condition", 1)
        expect(DocumentExistsException, lambda: c.insert("condition", 2))
        c.replace("condition", 2, ReplaceOptions(cas=first.cas))
        expect(CasMismatchException, lambda: c.replace("condition", 3, ReplaceOptions(cas=first.cas)))
        expect(DocumentNotFoundException, lambda: c.get("missing"))
        c.insert("locked", 1)
        locked = c.get_and_lock("locked", timedelta(seconds=15))
        brief = UpsertOptions(timeout=timedelta(milliseconds=50))
        expect((DocumentLockedException, TimeoutException), lambda: c.upsert("locked", 2, brief))
        c.unlock("locked", locked.cas)
        c.upsert("locked", 3)

    def counters(self, c: Any) -> None:
        b = c.binary()
        found = [b.increment("counter", IncrementOptions(initial=SignedInt64(5))).content for _ in range(3)]
        assert found == [5, 6, 7], found
        assert b.decrement("counter", DecrementOptions()).content == 6
        c.upsert("text", b"b", UpsertOptions(transcoder=RawBinaryTranscoder()))
        b.append("text", b"c")
        b.prepend("text", b"a")

    def expiries(self, c: Any) -> None:
        c.upsert("expiring", 1, UpsertOptions(expiry=timedelta(seconds=1)))
        c.upsert("lasting", {"a": 1}, UpsertOptions(expiry=timedelta(hours=1)))
        assert c.get("lasting", GetOptions(with_expiry=True)).expiry_time.timestamp() > time.time() + 3000
        c.upsert("lasting", {"a": 2}, UpsertOptions(preserve_expiry=True))
        assert c.get("lasting", GetOptions(with_expiry=True)).expiry_time.timestamp() > time.time() + 3000
        c.get_and_touch("lasting", timedelta(hours=2))
        c.touch("lasting", timedelta(hours=3))
        assert c.get("lasting", GetOptions(project=["a"])).content_as[dict] == {"a": 2}
        deadline = time.monotonic() + 10
        while c.exists("expiring").exists:
            assert time.monotonic() < deadline, "a document does not expire"

    def parts(self, c: Any) -> None:
        c.upsert("parts", {"a": {"b": [1, 2]}, "n": 5})
        changed = c.mutate_in(
            "parts",
            [
                subdocument.upsert("meta.cas", MutationMacro.cas(), xattr=True, create_parents=True),
                subdocument.array_append("a.b", 3),
                subdocument.increment("n", 2),
                subdocument.upsert("new.path", "x", create_parents=True),
            ],
        )
        assert changed.content_as[int](2) == 7
        found = c.lookup_in(
            "parts",
            [
                subdocument.get("meta.cas", xattr=True),
                subdocument.get("a.b[2]"),
                subdocument.count("a.b"),
                subdocument.exists("missing"),
            ],
        )
        assert (found.content_as[int](1), found.content_as[int](2), found.exists(3)) == (3, 3, False)
        expect(PathExistsException, lambda: c.mutate_in("parts", [subdocument.insert("n", 1)]))
        creating = MutateInOptions(store_semantics=StoreSemantics.UPSERT)
        c.mutate_in("made", [subdocument.upsert("x", 1)], creating)

    def replicas(self, c: Any) -> None:
        c.upsert("durable", 1, UpsertOptions(durability=ServerDurability(DurabilityLevel.PERSIST_TO_MAJORITY)))
        everywhere = ClientDurability(replicate_to=ReplicateTo.ONE, persist_to=PersistTo.ONE)
        c.upsert("observed", 1, UpsertOptions(durability=everywhere))
        assert sorted(one.is_replica for one in c.get_all_replicas("observed")) == [False, True]
        if "replica_lookup" in self.options:
            found = c.lookup_in_all_replicas("parts", [subdocument.get("n")])
            assert sorted(one.is_replica for one in found) == [False, True]

    def collections(self) -> None:
        manager = self.bucket.collections()
        manager.create_scope("shop")
        manager.create_collection("shop", "order")
        manager.create_collection("shop", "dropped")
        c = self.bucket.scope("shop").collection("order")
        for n in range(50):
            c.upsert(f"order-{n:02}", {"total": n})
        manager.drop_collection("shop", "dropped")
        (shop,) = [scope for scope in manager.get_all_scopes() if scope.name == "shop"]
        assert [collection.name for collection in shop.collections] == ["order"]

    def read(self, scope: str, collection: str, keys: Iterable[str]) -> None:
        """Sum up documents that must be there."""
        c, raw = self.bucket.scope(scope).collection(collection), GetOptions(transcoder=RawTranscoder())
        for key in keys:
            self.count += 1
            self.sum += zlib.crc32(f"{scope}.{collection}/{key}\0".encode() + c.get(key, raw).value)

    def impossible(self) -> None:
        majority = UpsertOptions(durability=ServerDurability(DurabilityLevel.MAJORITY))
        expect(DurabilityImpossibleException, lambda: self.bucket.default_collection().upsert("durable", 1, majority))

    def transactions(self) -> None:
        c = self.bucket.default_collection()
        for key in ("replaced", "removed"):
            c.upsert(key, {"n": 1})

        def work(t: Any) -> None:
            t.replace(t.get(c, "replaced"), {"n": 2})
            t.insert(c, "inserted", {"n": 3})
            t.remove(t.get(c, "removed"))
            assert t.get(c, "replaced").content_as[dict] == {"n": 2}
            expect(DocumentNotFoundException, lambda: t.get(c, "removed"))

        self.cluster.transactions.run(work)
        self.read("_default", "_default", ["replaced", "inserted"])

    def rollback(self) -> None:
        c = self.bucket.default_collection()
        c.upsert("kept", {"n": 1})

        def work(t: Any) -> None:
            t.replace(t.get(c, "kept"), {"n": 2})
            t.insert(c, "never", {"n": 3})
            raise ValueError("roll back")

        expect(TransactionFailed, lambda: self.cluster.transactions.run(work))
        assert not c.exists("never").exists
        self.read("_default", "_default", ["kept"])

    def conflict(self) -> None:
        """Let two transactions increment the same document: the second one meets what the first has staged."""
        c = self.bucket.default_collection()
        c.upsert("shared", {"n": 0})
        staged, attempts = threading.Event(), []

        def increment(t: Any) -> None:
            shared = t.get(c, "shared")
            t.replace(shared, {"n": shared.content_as[dict]["n"] + 1})

        def first(t: Any) -> None:
            increment(t)
            staged.set()
            time.sleep(0.3)

        def second(t: Any) -> None:
            attempts.append(1)
            increment(t)

        def run_second() -> None:
            staged.wait()
            # Unlike the other SDKs this one does not attempt again after a conflict within the function.
            while True:
                try:
                    self.cluster.transactions.run(second)
                except TransactionFailed:
                    continue
                return

        thread = threading.Thread(target=run_second)
        thread.start()
        self.cluster.transactions.run(first)
        thread.join()
        assert len(attempts) > 1, attempts
        self.read("_default", "_default", ["shared"])


def expect(error: Any, action: Any) -> None:
    """Fail unless the action raises an error."""
    try:
        action()
    except error:
        return
    raise AssertionError(f"expected {error}")


def main() -> None:
    print("started", flush=True)
    for line in sys.stdin:
        try:
            answer = Job(dict(one.split("=", 1) for one in line.split())).answer()
        except Exception as error:
            answer = "failed " + repr(error).replace("\n", " ")
        print(answer, flush=True)


if __name__ == "__main__":
    main()
