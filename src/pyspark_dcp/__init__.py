"""Registration of `format("dcp")`: Spark imports every installed module named pyspark_* and uses its DefaultSource."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from dcp.spark import DcpDataSource


class DefaultSource(DataSource):  # type: ignore[misc]
    """Stand-in that creates a DcpDataSource.

    Spark imports this module for a lookup of any data source, so it must not import dcp until `dcp` is asked for.
    """

    # Spark calls the class with the options, and uses whatever object that returns.
    def __new__(cls, options: dict[str, str]) -> DcpDataSource:
        from dcp.spark import DcpDataSource

        return DcpDataSource(options)

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "dcp"
