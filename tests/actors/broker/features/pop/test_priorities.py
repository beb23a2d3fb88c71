"""Messages with a priority over a socket: the queue that they get, and the order of pops."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import orjson
import pytest

from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import CreateTopicHeader
from store.message.batch import encode_batch
from store.message.message import Message
from tests.actors.broker.brokers import (
    Peer,
    registered_broker,
    run,
    serving,
    settings_of,
    slave_of,
    with_broker,
)
from tests.actors.broker.core.sending.test_plain_sends import KEY, taken
from tests.actors.broker.features.metrics.scraped import samples
from tests.actors.broker.features.pop.pops import GROUP, ack, bodies, change, pop, pop_response
from tests.actors.broker.features.transactions.transactions import COMMIT, end
from tests.actors.broker.replication.raft.groups import Group
from tests.conftest import ClockAtRest
from tests.eventually import eventually_async

AGE = "raymq_priority_lag_latency_seconds"


async def create_topic(peer: Peer, name: str = "T", kind: str = "PRIORITY", queues: int = 4) -> None:
    ext = {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues),
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        "attributes": f"+message.type={kind}",
    }  # fmt: skip
    response = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
    assert response.code == 0, response.remark


async def create_group(peer: Peer, **attributes: str) -> ResponseCode:
    body = orjson.dumps({"groupName": GROUP, "attributes": attributes})
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    return ResponseCode((await peer.ask(code, body=body)).code)


async def send(peer: Peer, priority: object, body: str = "x", topic: str = "T", more: str = "") -> int:
    """Send a message that asks for queue 1; return the queue that it got."""
    properties = f"_SYS_MSG_PRIORITY_\x01{priority}\x02{more}"
    response = await peer.send(topic, body.encode(), 1, properties)
    assert response.code == 0, response.remark
    return int(response.ext["queueId"])


@pytest.mark.parametrize("kind", ["PRIORITY", "NORMAL"])
def test_message_with_a_priority_gets_its_queue(tmp_path: Path, kind: str) -> None:
    async def story(peer: Peer) -> None:
        await create_topic(peer, kind=kind)
        assert [await send(peer, each) for each in (0, 3, 4, 90, "+2")] == [0, 3, 3, 3, 2]
        stored = await peer.messages("T", queue_id=3)
        assert [each.properties["_SYS_MSG_PRIORITY_"] for each in stored] == ["3", "4", "90"]

    with_broker(story, settings_of(tmp_path))


def test_invalid_priority_and_priority_of_another_type_have_no_effect(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await create_topic(peer)
        for invalid in (-1, "x", "2147483648", "", "1.0"):
            assert await send(peer, invalid) == 1, invalid
        assert len(await peer.messages("T", queue_id=1)) == 5
        assert await send(peer, 3, more="__SHARDINGKEY\x01k\x02") == 1
        [*_, ordered] = await peer.messages("T", queue_id=1)
        assert "_SYS_MSG_PRIORITY_" not in ordered.properties

    with_broker(story, settings_of(tmp_path))


@pytest.mark.parametrize("name", ["DELAY", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"])
def test_delayed_message_loses_its_priority(tmp_path: Path, name: str) -> None:
    async def story(peer: Peer) -> None:
        await create_topic(peer)
        assert await send(peer, 3, more=f"{name}\x011\x02") == 1

        async def delivered() -> list[str]:
            return [name for each in await peer.messages("T", queue_id=1) for name in each.properties]

        await eventually_async(delivered)
        assert "_SYS_MSG_PRIORITY_" not in await delivered()

    with_broker(story, settings_of(tmp_path))


def test_transaction_loses_its_priority(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await create_topic(peer)
        properties = "_SYS_MSG_PRIORITY_\x013\x02UNIQ_KEY\x01AB\x02TRAN_MSG\x01true\x02PGROUP\x01PG\x02"
        half = await peer.send("T", b"x", 1, properties, sys_flag=4)
        assert (half.code, half.ext["queueId"]) == (0, "1")
        assert (await end(peer, half, COMMIT)).code == 0
        [message] = await peer.messages("T", queue_id=1)
        assert "_SYS_MSG_PRIORITY_" not in message.properties

    with_broker(story, settings_of(tmp_path))


def test_messages_of_a_batch_keep_their_queue(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await create_topic(peer)
        body = encode_batch([Message("T", b"x", properties={"_SYS_MSG_PRIORITY_": "3"})])
        assert (await peer.send("T", body, 1, batch=True)).ext["queueId"] == "1"

    with_broker(story, settings_of(tmp_path))


def test_compiled_sends_obey_priorities(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await create_topic(peer)
        for _ in range(20):
            await peer.send("T", queue_id=1, properties=KEY)
        compiled = taken(peer.broker)
        assert compiled
        assert await send(peer, 3) == 3
        assert taken(peer.broker) == compiled
        for _ in range(5):
            await peer.send("T", queue_id=1, properties=KEY)
        assert taken(peer.broker) > compiled

    with_broker(story, settings_of(tmp_path))


@pytest.mark.parametrize(("ascending", "expected"), [(True, "33221100"), (False, "00112233")])
def test_pop_returns_urgent_messages_first(tmp_path: Path, ascending: bool, expected: str) -> None:
    async def story(peer: Peer) -> None:
        await create_topic(peer)
        for number, priority in enumerate((0, 0, 1, 1, 2, 2, 3, 3)):
            await send(peer, priority, f"{priority}{number}")
        found = b"".join(bodies(await pop(peer))).decode()
        assert found[::2] == expected
        assert sorted(found[1::2]) == list("01234567")
        assert all(found[at] < found[at + 2] for at in range(1, 16, 4))  # the first one first

    with_broker(story, settings_of(tmp_path, priority_order_asc=ascending))


def test_urgent_message_overtakes_earlier_ones(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await create_topic(peer)
        for number in range(40):
            await send(peer, 0, str(number))
        assert len(await pop(peer, max_msg_nums=5)) == 5
        await send(peer, 3, "urgent")
        assert bodies(await pop(peer, max_msg_nums=5)) == [b"urgent", b"5", b"6", b"7", b"8"]
        assert bodies(await pop(peer, queue_id=0, max_msg_nums=1)) == [b"9"]  # one queue alone

    with_broker(story, settings_of(tmp_path))


def test_waiting_pop_gets_a_message_of_any_priority(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await create_topic(peer)
        for priority in (0, 3, 1):
            waiting = pop_response(peer, poll_time=100_000)
            await send(peer, priority, str(priority))
            assert str(priority).encode() in (await waiting).body

    with_broker(story, settings_of(tmp_path))


@pytest.mark.parametrize(("probability", "first"), [(0, b"later"), (100, b"retried")])
def test_retries_of_urgent_messages_are_the_last(tmp_path: Path, probability: int, first: bytes) -> None:
    async def story(peer: Peer) -> None:
        await create_topic(peer)
        await send(peer, 3, "retried")
        [popped] = await pop(peer)
        assert (await change(peer, popped, 10)).code == 0
        await eventually_async(lambda: peer.broker.describe()["pop_revived"] == 1)
        await send(peer, 0, "later")
        [one] = await pop(peer, max_msg_nums=1)
        assert one.body == first

    with_broker(story, settings_of(tmp_path, pop_from_retry_probability_for_priority=probability))


def test_changed_order_applies_to_the_next_pop(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await create_topic(peer)
        for priority in (0, 3, 3):
            await send(peer, priority, str(priority))
        [urgent] = await pop(peer, max_msg_nums=1)
        assert urgent.body == b"3"
        assert (await change(peer, urgent, 10)).code == 0
        await eventually_async(lambda: peer.broker.describe()["pop_revived"] == 1)
        change_of_order = {"priority_order_asc": False, "pop_from_retry_probability_for_priority": 100}
        peer.broker.live.update(change_of_order)
        found = [*await pop(peer, max_msg_nums=1), *await pop(peer, max_msg_nums=1)]
        assert bodies(found) == [b"3", b"0"]  # the retry, then the queue that was the last

    with_broker(story, settings_of(tmp_path))


def test_factor_of_a_group_lets_other_priorities_be_first(tmp_path: Path) -> None:
    async def story() -> None:
        async with serving(settings_of(tmp_path), rng=random.Random(7)) as peer:
            await create_topic(peer)
            for number in range(60):
                await send(peer, 3, f"3{number}")
                await send(peer, 0, f"0{number}")
            assert await create_group(peer, **{"+priority.factor": "50"}) == 0
            first = [bodies(await pop(peer, max_msg_nums=1))[0][:1] for _ in range(40)]
            assert 3 <= first.count(b"0") <= 20
            assert await create_group(peer, **{"-priority.factor": ""}) == 0
            assert {bodies(await pop(peer, max_msg_nums=1))[0][:1] for _ in range(10)} == {b"3"}
            assert await create_group(peer, **{"+priority.factor": "101"}) == ResponseCode.SYSTEM_ERROR

    run(story)


def test_pop_of_another_type_reads_queues_in_turn(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await create_topic(peer, kind="NORMAL")
        for priority in (0, 1, 2, 3) * 4:
            await send(peer, priority, str(priority))
        assert len({bodies(await pop(peer, max_msg_nums=1))[0] for _ in range(8)}) > 1

    with_broker(story, settings_of(tmp_path))


def test_order_pops_read_queues_in_turn_and_each_in_its_order(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await create_topic(peer)
        for number in range(4):
            for priority in range(4):
                await send(peer, priority, f"{priority}{number}")
        found = []
        for _ in range(16):
            [each] = await pop(peer, max_msg_nums=1, order=True)
            assert (await ack(peer, each)).code == 0
            found.append(each.body.decode())
        assert len({each[0] for each in found[:4]}) == 4
        assert sorted(found, key=lambda each: each[0]) == sorted(found)

    with_broker(story, settings_of(tmp_path))


def test_age_of_the_oldest_message_of_each_priority_is_shown(tmp_path: Path) -> None:
    clock = ClockAtRest()

    async def story(peer: Peer) -> None:
        await create_topic(peer, queues=3)
        await send(peer, 0, "starves")
        clock.advance(5_000)
        await send(peer, 2, "urgent")
        [urgent] = await pop(peer, max_msg_nums=1)
        assert (await ack(peer, urgent)).code == 0
        clock.advance(10_000)
        found = {labels[-1]: age for labels, age in (await samples(peer, AGE)).items() if labels[0] == "T"}
        assert found == {"0": 15_000, "1": 0, "2": 0}

    with_broker(story, settings_of(tmp_path), clock)


def test_slave_has_messages_in_the_queues_of_their_priorities(tmp_path: Path) -> None:
    async def story() -> None:
        async with registered_broker(tmp_path, replication="async") as (_, master):
            await create_topic(master)
            assert await send(master, 3) == 3
            async with slave_of(master, tmp_path) as slave:
                await eventually_async(lambda: slave.store.max_offset("T", 3) == 1)

    run(story)


def test_priorities_hold_after_a_change_of_leader(tmp_path: Path) -> None:
    async def sent(priority: int, group: Group, among: Iterable[int]) -> int:
        async def one(peer: Peer) -> RemotingCommand:
            return await peer.send("T", b"%d" % priority, 1, f"_SYS_MSG_PRIORITY_\x01{priority}\x02")

        leader, response = await group.of_leader(one, among)
        assert (response.code, response.ext["queueId"]) == (0, str(priority))
        return leader

    async def story() -> None:
        async with Group(tmp_path) as group:
            header = CreateTopicHeader("T", 4, 4, 6, attributes="+message.type=PRIORITY")
            code = RequestCode.UPDATE_AND_CREATE_TOPIC
            _, response = await group.of_leader(lambda peer: peer.ask(code, header.to_ext()))
            assert response.code == 0, response.remark
            for priority in (0, 2):
                first = await sent(priority, group, range(3))
            others = [each for each in range(3) if each != first]
            group.isolate(first)
            for priority in (1, 3):
                second = await sent(priority, group, others)
            assert bodies(await pop(group.peers[second])) == [b"3", b"2", b"1", b"0"]

    run(story)
