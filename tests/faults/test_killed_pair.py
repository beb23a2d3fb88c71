"""A master with `replication: sync` and its slave are killed under consumers, and the slave is promoted."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import uvloop

from actors.broker.broker_settings import BrokerSettings
from actors.broker.replication.progress_log import MARK_GROUP
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.headers import QueryConsumerOffsetHeader, UpdateConsumerOffsetHeader
from cluster.client import ClientError, Message, Producer
from store.store_settings import StoreSettings
from tests.actors.broker.brokers import serving
from tests.compat.replication.slave import Slave
from tests.eventually import eventually, eventually_async
from tests.faults.pop_consumers import Consumers
from tests.faults.standalone_process import StandaloneProcess

COUNT = 2000
FILE_BYTES = 16 << 20
STORE = ("--store", f"commit_log_file_bytes={FILE_BYTES}", "--flush", "async")
SYNC = (*STORE, "--broker", "replication=sync")
CREATE_GROUP = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP


def send(nameserver: str) -> None:
    with Producer(nameserver, "PG") as producer:

        def is_sent() -> bool:
            try:
                producer.send(Message("T", b"the first"))
            except ClientError:
                return False
            return True

        eventually(is_sent, "the slave is in sync")
        producer.send_batch([Message("T", b"%010d" % number) for number in range(COUNT)])


def has_mark(slave: Slave) -> bool:
    """Return True if the slave has saved where the records begin that its tables may lack."""
    path = slave.store_root / "config" / "consumerOffset.json"
    return path.exists() and MARK_GROUP in path.read_text() and not slave.describe()["missing_tables"]


class Commits:
    """A consumer that commits one offset after the other until it gets no response."""

    def __init__(self, consumers: Consumers) -> None:
        self.sent = self.acknowledged = 0
        self._consumers = consumers
        self.task = asyncio.ensure_future(self._commit())

    async def _commit(self) -> None:
        await self._consumers.ask(CREATE_GROUP, {}, json.dumps({"groupName": "CG"}).encode())
        while True:
            self.sent += 1
            header = UpdateConsumerOffsetHeader("CG", "T", 0, self.sent)
            response = await self._consumers.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header.to_ext())
            if response is None or response.code != ResponseCode.SUCCESS:
                return
            self.acknowledged = self.sent

    async def committed(self) -> int:
        header = QueryConsumerOffsetHeader("CG", "T", 0, set_zero_if_not_found=False)
        response = await self._consumers.ask(RequestCode.QUERY_CONSUMER_OFFSET, header.to_ext())
        assert response is not None
        return int(response.ext["offset"])


def test_killed_sync_pair_loses_no_acknowledged_ack_or_commit(tmp_path: Path) -> None:
    """The tables that the slave has copied are some seconds old."""
    master = StandaloneProcess(tmp_path / "m", SYNC)
    slave = Slave(tmp_path / "s", master.nameserver, STORE)

    async def story() -> None:
        consumers = Consumers(random.Random(43))
        consumers.address = master.broker
        commits = Commits(consumers)
        await consumers.more(COUNT // 4)
        consumers.address = ""
        master.kill()
        slave.kill()
        await commits.task
        slave.store_root.rename(tmp_path / "store")
        store = StoreSettings.model_validate({"commit_log_file_bytes": FILE_BYTES})
        promoted = BrokerSettings(listen_port=0, store_root=tmp_path / "store", store=store, replica=1)
        async with serving(promoted) as peer:
            consumers.address = peer.broker.address
            assert commits.acknowledged <= await commits.committed() <= commits.sent
            await eventually_async(lambda: len(consumers.acked) >= COUNT + 1)
            await consumers.stop()
        assert consumers.again == []
        assert commits.acknowledged > 0

    try:
        with slave:
            send(master.nameserver)
            eventually(lambda: has_mark(slave), "the slave has saved its tables")
            uvloop.run(story())
    finally:
        master.process.kill()
