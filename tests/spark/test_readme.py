"""The examples of the README that need Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.pages import README, examples, output

EXAMPLES = examples(README)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("name", ["Spark: read a bucket", "Spark: follow a bucket"])
def test_an_example_prints_the_output_below_it(spark: SparkSession, name: str) -> None:
    """Run an example. Its getOrCreate() returns the session of the tests."""
    assert output(EXAMPLES[name].code).strip() == EXAMPLES[name].prints.strip()
