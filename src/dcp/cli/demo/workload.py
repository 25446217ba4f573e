"""Workload of the demo: documents of a shop, and a thread that keeps writing."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from dcp.embedded import Cluster
from dcp.errors import LocalProtocolError

SCOPE = "shop"
ORDERS, CUSTOMERS = f"{SCOPE}.orders", f"{SCOPE}.customers"
WRITES_PER_SECOND = 1000

_NAMES = ("Ada", "Alan", "Barbara", "Edsger", "Frances", "Grace", "Katherine", "Linus", "Margaret", "Niklaus")
_CITIES = ("Athens", "Bergen", "Cork", "Dresden", "Évora", "Florence", "Gdansk", "Helsinki")
_STATES = ("new", "paid", "packed", "sent", "delivered")
# One in 100 orders is deleted. For every 200 orders there is a basket, a document that expires.
_CANCELLED, _BASKETS = 100, 200
# Seconds between two rounds of writes.
_TICK = 0.02


def fill(cluster: Cluster, count: int) -> int:
    """Write `count` documents: one customer for every four orders. Return the number of keys, with deleted ones."""
    customers = count // 5
    orders = count - customers
    cluster.create_scope(SCOPE)
    for path in (CUSTOMERS, ORDERS):
        cluster.create_collection(*path.split("."))
    cluster.load(customers, prefix="customer::", collection=CUSTOMERS, value=_customer)
    cluster.load(orders, prefix="order::", collection=ORDERS, value=_orders(customers))
    for number in range(0, orders, _CANCELLED):
        cluster.delete(_key("order", number), collection=ORDERS)
    # Baskets expire while the copy follows; the expiration is a change of its own.
    due = int(time.time()) + 1
    baskets = orders // _BASKETS
    for number in range(baskets):
        cluster.upsert(_key("basket", number), b'{"status":"basket","total":0}', collection=ORDERS, expiry=due)
    return count + baskets


class OrderWriter(threading.Thread):
    """Thread that changes, adds and deletes orders and customers until it is stopped. Baskets expire meanwhile."""

    def __init__(self, cluster: Cluster, count: int, seed: int) -> None:
        super().__init__(name="writer", daemon=True)
        self._cluster, self._random = cluster, random.Random(seed)
        self._customers = count // 5
        self._orders = count - self._customers
        self._order = _orders(self._customers)
        self._ended = threading.Event()
        self.writes = self.expired = 0

    def run(self) -> None:
        """Write at a constant rate until `stop`."""
        started_at = time.monotonic()
        while not self._ended.wait(_TICK):
            # As many writes as are due by now: a slow round is made up for by the next one.
            due = int((time.monotonic() - started_at) * WRITES_PER_SECOND) - self.writes
            for _ in range(due):
                self._write_one()
            self.writes += due
            # The pager of the embedded cluster runs on request only.
            if not self.expired:
                self.expired = self._cluster.run_pager()

    def stop(self) -> None:
        """Stop writing."""
        self._ended.set()
        if self.is_alive():
            self.join()

    def _write_one(self) -> None:
        """Write or delete a random document."""
        kind = self._random.random()
        if kind < 0.1:
            number, self._orders = self._orders, self._orders + 1
        else:
            number = self._random.randrange(self._orders)
        if kind > 0.97:
            # The order may have been deleted before, or lost in the failover.
            with suppress(LocalProtocolError):
                self._cluster.delete(_key("order", number), collection=ORDERS)
        elif kind > 0.9:
            number %= self._customers
            self._cluster.upsert(_key("customer", number), _customer(number), collection=CUSTOMERS)
        else:
            self._cluster.upsert(_key("order", number), self._order(number, self.writes), collection=ORDERS)


def _key(kind: str, number: int) -> str:
    """Return the key of a document."""
    return f"{kind}::{number:010d}"


def _customer(number: int) -> bytes:
    """Return the document of a customer."""
    name = _NAMES[number % len(_NAMES)]
    return (
        f'{{"name":"{name} {number:x}","email":"{name.lower()}.{number}@example.org",'
        f'"city":"{_CITIES[number * 7 % len(_CITIES)]}","since":{2010 + number % 15},"points":{number * 37 % 5000}}}'
    ).encode()


def _orders(customers: int) -> Callable[..., bytes]:
    """Return a function that makes the document of an order, as it is after a number of changes."""

    def order(number: int, changes: int = 0) -> bytes:
        quantity, cents = number % 3 + 1, number * 131 % 20_000 + 99
        total = quantity * cents
        return (
            f'{{"customer":"customer::{number * 17 % customers:010d}",'
            f'"placed":"2026-{number % 12 + 1:02d}-{number % 28 + 1:02d}T{number % 24:02d}:{number * 7 % 60:02d}:00Z",'
            f'"status":"{_STATES[(number + changes) % len(_STATES)]}","changes":{changes},'
            f'"items":[{{"sku":"SKU-{number * 31 % 9973:04d}","quantity":{quantity},'
            f'"price":{cents // 100}.{cents % 100:02d}}}],"total":{total // 100}.{total % 100:02d}}}'
        ).encode()

    return order
