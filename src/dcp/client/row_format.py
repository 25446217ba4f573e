"""How the rows of a stream look: its columns, rollbacks among them, and where times cut them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dcp.client import options as arguments
from dcp.client.rollback import EVENT, PURGED, rollback_rows, with_rollback
from dcp.columns.batch import Batch
from dcp.columns.cas_filter import CasFilter, with_cas
from dcp.columns.decoder import Decoder
from dcp.errors import LocalProtocolError


class Look:
    """decoding: what else than `columns` a decoder is made with."""

    def __init__(self, dialect: str, columns: Iterable[str] | None, decoding: Mapping[str, Any]) -> None:
        self._dialect, self._decoding = dialect, decoding
        self._columns = None if columns is None else arguments.names("columns", columns)

    def cut(self, since: int | None, until: int | None) -> CasFilter:
        """What cuts rows out at times. From now on rows have what it goes by."""
        if self._decoding.get("views"):
            raise LocalProtocolError("views: expected False for a stream with a time, whose rows are cut there")
        cut = CasFilter(Decoder(self._dialect, self._columns, **self._decoding).schema, since, until)
        self._columns = self._columns and with_cas(self._columns)
        return cut

    @property
    def has_xattrs(self) -> bool:
        return self._columns is None or "xattrs" in self._columns

    def decoder(self, collections: bool) -> Decoder:
        return Decoder(self._dialect, self._columns, collections=collections, also=(EVENT, PURGED), **self._decoding)

    def rollback_rows(self) -> Callable[[int, int, int, str], Batch]:
        events = (*self.decoder(True).plan.events,)
        return rollback_rows(Decoder(with_rollback(self._dialect), self._columns, events=events, **self._decoding))
