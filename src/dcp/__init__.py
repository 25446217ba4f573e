"""Couchbase changes as Apache Arrow batches: client, decoder and encoder for DCP, UPR and TAP.

    import dcp

    with dcp.connect("couchbase://user:password@host/bucket") as client:
        for batch in client.stream(end="now"):
            print(batch.to_arrow())

Begin with `connect`, `Client.stream` and `ChangeStream`. Import further parts by themselves: `dcp.spark` (DataFrames),
`dcp.embedded` (a cluster for tests), `dcp.metrics` (Prometheus).
"""

from __future__ import annotations

# As in the module typing, whose import alone takes longer than everything here.
TYPE_CHECKING = False

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dcp.public import *  # noqa: F403
    from dcp.public import __all__ as __all__
else:

    def __getattr__(name):
        """Import the public names on first use: they take most of the time in which `dcp` starts."""
        from importlib.util import find_spec

        # `from dcp import position` looks for an attribute before it imports the module.
        if not find_spec(f"dcp.{name}"):
            import dcp.public as public

            if name in [*public.__all__, "__all__"]:
                return globals().setdefault(name, getattr(public, name))
        raise AttributeError(f"module 'dcp' has no attribute {name!r}")

    def __dir__():
        import dcp.public as public

        return sorted([*globals(), *public.__all__])
