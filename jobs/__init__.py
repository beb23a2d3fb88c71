"""Read and write queues with Spark (`…_queue`) and Ray Data (`…_dataset`), and export topics to Parquet.

Imported lazily, because pyspark and ray are slow to load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs.archive.export import export_topic
    from jobs.archive.import_topic import import_topic
    from jobs.ray_data.read import read_dataset
    from jobs.ray_data.write import write_dataset
    from jobs.reading.group_offsets import commit_read
    from jobs.reindex.key_index import index_keys
    from jobs.reindex.live import repair_store
    from jobs.reindex.offline import reindex_store
    from jobs.reindex.reshard import reshard_topic
    from jobs.spark.read_queue import read_queue
    from jobs.spark.session import local_session, raydp_session
    from jobs.spark.stream.read_stream import read_stream
    from jobs.spark.write_queue import write_queue

__all__ = [
    "commit_read",
    "export_topic",
    "import_topic",
    "index_keys",
    "local_session",
    "raydp_session",
    "read_dataset",
    "read_queue",
    "read_stream",
    "reindex_store",
    "repair_store",
    "reshard_topic",
    "write_dataset",
    "write_queue",
]

_MODULES = {
    "commit_read": "jobs.reading.group_offsets",
    "export_topic": "jobs.archive.export",
    "import_topic": "jobs.archive.import_topic",
    "read_queue": "jobs.spark.read_queue",
    "read_dataset": "jobs.ray_data.read",
    "read_stream": "jobs.spark.stream.read_stream",
    "index_keys": "jobs.reindex.key_index",
    "reindex_store": "jobs.reindex.offline",
    "repair_store": "jobs.reindex.live",
    "reshard_topic": "jobs.reindex.reshard",
    "write_dataset": "jobs.ray_data.write",
    "write_queue": "jobs.spark.write_queue",
    "local_session": "jobs.spark.session",
    "raydp_session": "jobs.spark.session",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'jobs' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)
