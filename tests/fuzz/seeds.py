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
    for i, (dialect, stream) in enumerate(_streams()):
        if target == "frames":
            yield bytes([NAMES.index(dialect) | (RAW, REPAIRED)[i & 1] << 2]) + stream
        elif target == "splitter":
            yield chance.randbytes(2) + b"\0" + stream
        elif target == "codec":
            number = DIALECTS.index(dialect)
            yield bytes([number | chance.randrange(64) << 2, chance.randrange(256), i & 255, 0, i & 63]) + stream
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


def _options(chance: random.Random, dialect: str, mode: int) -> bytes:
    """Yield options: the defaults for half of the inputs, random ones for the other half."""
    number = DIALECTS.index(dialect)
    options = bytearray(OPTIONS_LENGTH)
    if chance.random() < 0.5:
        options[:] = chance.randbytes(OPTIONS_LENGTH)
        options[5] = options[6] = 0
    options[0] = options[0] & 0xF0 | mode << 2 | number
    return bytes(options)
