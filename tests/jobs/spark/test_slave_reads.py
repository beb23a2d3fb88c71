"""A Spark read of a topic whose broker has only a slave."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cluster.client.errors import BrokerUnreachable
from jobs import read_queue
from tests.actors.broker.brokers import run
from tests.actors.broker.replication.ha.test_slave_bulk_reads import pair, until_gone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.extended]


def test_spark_reads_from_a_slave_without_a_master(spark: SparkSession, tmp_path: Path) -> None:
    def bodies(nameserver: str, **options: Any) -> list[bytes]:
        frame = read_queue(spark, "T", nameservers=nameserver, columns=["body"], **options)
        return [bytes(row.body) for row in frame.collect()]

    async def story() -> None:
        async with pair(tmp_path, slave_read_enable=True) as (nameserver, master, _):
            await until_gone(nameserver, master)
            for is_mapped in (True, False):
                found = await asyncio.to_thread(bodies, nameserver, replica="any", mapFiles=is_mapped)
                assert found == [b"first"]
            with pytest.raises(BrokerUnreachable, match="has no master"):
                await asyncio.to_thread(bodies, nameserver)

    run(story)
