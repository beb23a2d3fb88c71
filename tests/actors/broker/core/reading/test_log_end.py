"""A broker that does not know the end of its log moves no offset, and gives no end of a queue.

After a kill, the end of a log that depends on other replicas is confirmed only when they have it again. Until
then the part that is known to be confirmed ends at the last checkpoint.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import actors
from actors.wire.admin_headers import (
    BrokerConsumeStatsHeader,
    ConsumeQueueHeader,
    ConsumeStatsHeader,
    GroupTopicHeader,
    ResetOffsetHeader,
)
from actors.wire.bodies.pops import NotificationHeader, PeekMessageHeader, PopMessageHeader
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import (
    QueryConsumerOffsetHeader,
    QueryMessageHeader,
    SearchOffsetHeader,
    TopicHeader,
    TopicQueueHeader,
)
from tests.actors.broker.brokers import (
    A_DAY_MS,
    HOLD_MS,
    Peer,
    registered_broker,
    run,
    serving,
    slave_of,
)
from tests.actors.broker.features.transactions.transactions import COMMIT, begin, copy_store, end
from tests.actors.broker.replication.ha.slaves import figure, master_of, until
from tests.actors.broker.replication.ha.slaves import slave_of as fake_slave_of
from tests.eventually import eventually_async
from tests.ports import free_port

COUNT = 20
NO_CHECKPOINT = {"checkpoint_interval_ms": A_DAY_MS}
MOVED, NOT_FOUND = ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_NOT_FOUND

NEED_THE_END: dict[str, tuple[int, dict[str, str]]] = {
    "max offset": (RequestCode.GET_MAX_OFFSET, TopicQueueHeader("T", 0).to_ext()),
    "lower time": (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetHeader("T", 0, 1).to_ext()),
    "upper time": (
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        SearchOffsetHeader("T", 0, 2**61, boundary_type="UPPER").to_ext(),
    ),
    "first time": (RequestCode.GET_EARLIEST_MSG_STORETIME, TopicQueueHeader("T", 0).to_ext()),
    "key": (RequestCode.QUERY_MESSAGE, QueryMessageHeader("T", "k", 1, 0, 2**61).to_ext()),
    "splits": (RayMQRequestCode.DESCRIBE_SPLITS, TopicHeader("T").to_ext()),
    "topic stats": (RequestCode.GET_TOPIC_STATS_INFO, TopicHeader("T").to_ext()),
    "group stats": (RequestCode.GET_CONSUME_STATS, ConsumeStatsHeader("CG", "T").to_ext()),
    "all stats": (RequestCode.GET_BROKER_CONSUME_STATS, BrokerConsumeStatsHeader().to_ext()),
    "time span": (RequestCode.QUERY_CONSUME_TIME_SPAN, GroupTopicHeader("CG", "T").to_ext()),
    "units": (RequestCode.QUERY_CONSUME_QUEUE, ConsumeQueueHeader("T", 0, 0, 10).to_ext()),
    "reset to the end": (
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        ResetOffsetHeader("T", "CG", -1).to_ext(),
    ),
    "reset to an offset": (
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        ResetOffsetHeader("T", "CG", -1, 0, 0).to_ext(),
    ),
    "new topic from start": (
        RequestCode.QUERY_CONSUMER_OFFSET,
        QueryConsumerOffsetHeader("new", "T", 0).to_ext(),
    ),
    "cleaning": (RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, {}),
    "drain": (RayMQRequestCode.DRAIN_BROKER, {"step": "look"}),
    "pop": (RequestCode.POP_MESSAGE, PopMessageHeader("CG", "T", 0, 1, 60_000, 0, 0, 1).to_ext()),
    "peek": (RequestCode.PEEK_MESSAGE, PeekMessageHeader("CG", "T", 0, 1).to_ext()),
    "notification": (RequestCode.NOTIFICATION, NotificationHeader("CG", "T", 0, 0, 0).to_ext()),
}
"""Requests whose responses depend on messages that may be hidden."""


@asynccontextmanager
async def killed_master(root: Path, **settings: Any) -> AsyncIterator[Peer]:
    """Yield a sync master that was killed after COUNT messages, and runs again without a slave."""
    first = master_of(root, "sync", store=NO_CHECKPOINT, **settings)
    async with serving(first) as peer, fake_slave_of(peer):
        await until(peer, "in_sync_replicas", 2)
        await fill(peer)
        await peer.commit("CG", "T", COUNT)
        await peer.tables.save_offsets()
        await peer.tables.save_definitions()
        copy_store(first.store_root, root / "killed")
    again = master_of(root / "killed", "sync", store=NO_CHECKPOINT, **settings)
    async with serving(again) as peer:
        yield peer


async def fill(peer: Peer) -> None:
    """Send COUNT messages, and read all of them."""
    for number in range(COUNT):
        assert (await peer.send("T", b"%d" % number)).code == 0
    await eventually_async(lambda: has_all(peer))


async def has_all(peer: Peer) -> bool:
    return len(await peer.messages("T")) == COUNT


async def assert_not_moved(peer: Peer) -> None:
    """Pull at and beyond the place where the consumer was."""
    for offset in (1, COUNT - 1, COUNT, COUNT + 1):
        for pulled in (await peer.pull("T", offset), await peer.pull_records("T", offset)):
            assert pulled.code == NOT_FOUND, (offset, pulled)
            assert int(pulled.ext["nextBeginOffset"]) == offset


async def assert_goes_on(peer: Peer, held: asyncio.Future[RemotingCommand], body: bytes = b"next") -> None:
    """Send a message, which the held pull at COUNT gets, and check that the end is known."""

    async def is_sent() -> bool:
        return (await peer.send("T", body)).code == 0

    await eventually_async(is_sent)
    assert (await held).code == 0
    assert await peer.offset(RequestCode.GET_MAX_OFFSET, "T") == COUNT + 1
    moved = await peer.pull("T", COUNT + 5)
    assert (moved.code, moved.ext["nextBeginOffset"]) == (MOVED, str(COUNT + 1))


SERVICE = "a service of a master, which starts when the end is known"
INDEX = "of the lite index: the part that is dispatched"
READERS = {
    "broker/admin/broker_info.py": "after `caught_up`",
    "broker/admin/offset_admin.py": "after `caught_up`",
    "broker/admin/progress_requests.py": "after `caught_up`",
    "broker/core/drain.py": "after `caught_up`",
    "broker/core/group/group_progress.py": "requests after `caught_up`, figures if the end is known",
    "broker/core/group/offset_requests.py": "after `caught_up`, and for queues that the topic does not have",
    "broker/core/loop/log_history.py": "of the group records: the epochs that are known at least",
    "broker/core/reading/queue_reader.py": "compared with the offset of a pull, which is not moved",
    "broker/core/reading/queues.py": "after `caught_up`",
    "broker/features/delay/build.py": "a figure that names RocketMQ's two offsets",
    "broker/features/delay/delay_scheduler.py": SERVICE,
    "broker/features/lite/lite_admin.py": INDEX,
    "broker/features/lite/lite_expiry.py": INDEX,
    "broker/features/lite/lite_lags.py": "figures if the end is known, requests of the lite index",
    "broker/features/lite/lite_orders.py": INDEX,
    "broker/features/lite/lite_pops.py": INDEX,
    "broker/features/metrics/lags.py": "only if the end is known",
    "broker/features/pop/acks.py": SERVICE,
    "broker/features/pop/pop_reader.py": SERVICE,
    "broker/features/pop/revive_log.py": SERVICE,
    "broker/features/retry/build.py": "only if the end is known",
    "broker/features/timer/timer_service.py": SERVICE,
    "broker/features/transactions/checks.py": SERVICE,
    "broker/features/transactions/transaction_log.py": SERVICE,
    "broker/replication/progress_log.py": "the part that is dispatched; then it reads the hidden part, too",
    "broker/replication/raft/group_tables.py": "the part that is dispatched",
    "broker/replication/raft/meta_log.py": "of a leader that is open for sends",
}
"""Each file that reads the end of a queue, and why it does not use one that is too low."""


def test_every_reader_of_the_end_of_a_queue_is_known() -> None:
    root = Path(actors.__file__).parent
    read = re.compile(r"\.(max_offsets?|offset_by_timestamp)\(")
    found = {str(each.relative_to(root)) for each in root.rglob("*.py") if read.search(each.read_text())}
    assert found == READERS.keys(), "say in READERS what it does while the end is not known (`LogEnd`)"


def test_killed_master_moves_no_offset_until_a_slave_has_its_log(tmp_path: Path) -> None:
    async def story() -> None:
        async with killed_master(tmp_path) as peer:
            assert figure(peer, "hidden_bytes") > 0
            await assert_not_moved(peer)
            held = asyncio.ensure_future(peer.pull("T", COUNT, wait_ms=HOLD_MS))
            records = asyncio.ensure_future(peer.pull_records("T", COUNT, wait_ms=HOLD_MS))
            await peer.until_held(2)
            async with fake_slave_of(peer, acknowledges=False) as slave:
                await until(peer, "slave_connections", 1)
                await assert_not_moved(peer)
                await eventually_async(lambda: slave.end == figure(peer, "written"))
                slave.acknowledge()
                await until(peer, "hidden_bytes", 0)
                await assert_goes_on(peer, held)
                assert (await records).code == 0

    run(story)


def test_requests_for_ends_of_queues_are_refused_until_the_end_is_known(tmp_path: Path) -> None:
    """All of them at once, because each waits END_WAIT_MS."""

    async def story() -> None:
        async with killed_master(tmp_path) as peer:
            responses = await asyncio.gather(*(peer.ask(*request) for request in NEED_THE_END.values()))
            for name, response in zip(NEED_THE_END, responses, strict=True):
                assert response.code == ResponseCode.SERVICE_NOT_AVAILABLE, (name, response)
            remarks = {response.remark for response in responses}
            assert any("replication: async to accept the log as it is" in (each or "") for each in remarks)
            assert (await peer.committed("CG", "T")).ext["offset"] == str(COUNT)
            described = peer.broker.describe()
            assert "1 of its slaves" in described["hidden_because"]
            unknown = {"open_transactions", "pending_timers", "retries_pending", "dead_letters_pending"}
            assert not unknown & described.keys()
            async with fake_slave_of(peer):
                await until(peer, "hidden_bytes", 0)
                assert unknown <= peer.broker.describe().keys()
                known = await asyncio.gather(*(peer.ask(*request) for request in NEED_THE_END.values()))
                refused = {
                    name
                    for name, response in zip(NEED_THE_END, known, strict=True)
                    if response.code == ResponseCode.SERVICE_NOT_AVAILABLE
                }
                assert refused <= {"pop", "peek", "notification"}  # their services may still be starting

    run(story)


def test_services_of_a_master_start_when_the_end_is_known(tmp_path: Path) -> None:
    """A transaction and a delayed message that were acknowledged before the kill are found after it."""

    async def story() -> None:
        first = master_of(tmp_path, "sync", store={**NO_CHECKPOINT, "message_delay_level": "1s"})
        async with serving(first) as peer, fake_slave_of(peer):
            await until(peer, "in_sync_replicas", 2)
            half = await begin(peer, b"transaction")
            assert (await peer.send("D", b"late", properties="DELAY\x011\x02")).code == 0
            await peer.tables.save_definitions()
            copy_store(first.store_root, tmp_path / "killed")
        again = master_of(tmp_path / "killed", "sync", store={**NO_CHECKPOINT, "message_delay_level": "1s"})
        async with serving(again) as peer:
            assert (await end(peer, half, COMMIT)).code == ResponseCode.SERVICE_NOT_AVAILABLE
            async with fake_slave_of(peer):
                await until(peer, "hidden_bytes", 0)
                assert (await end(peer, half, COMMIT)).code == 0
                assert [each.body for each in await peer.messages("T")] == [b"transaction"]

                async def is_delivered() -> bool:
                    return [each.body for each in await peer.messages("D")] == [b"late"]

                await eventually_async(is_delivered)

    run(story)


def test_promoted_slave_alone_hides_its_log_until_it_is_accepted(tmp_path: Path) -> None:
    """Both replicas were killed. With `replication: async` the operator accepts the log as it is."""
    double = {"replication": "sync", "ha_listen_port": free_port(), "store": NO_CHECKPOINT}

    async def story() -> None:
        async with (
            registered_broker(tmp_path, **double) as (_, master),
            slave_of(master, tmp_path, store=NO_CHECKPOINT) as slave,
        ):
            await until(master, "in_sync_replicas", 2)
            await eventually_async(lambda: is_accepted(master))
            for number in range(1, COUNT):
                assert (await master.send("T", b"%d" % number)).code == 0
            tables = slave.tables
            await eventually_async(lambda: tables.topics.find("T") is not None)
            await until(slave, "missing_tables", "")
            await tables.save_definitions()
            copy_store(slave.broker.settings.store_root, tmp_path / "killed")
        alone = master_of(tmp_path / "killed", "sync", replica=1, store=NO_CHECKPOINT)
        async with serving(alone) as peer:
            await assert_not_moved(peer)
            response = await peer.ask(RequestCode.GET_MAX_OFFSET, TopicQueueHeader("T", 0).to_ext())
            assert response.code == ResponseCode.SERVICE_NOT_AVAILABLE
        accepted = master_of(tmp_path / "killed", "async", replica=1, store=NO_CHECKPOINT)
        async with serving(accepted) as peer:
            assert len(await peer.messages("T")) == COUNT
            held = asyncio.ensure_future(peer.pull("T", COUNT, wait_ms=HOLD_MS))
            await assert_goes_on(peer, held)
        async with serving(alone) as peer:  # closed cleanly: the end is known without a slave
            assert await peer.offset(RequestCode.GET_MAX_OFFSET, "T") == COUNT + 1

    run(story)


async def is_accepted(peer: Peer) -> bool:
    return (await peer.send("T", b"0")).code == 0


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("replication", ["", "async"])
def test_broker_that_waits_for_no_replica_knows_its_end_at_once(
    tmp_path: Path, flush: str, replication: str
) -> None:
    async def story() -> None:
        store = {**NO_CHECKPOINT, "flush": flush}
        first = master_of(tmp_path, replication, store=store)
        async with serving(first) as peer:
            await fill(peer)
            await peer.tables.save_definitions()
            copy_store(first.store_root, tmp_path / "killed")
        async with serving(master_of(tmp_path / "killed", replication, store=store)) as peer:
            assert figure(peer, "hidden_bytes") == 0
            assert await peer.offset(RequestCode.GET_MAX_OFFSET, "T") == COUNT
            held = asyncio.ensure_future(peer.pull("T", COUNT, wait_ms=HOLD_MS))
            await assert_goes_on(peer, held)

    run(story)
