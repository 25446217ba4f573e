"""Configuration of a cluster and its consumer, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

SCOPE, LASTING = "shop", "order"
DEFAULT, PATH = "_default._default", f"{SCOPE}.{LASTING}"

# Releases that differ in their streams.
_VERSIONS = ("4.0", "5.5", "6.6", "7.0", "7.2", "8.0", "8.0", "8.5")
_WITH_COLLECTIONS, _WITH_PERSISTENCE = (7, 0), (4, 0)
# Short timeouts: schedules have many nodes that do not respond, and changes of the map that are not announced.
_SHORT_TIMEOUTS = {"kv_connect_timeout": "500ms", "bootstrap_timeout": "500ms", "config_poll_interval": "300ms"}


class Selection(NamedTuple):
    """Collections of a stream, as arguments of `Client.stream`."""

    arguments: dict[str, Any]

    @property
    def kind(self) -> str:
        return f"{next(iter(self.arguments), 'no')} filter"

    def sees(self, path: str) -> bool:
        """Return whether the consumer receives this collection."""
        if "collections" in self.arguments:
            return path in self.arguments["collections"]
        return path.startswith(f"{self.arguments['scope']}.") if "scope" in self.arguments else True


@dataclass(frozen=True)
class Setting:
    """Arguments of `Cluster`, `connect` and `Client.stream`.

    stream: arguments of all streams of the client. selections: further ones, for each of its streams.
    takes_back: False if no step takes back what every copy of a vbucket has, so that `persisted_only` has to hold.
    """

    cluster: dict[str, Any]
    options: dict[str, Any]
    stream: dict[str, Any]
    selections: list[Selection]
    takes_back: bool = True

    @classmethod
    def draw(cls, seed: int) -> Setting:
        random = Random(f"setting {seed}")
        version = random.choice(_VERSIONS)
        release = tuple(map(int, version.split(".")))
        cluster = {
            "nodes": random.choice((1, 2, 3, 3)),
            "vbuckets": random.choice((1, 2, 2, 4)),
            "replicas": random.choice((0, 1, 1, 1, 2)),
            "server_version": version,
            "history": release >= (7, 2) and random.random() < 0.3,
            "record_versions": True,
            # Handshakes of TLS take time, so few schedules have them.
            "tls": random.random() < 0.05,
            "seed": seed,
        }
        # SCRAM is slow on purpose (PBKDF2), so few schedules use it.
        mechanism = "PLAIN" if random.random() < 0.95 else "SCRAM-SHA256"
        options = _SHORT_TIMEOUTS | {
            "sasl_mech_force": mechanism if release >= (5, 0) else "PLAIN",
            "dcp_buffer_size": random.choice((0, 100, 1000, 20 << 20)),
            "compression": random.choice(("on", "off")),
        }
        filters = _FILTERS if release >= _WITH_COLLECTIONS else ({},)
        selections = [Selection(random.choice(filters)) for _ in range(random.choice((1, 1, 1, 1, 1, 1, 2, 3)))]
        stream = {
            "batch_rows": random.choice((1, 2, 5, 1000)),
            "batch_bytes": random.choice((200, 4 << 20)),
            "linger": random.choice((0.0, 0.002, 0.02)) if random.random() < 0.98 else 1.0,
        }
        takes_back = True
        if release >= _WITH_PERSISTENCE and random.random() < 0.1:
            stream["persisted_only"] = True
            takes_back = random.random() < 0.3
            # Else a failover may leave no copy at all.
            cluster["replicas"] = max(cluster["replicas"], 1)
            cluster["nodes"] = max(cluster["nodes"], 2)
        elif release >= _WITH_COLLECTIONS:
            stream["out_of_order"] = random.random() < 0.3
        # A node holds one copy of a vbucket at most. After all draws, so that those of a seed stay the same.
        cluster["replicas"] = min(int(cluster["replicas"]), int(cluster["nodes"]) - 1)
        return cls(cluster, options, stream, selections, takes_back)

    @property
    def collections(self) -> bool:
        return tuple(map(int, self.cluster["server_version"].split("."))) >= _WITH_COLLECTIONS

    @property
    def kinds(self) -> list[str]:
        """Properties that are counted over all schedules."""
        return [
            f"server {self.cluster['server_version']}",
            f"streams {len(self.selections)}",
            *{selection.kind for selection in self.selections},
            f"linger {self.stream['linger']}",
            *(name for name in ("persisted_only", "out_of_order") if self.stream.get(name)),
            *(["persisted_only, nothing taken back"] if not self.takes_back else []),
            *(["tls"] if self.cluster["tls"] else []),
            f"compression {self.options['compression']}",
            f"window {self.options['dcp_buffer_size']}",
            f"batches of {self.stream['batch_rows']} rows",
            *(["history"] if self.cluster["history"] else []),
        ]


_FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {},
    {"scope": SCOPE},
    {"collections": [PATH]},
    {"collections": [DEFAULT]},
    {"collections": [DEFAULT, PATH]},
)
