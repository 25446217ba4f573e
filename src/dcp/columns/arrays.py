"""Arrow arrays from values and back, without what makes pyarrow import pandas.

`pyarrow.array`, `to_numpy` and scalars do, which takes a quarter of a second: too long for each process of Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


def texts(values: Sequence[str | None]) -> pa.StringArray:
    """Return texts as an array; None is null."""
    import numpy
    import pyarrow as pa

    encoded = [(value or "").encode() for value in values]
    ends = numpy.fromiter(accumulate(map(len, encoded), initial=0), numpy.int32)
    valid = numpy.packbits(numpy.fromiter((value is not None for value in values), bool), bitorder="little")
    return pa.StringArray.from_buffers(
        len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)), pa.py_buffer(valid)
    )


def integers(values: np.ndarray[Any, Any]) -> pa.Int64Array:
    """Return 64-bit numbers as an array. They are not copied."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def booleans(values: np.ndarray[Any, Any]) -> pa.BooleanArray:
    """Return truth values as an array."""
    import numpy
    import pyarrow as pa

    bits = numpy.packbits(values, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)])


def numbers(column: pa.Array) -> np.ndarray[Any, Any]:
    """Return the numbers of an array of a fixed width, without a copy. Where it is null, they may be any."""
    import numpy

    width = numpy.dtype(str(column.type))
    return numpy.frombuffer(column.buffers()[1], width, len(column), column.offset * width.itemsize)


def truths(column: pa.BooleanArray) -> np.ndarray[Any, Any]:
    """Return the truth values of an array without nulls."""
    import numpy

    bits = numpy.frombuffer(column.buffers()[1], numpy.uint8)
    found = numpy.unpackbits(bits, count=column.offset + len(column), bitorder="little")
    return found[column.offset :].astype(bool)
