"""Seeds of the fuzzers: frames from documents, streams from servers, and a few random inputs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

from tests.conformance import TRANSCRIPTS, cut, transcript, vectors
from tests.fuzz.rows import DIALECTS, OPTIONS_LENGTH
from tests.fuzz.stream import BUILT, NAMES, RAW, REPAIRED

LONGEST = 1500
FRAMES = 8


@cache
def _streams() -> tuple[tuple[str, bytes], ...]:
    """Yield (dialect, bytes): single frames and short sequences; each kind of frame a few times at most."""
    found = [(vector.dialect, data) for vector in vectors() for data in dict.fromkeys((vector.drawn, vector.sound))]
    seen: dict[object, int] = {}
    for path in TRANSCRIPTS:
        talk = transcript(path)
        for _, data in talk.streams:
            pieces = cut(data)
            for at in range(0, len(pieces), FRAMES):
                run = pieces[at : at + FRAMES]
                looks = talk.dialect, tuple(piece[:2] + piece[4:6] for piece in run)
                seen[looks] = seen.get(looks, 0) + 1
                if seen[looks] < 3:
                    found.append((talk.dialect, b"".join(run)[:LONGEST]))
    return tuple(found)


def seeds(target: str) -> Iterator[bytes]:
    """Yield the seeds of a target."""
    chance = random.Random(target)
    if target == "documents":
        yield from _documents(chance)
        return
    for i, (dialect, stream) in enumerate(_streams()):
        if target == "frames":
            yield bytes([NAMES.index(dialect) | (RAW, REPAIRED)[i & 1] << 2]) + stream
        elif target == "splitter":
            yield chance.randbytes(2) + b"\0" + stream
        elif target == "codec":
            number = DIALECTS.index(dialect)
            yield bytes([number | chance.randrange(64) << 2, chance.randrange(256), i & 255, 0, i & 127]) + stream
        elif target in ("bodies", "encoder"):
            yield bytes([48 + i % 208]) + chance.randbytes(4) + stream[24:]
        else:
            yield _options(chance, dialect, (RAW, REPAIRED)[i & 1]) + stream
    for i in range(400):
        rest = chance.randbytes(20 + 4 * i)
        if target == "frames":
            yield bytes([i & 3 | BUILT << 2]) + rest
        elif target in ("splitter", "bodies", "codec", "encoder"):
            yield rest
        else:
            yield _options(chance, NAMES[i & 3], BUILT) + rest


# Pieces of JSON, sound and broken.
_JSON = (
    *('{"a":1,"b":2.5e3,"c":"x\\u00e9\\n","d":true,"e":{"a":7,"b":"y"},"f":[1,2,null],"g":{"a":1,"a":2,"b":null}}',),
    *('{"a":12.50,"b":"0.000000001","c":"2026-02-28","d":"2026-02-28T23:59:59.123456789+05:30","g":"aGk="}',),
    *('{"e":"2026-02-28T23:59","f":1700000000.123,"h":-128,"a":1e37,"c":"0001-01-01","d":"9999-12-31T00:00Z"}',),
    *('{"a":{"x":[1,{"y":"]}"}]},"b":[1, [2] ,"\\"",{}],"c":{"k":[],"k":0},"d":[[1],[ ]],"e":{"a":null,"b":[true]}}',),
    *('{"e":{"a":"x","b":{"c":9007199254740993}},"d":[{"a":"b"},{"b":1},5]}', '[{"a":1,"b":["x"]},null,{}]'),
    *('{"a":{"b":1,"c":2},"d":{}}', '"\\ud83d"', '{"a":"\\ud83d\\ude00\\udc00"}', "-0", "[", '{"a"', "nul", " ", "{}"),
)


def _documents(chance: random.Random) -> Iterator[bytes]:
    for text in _JSON:
        for schema in range(7):
            yield bytes([schema, chance.randrange(16)]) + text.encode()
            yield bytes([schema, chance.randrange(16)]) + text.encode() + b"\xff\xfe" + chance.choice(_JSON).encode()


def _options(chance: random.Random, dialect: str, mode: int) -> bytes:
    """Yield options: the defaults for half of the inputs, random ones for the other half."""
    number = DIALECTS.index(dialect)
    options = bytearray(OPTIONS_LENGTH)
    if chance.random() < 0.5:
        options[:] = chance.randbytes(OPTIONS_LENGTH)
        options[5] = options[6] = 0
    options[0] = options[0] & 0xF0 | mode << 2 | number
    return bytes(options)
