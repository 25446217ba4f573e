"""The examples of the README that need a Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.test_readme import EXAMPLES, output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("name", ["Spark: read a bucket", "Spark: follow a bucket"])
def test_an_example_prints_what_stands_below_it(spark: SparkSession, name: str) -> None:
    """The session that it asks for is the one that is there."""
    assert output(EXAMPLES[name].code).strip() == EXAMPLES[name].prints.strip()
