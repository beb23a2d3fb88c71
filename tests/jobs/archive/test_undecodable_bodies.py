"""A message whose body cannot be decompressed stops no bulk read, export or import."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pytest

from actors.transport.client import RemotingClient
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.hot_headers import SendMessageHeader
from cluster.client import Admin
from jobs import export_topic, import_topic, read_queue
from jobs.job_errors import BodyInvalid
from jobs.reading.options.read_options import ReadOptions
from jobs.reading.options.topics import TopicNames
from jobs.reading.plan import plan_read
from jobs.reading.schema import BODY_ERROR
from store.common.clock import SystemClock
from store.message.sys_flag import COMPRESSED
from tests.eventually import LIMIT_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOOD, BAD = b'{"id": 1}', b'{"id": 2}'


@pytest.fixture(scope="module")
def topic(empty_cluster: str) -> str:
    """Return a topic with three messages in one queue; the sender marked the second one as compressed."""
    name = f"undecodable-{uuid4().hex[:8]}"
    with Admin(empty_cluster) as admin:
        admin.create_topic(name, queues=1, brokers=["broker-a"])
        address = admin.route(name).addresses["broker-a"][0]

    async def send() -> None:
        client = RemotingClient(SystemClock())
        for sys_flag, body in ((0, GOOD), (COMPRESSED, BAD), (0, GOOD)):
            header = SendMessageHeader("raw", name, 0, "", sys_flag, 1)
            command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, header.to_ext(), body)
            response = await client.invoke(address, command, int(LIMIT_S * 1000))
            assert response.code == ResponseCode.SUCCESS, response.remark
        await client.close()

    asyncio.run(send())
    return name


def rows(nameservers: str, topic: str, mode: str, *, map_files: bool = True) -> list[dict[str, object]]:
    options = ReadOptions(
        TopicNames((topic,)),
        nameservers=nameservers,
        columns=("body", BODY_ERROR),
        map_files=map_files,
        mode=mode,
    )
    plan = plan_read(options)
    found: list[dict[str, object]] = pa.Table.from_batches(plan.reader(plan.ranges).read_all()).to_pylist()
    return found


@pytest.mark.parametrize("map_files", [True, False])
def test_modes_keep_drop_or_refuse_undecodable_bodies(
    empty_cluster: str, topic: str, map_files: bool
) -> None:
    kept = rows(empty_cluster, topic, "PERMISSIVE", map_files=map_files)
    assert [row["body"] for row in kept] == [GOOD, BAD, GOOD]
    assert [bool(row[BODY_ERROR]) for row in kept] == [False, True, False]
    dropped = rows(empty_cluster, topic, "DROPMALFORMED", map_files=map_files)
    assert [row["body"] for row in dropped] == [GOOD, GOOD]
    with pytest.raises(BodyInvalid, match=f"{topic}/broker-a/0 offset 1: body of 9 bytes cannot be decompr"):
        rows(empty_cluster, topic, "FAILFAST", map_files=map_files)


def test_export_and_import_keep_undecodable_bodies(empty_cluster: str, topic: str, tmp_path: Path) -> None:
    assert export_topic(topic, tmp_path, nameservers=empty_cluster).rows == 3
    copy = f"copy-{topic}"
    assert import_topic(tmp_path, copy, nameservers=empty_cluster).rows == 3
    assert [row["body"] for row in rows(empty_cluster, copy, "FAILFAST")] == [GOOD, BAD, GOOD]


@pytest.mark.spark
def test_spark_reads_undecodable_bodies_by_mode(spark: SparkSession, empty_cluster: str, topic: str) -> None:
    plain = read_queue(spark, topic, nameservers=empty_cluster, columns=["body"], mode="dropMalformed")
    assert [bytes(row["body"]) for row in plain.collect()] == [GOOD, GOOD]
    typed = read_queue(
        spark,
        topic,
        nameservers=empty_cluster,
        schema="id BIGINT, _corrupt_record STRING",
        format="json",
        columns=["queueOffset"],
    )
    found = [(row["id"], row["_corrupt_record"]) for row in typed.orderBy("queueOffset").collect()]
    assert found == [(1, None), (None, BAD.decode()), (1, None)]
