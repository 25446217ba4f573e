"""Formats of tables with MERGE: the newest of each that runs on the installed Spark, with its jars of Maven Central."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@dataclass(frozen=True)
class Lake:
    """A format, and what a session needs for it. `schema`: where its tables are."""

    format: str
    packages: str
    schema: str
    settings: dict[str, str] = field(default_factory=dict)

    def options(self, at: Path) -> dict[str, str]:
        """Return the settings of a session whose tables are in a directory."""
        return {key: value.format(at=at) for key, value in self.settings.items()} | {
            "spark.jars.packages": self.packages
        }


ICEBERG = Lake(
    "iceberg",
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "lake.db",
    {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        # A session would see what it read before for 30 s; a query writes in a session of its own.
        "spark.sql.catalog.lake.cache-enabled": "false",
        "spark.sql.catalog.lake.warehouse": "{at}/iceberg",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    },
)
DELTA = Lake(
    "delta",
    "io.delta:delta-spark_4.2_2.13:4.4.0",
    "default",
    {
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.warehouse.dir": "{at}/delta",
        # Its default is for large tables.
        "spark.databricks.delta.snapshotPartitions": "1",
    },
)
NONE = "no format of tables with MERGE runs on this version of Spark: `make tables` tries Delta and Iceberg on theirs"


def lake() -> Lake | None:
    """Return the format for the installed Spark; None if there is none."""
    try:
        return {"4.1": ICEBERG, "4.2": DELTA}.get(".".join(version("pyspark").split(".")[:2]))
    except PackageNotFoundError:
        return None
