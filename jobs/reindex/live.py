"""`repair_store`: replace damaged consume queue files of a running broker, with Spark."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from cluster.client import Admin
from cluster.client.config import Nameservers
from cluster.client.errors import BrokerRefused
from jobs.job_errors import ReindexFailed
from jobs.reindex.offline import SparkEngine, errors_raised
from store.ownership.identity import read_name
from store.tools.reindex.run import Repaired, repair
from store.tools.reindex.sealed import SealedFile


def repair_store(
    spark: SparkSession,
    store: str | Path,
    *,
    nameservers: Nameservers | None = None,
    message_delay_level: str | None = None,
) -> Repaired:
    """Compare the full consume queue files of a running broker with its log, and replace those that differ.

    The job writes new files into `raymq.reindex` in the store's directory. The broker verifies each file
    against its log and puts it in place by rename, while it serves clients. The log is read up to the
    position of the broker's last checkpoint. Index files, the last file of each queue, and files with
    damaged records are not replaced: see `reindex_store`, for a stopped store.

    Args:
        spark: The session. All executors need access to the store's directory.
        store: The directory of the store, the parent of `commitlog`.
        nameservers: "host:port;host:port", a list, or None for the value of the environment or the default.
        message_delay_level: The broker's delay levels, if they are not RocketMQ's.

    Raises:
        ReindexFailed: There is no store, no broker has it open, or its files cannot be read or written.
        ClientError: The broker cannot be reached.
    """
    with errors_raised(), Admin(nameservers) as admin:
        name = read_name(Path(store))
        if name is None:
            raise ReindexFailed(f"{store}: not a store of RayMQ: it has no raymq.json")

        def replace(file: SealedFile) -> str | None:
            try:
                admin.replace_queue_file(name.identity.broker, *file)
            except BrokerRefused as error:
                return str(error)
            return None

        return repair(
            SparkEngine(spark),
            Path(store),
            replace,
            message_delay_level=message_delay_level,
        )
