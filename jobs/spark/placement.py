"""Places the splits of a Spark read: a partition prefers the executors on the Ray node of its broker."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from jobs.reading.reader import AnySplit
from jobs.spark.java import java_package, java_session


def split_indexes(spark: SparkSession, splits: Sequence[AnySplit]) -> DataFrame:
    """Return a DataFrame with the indexes of `splits`, one per partition.

    In a cluster, Spark runs a partition on the node of its broker, unless the node has no executors or all of
    these stay busy for `spark.locality.wait` (3 s). RayDP's executors use the address of their Ray node as
    their host name.
    """
    nodes = [each.location.node_ip for each in splits]
    if spark.sparkContext.master.startswith("local") or not any(nodes):
        return spark.range(0, len(splits), 1, len(splits))
    return placed_indexes(spark, nodes)


def placed_indexes(spark: SparkSession, nodes: Sequence[str]) -> DataFrame:
    """Return a DataFrame with the indexes of `nodes`, one per partition, which prefers its node unless ""."""
    # PySpark's `parallelize` has no preferred locations, Scala's `makeRDD` has.
    java = java_package(spark)
    to_seq, any_class = java.PythonUtils.toSeq, getattr(java.scala.reflect, "ClassTag$")
    pairs = [java.scala.Tuple2(index, to_seq([node] if node else [])) for index, node in enumerate(nodes)]
    context = java_session(spark).sparkContext()
    indexes = context.makeRDD(to_seq(pairs), getattr(any_class, "MODULE$").Any())
    dataset = java_session(spark).createDataset(indexes, java.org.apache.spark.sql.Encoders.INT())
    return DataFrame(dataset.toDF(), spark)
