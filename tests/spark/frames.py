"""Both ways of a batch read into a DataFrame: mapInArrow and the data source."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

import dcp.spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Read = Callable[..., "DataFrame"]


def with_map_in_arrow(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    """Read over mapInArrow."""
    return dcp.spark.read(spark, url, **options)


def with_data_source(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    """Read over `format("dcp")`."""
    return spark.read.format("dcp").options(url=url, **options).load()


BOTH_WAYS = pytest.mark.parametrize("read", [with_map_in_arrow, with_data_source])
