"""Configuration of a cluster and its consumer, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

SCOPE, LASTING = "shop", "order"
DEFAULT, PATH = "_default._default", f"{SCOPE}.{LASTING}"

# Releases that differ in their streams.
_VERSIONS = ("4.0", "5.5", "6.6", "7.0", "7.2", "8.0", "8.0", "8.5")
_WITH_COLLECTIONS = (7, 0)
# Short timeouts: schedules have many nodes that do not respond, and changes of the map that are not announced.
_SHORT_TIMEOUTS = {"kv_connect_timeout": "500ms", "bootstrap_timeout": "500ms", "config_poll_interval": "300ms"}


@dataclass(frozen=True)
class Setting:
    """Arguments of `Cluster`, `connect` and `Client.stream`."""

    cluster: dict[str, Any]
    options: dict[str, Any]
    stream: dict[str, Any]

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
            "seed": seed,
        }
        # SCRAM is slow on purpose (PBKDF2), so few schedules use it.
        mechanism = "PLAIN" if random.random() < 0.95 else "SCRAM-SHA256"
        options = _SHORT_TIMEOUTS | {
            "sasl_mech_force": mechanism if release >= (5, 0) else "PLAIN",
            "dcp_buffer_size": random.choice((0, 100, 1000, 20 << 20)),
            "compression": random.choice(("on", "off")),
        }
        chosen = random.choice(_FILTERS) if release >= _WITH_COLLECTIONS else {}
        limits = {"batch_rows": random.choice((1, 2, 5, 1000)), "batch_bytes": random.choice((200, 4 << 20))}
        return cls(cluster, options, limits | {"linger": random.choice((0.0, 0.0, 0.002, 0.02))} | chosen)

    @property
    def collections(self) -> bool:
        return tuple(map(int, self.cluster["server_version"].split("."))) >= _WITH_COLLECTIONS

    def sees(self, path: str) -> bool:
        """Return whether the consumer receives this collection."""
        if "collections" in self.stream:
            return path in self.stream["collections"]
        return path.startswith(f"{self.stream['scope']}.") if "scope" in self.stream else True

    @property
    def kinds(self) -> list[str]:
        """Properties that are counted over all schedules."""
        chosen = "collections" if "collections" in self.stream else "scope" if "scope" in self.stream else "no"
        return [
            f"server {self.cluster['server_version']}",
            f"{chosen} filter",
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
)
