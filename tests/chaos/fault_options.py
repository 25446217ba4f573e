"""Faults of a schedule, with options that a client has to survive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

Draw = Callable[[Random], dict[str, Any]]

# Faults that break the protocol: the stream has to fail, and its consumer to resume from its checkpoint.
BREAKING = frozenset({"garbage", "oversize"})

# Faults that act on stream requests.
AT_REQUESTS = frozenset({"cut", "refuse", "rollback", "end", "underfill"})

# Not among them: `gap` and `missing_tail`, which no client can detect, since gaps between seqnos are normal; `bad_map`,
# on which a client that connects may give up; `stream_ids`, which needs streams with ids; `no_noops`, which takes
# longer to detect than a schedule lasts; and `beyond_end`, which needs an end and acts on the last stream of every
# schedule.
FAULT_OPTIONS: Mapping[str, Draw] = {
    "cut": lambda random: {
        random.choice(("sent", "streamed", "streamed", "received_bytes")): random.randrange(1, 5000),
        "times": random.choice((1, 1, 3)),
    },
    "split": lambda random: {"size": random.randrange(1, 40)},
    "pause": lambda random: {"node": random.choice((None, 0, 1))},
    "partition": lambda random: {"node": random.choice((None, 0, 1))},
    "slow": lambda random: {"rate": random.choice((20_000, 100_000))},
    "garbage": lambda random: {"size": random.randrange(1, 64)},
    "oversize": lambda random: {},
    "refuse": lambda random: {
        "status": random.choice(("ETMPFAIL", "EBUSY", "EINTERNAL", "NOT_MY_VBUCKET", "NO_BUCKET")),
        "times": random.choice((1, 2)),
    },
    "rollback": lambda random: {
        "to": tuple(sorted((random.randrange(12) for _ in range(3)), reverse=True)),
        "times": 3,
    },
    "end": lambda random: {
        "status": random.choice(("STATE_CHANGED", "SLOW", "ROLLBACK", "DISCONNECTED")),
        "after": random.randrange(4),
        "times": 1,
    },
    "silent": lambda random: {},
    "overfill": lambda random: {"bytes": random.choice((100, 10_000))},
    "underfill": lambda random: {"bytes": random.choice((50, 2_000))},
    "bare_marker": lambda random: {},
    "repeat_marker": lambda random: {"after": random.randrange(3)},
}
