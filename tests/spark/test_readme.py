"""The examples of the README and of the first pages that need Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.pages import FIRST, Example, examples, output

EXAMPLES = {
    f"{page.stem} {name}": example for page in FIRST for name, example in examples(page).items() if example.needs_spark
}

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_an_example_prints_the_output_below_it(spark: SparkSession, example: Example) -> None:
    """Run an example. Its getOrCreate() returns the session of the tests."""
    assert output(example.code).strip() == example.prints.strip()
