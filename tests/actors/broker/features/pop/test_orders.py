"""Ordered pops (FIFO): blocked queues, attempts, acks, and RocketMQ's consumerOrderInfo.json."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.wire.codes import ResponseCode
from store.common.json_file import JsonConfigFile
from store.metadata import ConsumerOrderTable
from store.store_errors import StoreError
from tests.actors.broker.brokers import HOLD_MS, Peer, settings_of, with_broker
from tests.actors.broker.features.pop.pops import (
    Popped,
    ack,
    bodies,
    change,
    committed,
    pop,
    pop_response,
    popped,
    send,
)
from tests.conftest import ClockAtRest


async def ordered(peer: Peer, **fields: Any) -> list[Popped]:
    return await pop(peer, order=True, **fields)


def test_queue_is_blocked_until_its_batch_is_acked(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await send(peer, "0", "1", "2")
        first = await ordered(peer, max_msg_nums=2)
        assert bodies(first) == [b"0", b"1"]
        assert first[0].receipt.revive_queue == 999
        blocked = await pop_response(peer, order=True)
        assert (blocked.code, blocked.ext["orderCountInfo"]) == (ResponseCode.POLLING_TIMEOUT, "")
        waiting = asyncio.create_task(pop_response(peer, order=True, poll_time=HOLD_MS))
        await peer.until_held(1)
        assert (await ack(peer, first[1])).code == 0
        assert await committed(peer) == 0
        assert (await ack(peer, first[0])).code == 0
        assert await committed(peer) == 2
        rest = popped(await waiting)
        assert bodies(rest) == [b"2"]
        assert (await ack(peer, rest[0], offset="1")).code == 0  # committed already
        assert (await ack(peer, rest[0])).code == 0
        assert await committed(peer) == 3

    with_broker(story, settings_of(tmp_path))


def test_lost_response_is_repeated_for_the_same_attempt(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await send(peer, "0", "1")
        assert len(await ordered(peer, attempt_id="a")) == 2
        again = await pop_response(peer, order=True, attempt_id="a")
        assert (again.code, again.ext["orderCountInfo"]) == (0, "0 0 0")
        assert len(popped(again)) == 2
        assert (await pop_response(peer, order=True, attempt_id="b")).code == ResponseCode.POLLING_TIMEOUT

    with_broker(story, settings_of(tmp_path))


def test_batch_returns_in_order_with_counts(tmp_path: Path) -> None:
    clock = ClockAtRest()

    async def story(peer: Peer) -> None:
        await send(peer, "0", "1", "2", "3")
        first = await ordered(peer, max_msg_nums=3)
        await ack(peer, first[0])
        waiting = asyncio.create_task(pop_response(peer, order=True, poll_time=HOLD_MS))
        await peer.until_held(1)
        clock.advance(60_000)
        response = await waiting
        assert bodies(popped(response)) == [b"1", b"2", b"3"]
        assert response.ext["orderCountInfo"] == "0 qo0%1 1;0 qo0%2 1;0 0 0"
        assert (await ack(peer, first[1])).code == 0  # of an earlier batch: without effect
        assert await committed(peer) == 1
        late = popped(response)[0]
        assert (await ack(peer, late, offset="0")).code == 0
        assert (await change(peer, late, 90_000)).ext["invisibleTime"] == "90000"
        clock.advance(60_000)
        assert (await pop_response(peer, order=True)).code == ResponseCode.POLLING_TIMEOUT
        clock.advance(30_000)
        assert bodies(await ordered(peer)) == [b"1", b"2", b"3"]

    with_broker(story, settings_of(tmp_path), clock)


def test_batches_survive_a_restart(tmp_path: Path) -> None:
    clock = ClockAtRest()

    async def before(peer: Peer) -> None:
        await send(peer, "0", "1")
        await ack(peer, (await ordered(peer))[0])

    async def after(peer: Peer) -> None:
        assert (await pop_response(peer, order=True)).code == ResponseCode.POLLING_TIMEOUT
        clock.advance(60_000)
        assert bodies(await ordered(peer)) == [b"1"]

    with_broker(before, settings_of(tmp_path), clock)
    with_broker(after, settings_of(tmp_path), clock)


ROCKETMQS = (
    b'{"table":{"T@G":{0:{"popTime":1795678438075,"i":2000,"o":[1,1,2],"ot":{2:1795678440000},'
    b'"oc":{1:1,2:1},"l":1795678438075,"cm":1,"a":"x"}}}}'
)


def test_rocketmqs_file_is_read_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "consumerOrderInfo.json"
    path.write_bytes(ROCKETMQS)
    table = JsonConfigFile(path).read(ConsumerOrderTable.from_json)
    assert table is not None
    batch = table.batches["T@G"][0]
    assert (batch.offsets, batch.unacked, batch.counts) == ([1, 2, 3], [2, 3], {1: 1, 2: 1})
    assert batch.visible_ms == {2: 1795678440000}
    assert ConsumerOrderTable.from_json(table.to_json()) == table
    assert table.to_json()["table"]["T@G"]["0"]["o"] == [1, 1, 2]


@pytest.mark.parametrize("wrong", [{"o": "1"}, {"popTime": "x"}, {"oc": {"a": 1}}, {"cm": 1.5}, {"a": 3}])
def test_damaged_order_file_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(StoreError, match=r"consumerOrderInfo\.json"):
        ConsumerOrderTable.from_json({"table": {"T@G": {"0": {"o": [1], **wrong}}}})
