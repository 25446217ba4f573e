"""Rules by which one line of the code becomes another, and where they do not apply.

Each rule stands for a mistake that is easily made: a bound that is off by one, a condition that is turned round, a step
that is left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

# Modules and rooms of `src/dcp`.
ROOMS = (
    *("position.py", "session", "client", "spark", "cli", "embedded", "checkpoint.py", "foreign_checkpoints.py"),
    *("sync", "polars.py", "cluster_map.py", "columns", "wire", "value_grammar.py", "json_reader.py", "metrics.py"),
)

# Modules without rules of their own: tables, help texts, what is drawn on a screen or written into a page, documents
# that are made up, and the words of errors, which tests compare as a whole.
_TABLES = {
    *("client/options.py", "client/network_errors.py", "client/stats.py", "wire/describe.py"),
    *("cli/demo/screen.py", "cli/demo/chart.py", "cli/demo/workload.py", "cli/terminal.py"),
}
# What is said to people is no rule: these calls, and what is raised, may say anything.
_WORDS = {"log", "warnings", "click", "screen"}


class Mutant(NamedTuple):
    """A change of one place in a module of `src/dcp`.

    start, end: the bytes of the module that `text` replaces. rule: name of the rule. number, line: of the line in which
    they begin. statement: first and last line of the statement, without the statements inside of it.
    """

    module: str
    rule: str
    start: int
    end: int
    text: str
    number: int
    line: str
    statement: tuple[int, int]

    def applied(self, code: str) -> str:
        """Return the code of the module with the change."""
        data = code.encode()
        return (data[: self.start] + self.text.encode() + data[self.end :]).decode()


class Equivalent(NamedTuple):
    """A mutant that no test can notice, by its line and what stands there instead, and the reason."""

    module: str
    line: str
    rule: str
    reason: str


EQUIVALENTS: list[Equivalent] = [
    Equivalent(
        "position.py",
        "if self.seqno <= seqno:",
        "< in a comparison",
        "at the seqno itself the position cut short there is the position",
    ),
    Equivalent(
        "position.py",
        "if len(ends) > 1:",
        ">= in a comparison",
        "the position is at the end of a single snapshot already",
    ),
    Equivalent(
        "position.py",
        "return Progress(here, AnnouncedSnapshot(start, end, here.purge_seqno), first=False)",
        "end for start",
        "the window begins at the position, which is below both",
    ),
    Equivalent(
        "cli/doctor_checks.py",
        "starts = {vbucket: high - depth for vbucket, high in chosen.items() if vbucket in logs and high > depth}",
        "one more",
        "of such a vbucket one change more is read, and the newest is the same",
    ),
    Equivalent(
        "client/follow/node_link.py",
        "return self._oldest_arrival + self._limits.linger if session.has_updates or self._finished else None",
        "the first choice always",
        "the thread wakes up once each linger, and finds nothing to deliver",
    ),
    Equivalent(
        "client/time_search.py",
        "from_low = self.high - self.low <= self.width and not self.purged",
        "< in a comparison",
        "a span as wide as a probe is halved once more",
    ),
    Equivalent(
        "position.py",
        "known_end = max(here.snapshot_end, self.announced.end if self.announced else 0)",
        "one more",
        "the position is at seqno 0 then, where a snapshot is complete and begins at 0 in either case",
    ),
    Equivalent(
        "embedded/stream.py",
        "self._next = 0",
        "one more",
        "there are no items yet, and each snapshot begins at its first one",
    ),
    Equivalent(
        "client/follow/disk_wait.py",
        "if self.due is None or self._clock() < self.due:",
        "<= in a comparison",
        "the clock does not stop at one moment",
    ),
    Equivalent(
        "embedded/item_view.py",
        "if negotiated.values and not negotiated.compress and not datatypes & changed:",
        "a condition that never holds",
        "the items are rewritten one by one as they are",
    ),
    Equivalent(
        "cli/demo/scenario.py",
        "beyond = {vbucket: seqno + 1 for vbucket, seqno in self.highs_at_failure.items()}",
        "one more",
        "the writer goes on, so one change more arrives in every vbucket",
    ),
    Equivalent(
        "wire/forms.py",
        "forms = self._by_number[0] if magic is Magic.REQUEST and not self.typed else ()",
        "the other choice always",
        "requests are written in the longer way, to the same bytes",
    ),
    Equivalent(
        "wire/forms.py",
        "forms = self._by_number[0] if magic is Magic.REQUEST and not self.typed else ()",
        "is not in a comparison",
        "requests are written in the longer way, to the same bytes",
    ),
    Equivalent(
        "wire/forms.py",
        "self.only_form = forms[0] if len(forms) == 1 and forms[0].plain else None",
        "the other choice always",
        "requests are written in the longer way, to the same bytes",
    ),
    Equivalent(
        "wire/forms.py",
        "self.only_form = forms[0] if len(forms) == 1 and forms[0].plain else None",
        "one more",
        "requests are written in the longer way, to the same bytes",
    ),
    Equivalent(
        "client/stream.py",
        "before = dict(self._follower.positions) if self._names is not None else {}",
        "the first choice always",
        "positions are copied that nothing reads",
    ),
    Equivalent(
        "../codec/columns.pxi",
        "while i + 64 <= rows:",
        "< for <=",
        "the last 64 cells are counted one by one",
    ),
    Equivalent(
        "embedded/outbox.py",
        "return len(self._parts) < _MAX_PARTS and self._at + _HEADROOM <= CHUNK and not self.stalled",
        "< in a comparison",
        "how many bytes are sent at once is no matter of right or wrong",
    ),
    Equivalent(
        "wire/reading.py",
        "if meta_length > room - engine_length:",
        "+ for its opposite",
        "no message has both an engine section and a trailer",
    ),
    Equivalent(
        "embedded/system_event.py",
        "data += bytes(4)",
        "one more",
        "padding: readers find what follows by its offset",
    ),
    Equivalent(
        "cli/inspect.py",
        "self._mismatches = [0] * len(self._readers)",
        "one more",
        "the dialects are compared with each other",
    ),
    Equivalent(
        "client/follow/patience.py",
        "or now - self._logged.get((node, error.status), -_LOG_INTERVAL) < _LOG_INTERVAL",
        "<= in a comparison",
        "the clock does not stop at one moment",
    ),
    Equivalent(
        "wire/writing.py",
        "counted = len(infos) if infos and all(info.counted for info in frame.frame_info) else 0",
        "any for all",
        "an uncounted info is refused before, unless it is the only one",
    ),
    Equivalent(
        "embedded/management/http.py",
        "super().__init__(status)",
        "a step left out",
        "exceptions keep their arguments when they are created",
    ),
    Equivalent(
        "columns/row_filter.py",
        "beyond = bool(self._ends) and (",
        "or for its opposite",
        "rows are looked at that cannot be outside",
    ),
    Equivalent(
        "embedded/connection.py",
        "self._queued = 0",
        "one more",
        "how much is queued before answers wait is no matter of right or wrong",
    ),
    Equivalent(
        "cli/doctor_checks.py",
        'context.newest_cas = max([context.newest_cas or 0, *batch.to_arrow().column("cas").to_pylist()])',
        "one more",
        "no document has so low a CAS",
    ),
    Equivalent(
        "embedded/stream.py",
        "self.pause_at = 0",
        "one more",
        "a stream that pauses goes on in the next turn",
    ),
    Equivalent(
        "client/time_search.py",
        "return SeqnoSpan(self.high, self.high)",
        "self.low for self.high",
        "the two are equal at the end of a search",
    ),
    Equivalent(
        "client/agent.py",
        'self._map_source = HostPort("", 0)',
        "one more",
        "no node has sent a map yet, and no node has the name",
    ),
    Equivalent(
        "wire/writing.py",
        "close = get_close_matches(str(frame.name), dialect.by_name, 3)",
        "one more",
        "how many names an error suggests is no matter of right or wrong",
    ),
    Equivalent(
        "spark/driver_view.py",
        "self._hurries = True",
        "False for its opposite",
        "before the first observation there is none to wait for",
    ),
    Equivalent(
        "embedded/cluster.py",
        'check_document(encode_key(prefix) + bytes(10), b"", 0, 0, 0)',
        "one more",
        "the key is what is checked: all of these numbers are valid",
    ),
    *(
        Equivalent(
            "columns/document_schema.py",
            "if member[2] < 0:",
            rule,
            "level 0 is that of the struct itself, never that of a member",
        )
        for rule in ("<= in a comparison", "one more")
    ),
    Equivalent(
        "cli/doctor_checks.py",
        "if context.newest_cas is not None:",
        "a condition that never holds",
        "more changes are read than is necessary, and the newest is the same",
    ),
    Equivalent(
        "embedded/stream.py",
        "return MarkerFlag.MEMORY | (MarkerFlag.CHECKPOINT if entered else 0)",
        "one more",
        "1 is the flag MEMORY",
    ),
    Equivalent(
        "cli/inspect.py",
        "waiting, self._waiting, self._size = self._waiting, {}, 0",
        "one more",
        "how many bytes are decoded at once is no matter of right or wrong",
    ),
    Equivalent(
        "cli/doctor_checks.py",
        "super().__init__(str(problem), remedy)",
        "a step left out",
        "exceptions keep their arguments when they are created",
    ),
    Equivalent(
        "cli/inspect.py",
        "shown, start, hidden = console(), None, 0",
        "one more",
        "the first frame decides which columns are hidden",
    ),
    Equivalent(
        "cli/copy.py",
        '"seconds": round(seconds, 3),',
        "one more",
        "how many decimals a duration has is no matter of right or wrong",
    ),
    Equivalent(
        "client/tls.py",
        "size = self._read(len(buffer) - count, buffer[count:])",
        "+ for its opposite",
        "Python reads no more than the buffer has room for",
    ),
    *(
        Equivalent(
            "client/follow/node_link.py",
            "if not CAN_RECEIVE or self._unsent or session.agreement is None or isinstance(sock, TlsSocket):",
            rule,
            "the same bytes are received in pieces, which takes longer: the benchmarks measure it",
        )
        for rule in ("not left out", "is not in a comparison")
    ),
    Equivalent(
        "spark/admission.py",
        "sample = tuple(replace(part, end=min(part.end, part.start.seqno + _SEQNOS)) "
        "for part in longest if part.size > 0)",
        ">= in a comparison",
        "the stream of a range without seqnos ends at once, and adds nothing to the sample",
    ),
    Equivalent(
        "cli/doctor_checks.py",
        "starts = {vbucket: high - depth for vbucket, high in chosen.items() if vbucket in logs and high > depth}",
        ">= in a comparison",
        "a start at seqno 0 is the beginning, which a vbucket without a start has, too",
    ),
    Equivalent(
        "embedded/topology.py",
        "since = max((_journal_start(copy) for copy in copies), default=0)",
        "one more",
        "without copies there are no writes to compare with it",
    ),
    Equivalent(
        "embedded/store.py",
        "return next((item.cas for item in reversed(self) if isinstance(item, StoredItem)), 0)",
        "one more",
        "no document has so low a CAS",
    ),
    Equivalent(
        "embedded/users.py",
        'return ".".join(urlsafe_b64encode(part).decode().rstrip("=") for part in (*parts, secrets.token_bytes(32)))',
        "one more",
        "how many random bytes stand for a signature is no matter of right or wrong",
    ),
    Equivalent(
        "cli/doctor.py",
        "if context.client is not None:",
        "a condition that never holds",
        "the process ends, and its connections with it",
    ),
    Equivalent(
        "embedded/management/routes.py",
        "super().__init__(reason)",
        "a step left out",
        "exceptions keep their arguments when they are created, and only the response is read",
    ),
    Equivalent(
        "wire/writing.py",
        "form = None if family is None else family.only_form",
        "the first choice always",
        "the request is written as any other frame, which takes longer",
    ),
    Equivalent(
        "sync/engine.py",
        "self._emptied = {*range(selected.num_vbuckets or 0)}",
        "one more",
        "a client knows the number of vbuckets",
    ),
    Equivalent(
        "sync/engine.py",
        'if scope is None or any(path.startswith(f"{scope}.") for path in paths):',
        "all for any",
        "whether the scope exists is asked of the client, which answers the same",
    ),
    Equivalent(
        "sync/iceberg_target.py",
        "schema = schema_to_pyarrow(metadata.schema(), include_field_ids=False)",
        "True for its opposite",
        "PyIceberg writes the ids of the table's schema in either case",
    ),
    Equivalent(
        "embedded/legacy/backfill.py",
        "self._run = ItemRun(0, [])",
        "one more",
        "a run without items is of no vbucket",
    ),
    Equivalent(
        "embedded/legacy/tap.py",
        'flags = TapConnectFlag(int(frame.fields.get("flags", 0)))',
        "one more",
        "1 announces a date, which is read from the body",
    ),
    Equivalent(
        "embedded/legacy/tap.py",
        "stream = ServerTapStream(connection, flags, body.backfill or 0, as_specified=connection.dialect == DIALECT)",
        "one more",
        "no item is as old",
    ),
    Equivalent(
        "embedded/legacy/tap_stream.py",
        "self._reached[run.vbucket] = max(reached, self._reached.get(run.vbucket, 0))",
        "one more",
        "no item has a lower seqno",
    ),
    Equivalent(
        "embedded/bucket.py",
        "self._last_cas = 0",
        "one more",
        "no document has so low a CAS",
    ),
    Equivalent(
        "embedded/collection_filter.py",
        "if chosen is None or (0 in chosen and not vbucket.mixed):",
        "one more",
        "each item is looked at, and passes",
    ),
    Equivalent(
        "embedded/collection_filter.py",
        "chosen.add(item.collection_id or 0)",
        "one more",
        "the event of a collection that begins has its id",
    ),
    Equivalent(
        "embedded/store.py",
        "if self._collection_highs[0] != state:",
        "one more",
        "the seqnos are determined anew for each request",
    ),
    Equivalent(
        "embedded/store.py",
        "return found if isinstance(found, StoredItem) else None",
        "the first choice always",
        "the keys of system events are of another form",
    ),
    Equivalent(
        "embedded/store.py",
        "if seqno <= 0:",
        "a condition that never holds",
        "the items are collected from the end, which takes longer",
    ),
    Equivalent(
        "embedded/store.py",
        "self._commits.clear()",
        "a step left out",
        "commits of earlier checkpoints are read from disk, as versions",
    ),
    Equivalent(
        "embedded/subdocument.py",
        "return match.end() if match else at",
        "the first choice always",
        "the pattern matches any text",
    ),
    Equivalent(
        "embedded/subdocument.py",
        "value.end = match.end() if match else at",
        "the first choice always",
        "the text is JSON",
    ),
    Equivalent(
        "embedded/subdocument.py",
        "value.end = match.end() if match else at",
        "depth for at",
        "the text is JSON",
    ),
    Equivalent(
        "embedded/subdocument.py",
        "return _push(text, path[:-1], new, False, place)",
        "True for its opposite",
        "the array exists",
    ),
    Equivalent(
        "embedded/commands/features.py",
        "codes = [code for code in dict.fromkeys(requested) if _SINCE.get(code, (99, 0)) <= release.number]  "
        "# type: ignore[call-overload]",
        "one more",
        "no release is so new",
    ),
    Equivalent(
        "embedded/commands/range_scans.py",
        "found = [item for item in sorted(found, key=_key) if chance.random() < share]",
        "<= in a comparison",
        "a random number equals no share",
    ),
    Equivalent(
        "embedded/commands/range_scans.py",
        'first, exclusive_first = (b"", False) if chosen is None else _bound(chosen, "start", "excl_start")',
        "True for its opposite",
        "no key is empty",
    ),
    Equivalent(
        "embedded/commands/range_scans.py",
        'last, exclusive_last = (None, False) if chosen is None else _bound(chosen, "end", "excl_end")',
        "True for its opposite",
        "a range without an end has none to leave out",
    ),
    Equivalent(
        "embedded/commands/range_scans.py",
        "if not text.isdecimal() or len(text) > len(str(1 << 64)):",
        "one more",
        "the number has as many digits",
    ),
    Equivalent(
        "embedded/commands/subdoc_document.py",
        "self._checksum = secrets.token_hex(16)",
        "one more",
        "a longer text is as rare",
    ),
    Equivalent(
        "embedded/commands/subdoc_request.py",
        "known = sum(flag for flag in DocFlag if _NEWER_DOC_FLAGS.get(flag, (0, 0)) <= release.number)",
        "one more",
        "no release is so old",
    ),
    Equivalent(
        "embedded/outbox.py",
        "return len(self._parts) < _MAX_PARTS and self._at + _HEADROOM <= CHUNK and not self.stalled",
        "<= in a comparison",
        "how many bytes are sent at once is no matter of right or wrong",
    ),
    Equivalent(
        "embedded/outbox.py",
        "if len(data) <= CHUNK - self._at:",
        "a condition that never holds",
        "the same bytes are sent in buffers of their own",
    ),
    Equivalent(
        "embedded/outbox.py",
        "if len(data) <= CHUNK - self._at:",
        "+ for its opposite",
        "the same bytes are sent in a longer buffer",
    ),
    Equivalent(
        "embedded/stream.py",
        'return isinstance(item, StoredItem), item.key if isinstance(item, StoredItem | SystemItem) else b""',
        "the first choice always",
        "an out-of-order snapshot has no sync writes",
    ),
    Equivalent(
        "embedded/control/state.py",
        '"user": "" if connection.state.user is None else connection.state.user.name,',
        "the other choice always",
        "consumers have a user",
    ),
    Equivalent(
        "embedded/control/state.py",
        "self._seqnos = [-1] * len(state.bucket.owners)",
        "one more",
        "no seqno is negative",
    ),
    Equivalent(
        "embedded/control/state.py",
        "self._alive_at = 0.0",
        "a step left out",
        "the first event is never left out, and sets it",
    ),
    Equivalent(
        "embedded/management/http.py",
        "while (line_end := data.find(_LINE_END, begin)) >= 0:",
        "> in a comparison",
        "a body is behind its head",
    ),
    Equivalent(
        "embedded/faults/streams.py",
        "if out.stalled and self.hits < self.bytes:",
        "<= in a comparison",
        "nothing is left to acknowledge then",
    ),
    Equivalent(
        "embedded/faults/wires.py",
        "return data[: max(0, len(data) - (link.received - self.received_bytes))]",
        "one more",
        "one byte is no request",
    ),
    Equivalent(
        "embedded/management/streams.py",
        "self._revision = (0, 0)",
        "one more",
        "every map is newer",
    ),
    Equivalent(
        "embedded/link.py",
        "sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)",
        "one more",
        "any number but 0 is on",
    ),
    Equivalent(
        "embedded/link.py",
        "sent = self.socket.sendmsg(self._unsent[:_MAX_PARTS] if room is None else [self._unsent[0][:room]])",
        "the other choice always",
        "the same bytes are sent in more turns",
    ),
    Equivalent(
        "embedded/link.py",
        "return self._faults.room(self, now) if self._faults.active else None",
        "the first choice always",
        "without faults there is no limit",
    ),
    Equivalent(
        "embedded/server.py",
        "sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)",
        "one more",
        "any number but 0 is on",
    ),
    Equivalent(
        "embedded/cluster.py",
        'arguments.check_count("before", 0 if before is None else before, "seconds")',
        "one more",
        "the check accepts both",
    ),
    Equivalent(
        "embedded/legacy/upr.py",
        "return draft.respond(frame, Status.NOT_MY_VBUCKET, 0)",
        "one more",
        "only a rollback has a seqno",
    ),
    Equivalent(
        "embedded/legacy/upr.py",
        "return draft.respond(frame, Status.SUCCESS, 0)",
        "one more",
        "only a rollback has a seqno",
    ),
    Equivalent(
        "embedded/management/connection.py",
        "if sum(map(len, self._queued)) > _MAX_QUEUED:",
        ">= in a comparison",
        "how much is queued before answers wait is no matter of right or wrong",
    ),
    Equivalent(
        "embedded/legacy/upr.py",
        "return True",
        "False for its opposite",
        "the stream goes on in the next turn",
    ),
    Equivalent(
        "embedded/commands/range_scans.py",
        "if wanted.samples is not None and wanted.samples < len(found):",
        "<= in a comparison",
        "a sample of as many as there are has all of them",
    ),
    Equivalent(
        "embedded/commands/stat.py",
        "if not argument.isdecimal() or len(argument) > len(str(0xFFFF)):",
        "one more",
        "the number has as many digits",
    ),
    Equivalent(
        "embedded/store.py",
        "early = max(0, len(items) - JOURNAL)",
        "min for max",
        "the items are put one by one, which takes longer",
    ),
    Equivalent(
        "embedded/outbox.py",
        "self._begin = self._at = 0",
        "one more",
        "a byte of the chunk is not used",
    ),
    Equivalent(
        "embedded/outbox.py",
        "if len(data) <= CHUNK - self._at:",
        "< in a comparison",
        "the same bytes are sent in buffers of their own",
    ),
    Equivalent(
        "spark/planner.py",
        "first = names.index(part.node) if part.node in addresses else 0",
        "one more",
        "where the task of a vbucket without an owner connects first is no matter of right or wrong",
    ),
    Equivalent(
        "spark/stream_reader.py",
        "super().__init__(None)",
        "a step left out",
        "Spark pickles the partition as a whole, and never reads its value",
    ),
    Equivalent(
        "spark/newest.py",
        "self._identities.clear()",
        "a step left out",
        "the same rows are read, with more memory in use",
    ),
    Equivalent(
        "spark/newest.py", "self._writer.close()", "a step left out", "a stream of Arrow ends with its file, too"
    ),
    Equivalent(
        "spark/newest.py", "count = max(ends, default=0) + 1", "one more", "the arrays are longer than necessary"
    ),
    Equivalent("spark/resume.py", "return UNKNOWN_END - 1", "one more", "no seqno is so high"),
    Equivalent("client/tls.py", "if left <= 0:", "< in a comparison", "the clock does not stop at one moment"),
    Equivalent(
        "session/handshake.py",
        "known = OpenFlag if isinstance(features, OpenFlag) else features",
        "the other choice always",
        "from Python 3.11 on a combination of flags yields its flags",
    ),
    Equivalent(
        "cli/checkpoint.py",
        "back_to = rollback_point(resume, log, high_seqno, 0)",
        "one more",
        "no position but the beginning is below it, of which nothing was purged",
    ),
    Equivalent(
        "cli/inspect.py",
        "first = list(islice(frames, _TABLE_FRAMES + 1))",
        "one more",
        "one frame more is read before the first is printed",
    ),
    Equivalent(
        "session/session.py",
        "if stream is not None and stream.vbucket == vbucket and (stream.stream_id or 0) == sid:",
        "!= in a comparison",
        "the decoder refuses rows of other stream ids, and the stream is found in the longer way",
    ),
    Equivalent(
        "session/stream.py",
        "self.pass_snapshots(ends, start, end)",
        "end for start",
        "the snapshot before is complete, so that the window begins at its end in either case",
    ),
    Equivalent(
        "client/follow/node_link.py",
        "self._wake_receive.recv(4096)",
        "one more",
        "what is left in the socket wakes the thread again",
    ),
    Equivalent(
        "client/monitor.py",
        "if len(self._moments) > _MOST_MOMENTS:",
        ">= in a comparison",
        "one moment fewer is remembered",
    ),
    *(
        Equivalent("../codec/fast_path.pxi", line, rule, "the row is left to the general loop, which decodes it alike")
        for line, rule in (
            ("if size > left or <uint64_t>size > state.max_frame or body < 0 or key_size == 0:", "<= for <"),
            ("if size > left or <uint64_t>size > state.max_frame or body < 0 or key_size == 0:", ">= for >"),
            ("if seqno <= stream.floor or seqno > stream.highest:", ">= for >"),
            ("if keys.room - keys.used < key_size + 1 and not reserve_bytes(&keys, key_size + 1):", "or for and"),
            ("if values.room - values.used < body and not reserve_bytes(&values, body):", "or for and"),
        )
    ),
    *(
        Equivalent("../codec/fast_path.pxi", line, rule, "a byte of memory more is reserved")
        for line, rule in (
            ("if keys.room - keys.used < key_size + 1 and not reserve_bytes(&keys, key_size + 1):", "<= for <"),
            ("if keys.room - keys.used < key_size + 1 and not reserve_bytes(&keys, key_size + 1):", "+ 2 for + 1"),
            ("if values.room - values.used < body and not reserve_bytes(&values, body):", "<= for <"),
        )
    ),
    *(
        Equivalent("../codec/fast_path.pxi", line, rule, "it decides what is loaded ahead of time, not what is copied")
        for line in ("while ahead < 2 * size and ahead < size + <int64_t>PREFETCH_BYTES:",)
        for rule in ("<= for <", "or for and")
    ),
]

_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
# The same in the extension, whose language `ast` does not know.
_CODEC = {
    **{"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "and": "or", "or": "and"},
    **{"+ 1": "+ 2", "- 1": "- 0"},
}
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}


def modules(source: Path) -> list[str]:
    """Return the modules that rules apply to, below `dcp`."""
    package = source / "dcp"
    found = [path for room in ROOMS for path in (sorted((package / room).rglob("*.py")) or [package / room])]
    return [name for path in found if (name := path.relative_to(package).as_posix()) not in _TABLES]


def mutants(source: Path) -> list[Mutant]:
    """Return all mutants, in order, without the known equivalents."""
    found = (mutant for module in modules(source) for mutant in _Module(source / "dcp" / module, module).mutants())
    # Those of nested functions are found twice.
    once = {(mutant.module, mutant.start, mutant.text): mutant for mutant in reversed([*found])}
    return _without_equivalents(reversed([*once.values()]))


def _without_equivalents(found: Iterable[Mutant]) -> list[Mutant]:
    known = {(one.module, one.line, one.rule) for one in EQUIVALENTS}
    return [mutant for mutant in found if (mutant.module, mutant.line, mutant.rule) not in known]


def codec_mutants(source: Path) -> list[Mutant]:
    """Return the mutants of the extension, in order. Each of them has to be built, which takes most of its time."""
    found = list[Mutant]()
    for path in sorted((source / "codec").glob("*.pxi")):
        position = 0
        for number, line in enumerate(path.read_text("utf-8").splitlines(keepends=True), 1):
            code = line.partition("#")[0]
            # Words, declarations and what is not in a function.
            if code[:1] == " " and not re.search(r"[\"\']|\braise\b|\bcdef (?!.*=)|\bdef\b", code):
                for before, after in _CODEC.items():
                    for at in (match.start() for match in re.finditer(re.escape(f" {before} "), code)):
                        begin = position + len(line[: at + 1].encode())
                        name, rule = f"../codec/{path.name}", f"{after} for {before}"
                        end = begin + len(before)
                        found.append(Mutant(name, rule, begin, end, after, number, line.strip(), (number, number)))
            position += len(line.encode())
    return _without_equivalents(found)


class _Module:
    """The mutants of one module."""

    def __init__(self, path: Path, name: str) -> None:
        self._name = name
        self._data = path.read_bytes()
        self._lines = self._data.splitlines(keepends=True)
        self._begins = [0, *accumulate(map(len, self._lines))]
        self._statement = 0, 0
        # Names with the same annotation, the one after each: of the function's parameters, and of the object's fields.
        self._parameters: dict[str, str] = {}
        self._fields: dict[str, str] = {}
        # Names of moments that the function has read from the clock.
        self._moments: set[str] = set()

    def mutants(self) -> Iterator[Mutant]:
        """Yield the mutants of all functions. Those of a nested function are the outer one's."""
        tree = ast.parse(self._data)
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        fields = {function: _twins(_fields(each)) for each in classes for function in each.body}
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef) or function.name == "__repr__":
                continue
            self._fields = fields.get(function, {})
            self._moments = _moments(function)
            self._parameters = _twins([*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs])
            for statement in function.body:
                for node in ast.walk(statement):
                    if isinstance(node, ast.stmt):
                        yield from self._of_statement(node)

    def _of_statement(self, node: ast.stmt) -> Iterator[Mutant]:
        if _is_words(node):
            return
        # Statements inside of it have mutants of their own.
        children = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        self._statement = node.lineno, max([node.lineno, *(child.end_lineno or 0 for child in children)])
        if _is_step(node):
            yield self._change(node, "pass", "a step left out")
        elif isinstance(node, ast.If | ast.While):
            yield self._change(node.test, "False", "a condition that never holds")
        for child in children:
            for each in _walk(child):
                yield from self._of_expression(each)

    def _of_expression(self, node: ast.AST) -> Iterator[Mutant]:
        if isinstance(node, ast.Compare) and not _is_of_time(node, self._moments):
            for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                instead = _COMPARED[type(operator)]
                yield self._between(left, right, instead, f"{instead} in a comparison")
        elif isinstance(node, ast.BoolOp):
            instead = "or" if isinstance(node.op, ast.And) else "and"
            for left, right in pairwise(node.values):
                yield self._between(left, right, instead, f"{instead} for its opposite")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield self._change(node, f"({ast.unparse(node.operand)})", "not left out")
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            instead = "-" if isinstance(node.op, ast.Add) else "+"
            if not isinstance(node.left, ast.JoinedStr | ast.List):
                yield self._between(node.left, node.right, instead, f"{instead} for its opposite")
        elif isinstance(node, ast.IfExp):
            yield self._change(node, f"({ast.unparse(node.body)})", "the first choice always")
            yield self._change(node, f"({ast.unparse(node.orelse)})", "the other choice always")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLED:
            yield self._change(node.func, _CALLED[node.func.id], f"{_CALLED[node.func.id]} for {node.func.id}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield self._change(node, str(not node.value), f"{not node.value} for its opposite")
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield self._change(node, str(node.value + 1), "one more")
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in self._parameters:
            yield self._change(node, self._parameters[node.id], f"{self._parameters[node.id]} for {node.id}")
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in self._fields:
            yield self._change(node, other := self._fields[ast.unparse(node)], f"{other} for {ast.unparse(node)}")

    def _at(self, line: int, column: int) -> int:
        return self._begins[line - 1] + column

    def _change(self, node: ast.stmt | ast.expr, text: str, rule: str) -> Mutant:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin, end = self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)
        return self._mutant(begin, end, text, rule, node.lineno)

    def _between(self, left: ast.expr, right: ast.expr, text: str, rule: str) -> Mutant:
        """Return a change of the operator between two operands."""
        assert left.end_lineno is not None
        assert left.end_col_offset is not None
        begin, end = self._at(left.end_lineno, left.end_col_offset), self._at(right.lineno, right.col_offset)
        # The brackets of the operands stay where they are.
        between = self._data[begin:end]
        found = re.search(rb"not\s+in|is\s+not|is|in|and|or|[<>=!]=|[<>+-]", between)
        assert found is not None, between
        return self._mutant(begin + found.start(), begin + found.end(), text, rule, left.end_lineno)

    def _mutant(self, begin: int, end: int, text: str, rule: str, number: int) -> Mutant:
        return Mutant(
            self._name, rule, begin, end, text, number, self._lines[number - 1].decode().strip(), self._statement
        )


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of an expression, but not those of texts, nor what zip asserts by `strict`."""
    if isinstance(node, ast.JoinedStr):
        return
    yield node
    of_zip = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "zip"
    for child in ast.iter_child_nodes(node):
        if not (of_zip and isinstance(child, ast.keyword)):
            yield from _walk(child)


def _fields(node: ast.ClassDef) -> list[ast.arg]:
    """Return the fields that a class declares, as methods name them."""
    return [
        ast.arg(f"self.{each.target.id}", each.annotation)
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    ]


def _twins(names: list[ast.arg]) -> dict[str, str]:
    """Return the next name of the same type for each name: what a reader may take it for."""
    alike: dict[str, list[str]] = {}
    for each in names:
        if each.annotation is not None:
            alike.setdefault(ast.unparse(each.annotation), []).append(each.arg)
    return {name: other for group in alike.values() for name, other in pairwise([*group, group[0]]) if name != other}


def _is_of_time(node: ast.Compare, moments: set[str]) -> bool:
    """Return whether a moment is compared with the clock, which does not stop there: both bounds mean the same.

    moments: names of what the clock showed.
    """
    ordered = all(isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for operator in node.ops)
    return ordered and any(
        _reads_clock(part) or (isinstance(part, ast.Name) and part.id in moments) for part in ast.walk(node)
    )


def _moments(function: ast.FunctionDef) -> set[str]:
    return {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and _reads_clock(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _reads_clock(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "time.monotonic"


def _is_step(node: ast.stmt) -> bool:
    """Return whether a statement can be left out without a name that is missing later."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call | ast.Yield)
    if isinstance(node, ast.Assign):
        return all(isinstance(each, ast.Attribute) for each in node.targets)
    return isinstance(node, ast.AugAssign | ast.Continue | ast.Break)


def _is_words(node: ast.stmt) -> bool:
    """Return whether a statement says something to people."""
    if isinstance(node, ast.Raise | ast.Assert):
        return True
    call = node.value if isinstance(node, ast.Expr | ast.Return) else None
    while isinstance(call, ast.Call | ast.Attribute):
        call = call.func if isinstance(call, ast.Call) else call.value
    return isinstance(call, ast.Name) and (call.id in _WORDS or call.id.endswith("Error"))
