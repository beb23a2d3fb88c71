"""Delays, timers, transactions, retries and POP continue at the next leader of a group."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import ConsumerSendMsgBackHeader
from tests.actors.broker.brokers import Peer, run
from tests.actors.broker.features.pop.pops import GROUP, ack, pop_response, popped
from tests.actors.broker.features.transactions.transactions import COMMIT, PREPARED, ROLLBACK, end
from tests.actors.broker.replication.raft.groups import Group
from tests.actors.broker.replication.raft.test_group import bodies
from tests.eventually import eventually_async

pytestmark = pytest.mark.extended

LEVELS = "1s 5s"


def run_with_group(tmp_path: Path, story: Callable[[Group], Awaitable[None]]) -> None:
    async def within() -> None:
        async with Group(tmp_path, message_delay_level=LEVELS) as group:
            await story(group)

    run(within)


async def send(group: Group, body: bytes, properties: str = "", **header: Any) -> RemotingCommand:
    _, sent = await group.of_leader(partial(Peer.send, topic="T", body=body, properties=properties, **header))
    assert sent.code == ResponseCode.SUCCESS, sent.remark
    return sent


async def lose_leader(group: Group) -> list[int]:
    """Cut off the leader, and return the others."""
    leader = await group.send(b"marks the leader")
    group.isolate(leader)
    return [each for each in range(3) if each != leader]


async def until_saved(group: Group, is_wanted: Callable[[str, str, Any], bool]) -> None:
    """Wait until all replicas have saved such an entry: kind, name, value."""

    def is_saved(replica: int) -> bool:
        path = group.root(replica) / "config" / "raymqGroupTables.json"
        return path.exists() and any(is_wanted(*row) for row in orjson.loads(path.read_bytes())["entries"])

    await eventually_async(lambda: all(map(is_saved, range(3))))


async def eventually_stored(group: Group, replica: int, wanted: list[bytes]) -> list[bytes]:
    """Wait until the queue has these bodies; return all others, too, without the marks of leaders."""

    async def has_all() -> list[bytes]:
        found = await bodies(group, replica)
        return found if set(wanted) <= set(found) else []

    found = await eventually_async(has_all)
    return [body for body in found if body != b"marks the leader"]


@pytest.mark.parametrize("kind", ["delay", "timer"])
def test_due_messages_are_delivered_once_by_the_next_leader(tmp_path: Path, kind: str) -> None:
    """Also twice if an unplanned election comes first, or if the first leader has time to deliver all."""

    def due_in(level: int) -> tuple[str, int]:
        due_ms = int(time.time() * 1000) + {1: 1_000, 2: 5_000}[level]
        return (f"DELAY\x01{level}\x02" if kind == "delay" else f"TIMER_DELIVER_MS\x01{due_ms}\x02"), due_ms

    async def story(group: Group) -> None:
        first = await group.send(b"marks the leader")
        term = group.figure(first, "raft_term")
        properties, due_ms = due_in(1)
        await send(group, b"before", properties)
        await eventually_stored(group, first, [b"before"])

        def is_delivered(found: str, name: str, value: Any) -> bool:
            return found == kind and (value >= 1 if kind == "delay" else value[0] > due_ms)

        await until_saved(group, is_delivered)
        properties, due_ms = due_in(2)
        await send(group, b"after", properties)
        others = await lose_leader(group)
        terms = {group.figure(each, "raft_term") for each in others}
        is_planned = terms == {term} and time.time() * 1000 < due_ms
        second = await group.send(b"marks the leader", others)
        found = await eventually_stored(group, second, [b"before", b"after"])
        assert set(found) == {b"before", b"after"}
        assert len(found) == 2 or not is_planned, found

    run_with_group(tmp_path, story)


def test_recalled_timer_messages_are_not_delivered(tmp_path: Path) -> None:
    async def story(group: Group) -> None:
        await group.send(b"marks the leader")
        due_ms = int(time.time() * 1000) + 8_000
        sent = await send(group, b"recalled", f"TIMER_DELIVER_MS\x01{due_ms}\x02")
        await send(group, b"kept", f"TIMER_DELIVER_MS\x01{due_ms + 1_000}\x02")
        others = await lose_leader(group)
        ext = {"producerGroup": "PG", "topic": "T", "recallHandle": sent.ext["recallHandle"]}
        second, recalled = await group.of_leader(
            partial(Peer.ask, code=RequestCode.RECALL_MESSAGE, ext=ext), others
        )
        assert recalled.code == ResponseCode.SUCCESS, recalled.remark
        assert await eventually_stored(group, second, [b"kept"]) == [b"kept"]

    run_with_group(tmp_path, story)


def test_open_transactions_are_committed_at_the_next_leader(tmp_path: Path) -> None:
    async def story(group: Group) -> None:
        await group.send(b"marks the leader")
        halves = {
            body: await send(group, body, PREPARED, sys_flag=4)
            for body in (b"committed", b"rolled back", b"open")
        }
        for body, outcome in ((b"committed", COMMIT), (b"rolled back", ROLLBACK)):
            first, ended = await group.of_leader(partial(end, half=halves[body], outcome=outcome))
            assert ended.code == ResponseCode.SUCCESS, ended.remark
        await eventually_stored(group, first, [b"committed"])
        others = await lose_leader(group)
        for body, outcome in ((b"committed", COMMIT), (b"rolled back", COMMIT), (b"open", COMMIT)):
            second, _ = await group.of_leader(partial(end, half=halves[body], outcome=outcome), others)
        assert await eventually_stored(group, second, [b"open"]) == [b"committed", b"open"]

    run_with_group(tmp_path, story)


def test_messages_sent_back_are_delivered_by_the_next_leader(tmp_path: Path) -> None:
    async def story(group: Group) -> None:
        first = await group.send(b"marks the leader")
        sent = await send(group, b"again")
        await group.peers[first].heartbeat("c", "CG", T="*")
        header = ConsumerSendMsgBackHeader(int(sent.ext["msgId"][16:], 16), "CG", delay_level=2)
        ask = partial(Peer.ask, code=RequestCode.CONSUMER_SEND_MSG_BACK, ext=header.to_ext())
        _, back = await group.of_leader(ask)
        assert back.code == ResponseCode.SUCCESS, back.remark
        others = await lose_leader(group)
        second = await group.send(b"marks the leader", others)

        async def is_delivered() -> bool:
            found = await group.peers[second].messages("%RETRY%CG")
            return [message.body for message in found] == [b"again"]

        await eventually_async(is_delivered)

    run_with_group(tmp_path, story)


def test_messages_popped_and_not_acked_are_popped_at_the_next_leader(tmp_path: Path) -> None:
    async def story(group: Group) -> None:
        first = await group.send(b"acked")
        await group.send(b"open")
        response = await pop_response(group.peers[first], invisible_time=5_000)
        assert response.code == ResponseCode.SUCCESS, response.remark
        messages = popped(response)
        assert [each.body for each in messages] == [b"acked", b"open"]
        assert (await ack(group.peers[first], messages[0])).code == ResponseCode.SUCCESS

        def is_committed(kind: str, name: str, value: Any) -> bool:
            return (kind, name) == ("offset", f"T@{GROUP}") and dict(value)[0] >= 1

        await until_saved(group, is_committed)
        others = await lose_leader(group)
        found: list[bytes] = []

        async def is_found() -> bool:
            second, response = await group.of_leader(pop_response, others)
            if response.code == ResponseCode.SUCCESS:
                for each in popped(response):
                    found.append(each.body)
                    assert (await ack(group.peers[second], each)).code == ResponseCode.SUCCESS
            return b"open" in found

        await eventually_async(is_found)
        assert found.count(b"open") == 1
        assert b"acked" not in found

    run_with_group(tmp_path, story)
