"""How a stream is asked for, by what was agreed on."""

from __future__ import annotations

from dataclasses import replace

from dcp.position import StreamPosition
from dcp.session.handshake import Agreement
from dcp.session.stream import Stream
from dcp.wire.dcp import StreamFlag
from dcp.wire.dcp_body import STREAM_FILTER, StreamFilter
from dcp.wire.frame import Frame
from dcp.wire.layout import Magic
from dcp.wire.memcached import Feature

_MARKER_VERSION = "max_marker_version"


def stream_request(stream: Stream, agreement: Agreement, flags: StreamFlag, chosen: StreamFilter | None) -> Frame:
    position = stream.position
    fields = {"flags": int(_known(flags, agreement)), "end_seqno": stream.end} | position.resume_point()._asdict()
    wanted = _filter(position, chosen, agreement)
    value = b"" if wanted is None else STREAM_FILTER.encode(wanted)
    return Frame("stream_request", Magic.REQUEST, stream.opaque, vbucket=stream.vbucket, fields=fields, value=value)


def _known(flags: StreamFlag, agreement: Agreement) -> StreamFlag:
    """Without what servers before 5.0 refuse; there only active vbuckets are asked for anyway."""
    return flags if Feature.XERROR in agreement.features else flags & ~StreamFlag.ACTIVE_VB_ONLY


def _filter(position: StreamPosition, chosen: StreamFilter | None, agreement: Agreement) -> StreamFilter | None:
    """What is wanted, and what purge is known: then only a newer one is a reason to begin again."""
    if position.seqno and position.purge_seqno and _MARKER_VERSION in agreement.controls:
        return replace(chosen or StreamFilter(), purge_seqno=position.purge_seqno)
    return chosen
