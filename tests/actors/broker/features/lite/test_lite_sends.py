"""Sends to topics of type LITE over a socket: stored properties, offsets, refusals and copies."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.headers import ConsumerSendMsgBackHeader
from store.commitlog.commit_log import CommitLog
from store.message.batch import encode_batch
from store.message.message import Message
from store.message.topic_config import TopicConfig
from store.store_errors import StoreError
from tests.actors.broker.brokers import Peer, run, serving, settings_of, with_broker
from tests.actors.broker.core.sending.test_plain_sends import KEY, taken
from tests.actors.broker.features.lite.lite_peers import end_of

PLACE = ("INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET")


def create_topic(peer: Peer, name: str = "LiteT") -> None:
    peer.tables.topics.table.put(TopicConfig(name, attributes={"message.type": "LITE"}))


def with_lite(story: Any, root: Path, **settings: Any) -> None:
    async def prepared(peer: Peer) -> None:
        create_topic(peer)
        await story(peer)

    with_broker(prepared, settings_of(root, **settings))


async def send(
    peer: Peer, name: str, body: bytes = b"x", topic: str = "LiteT", more: str = ""
) -> ResponseCode:
    response = await peer.send(topic, body, 1, f"__LITE_TOPIC\x01{name}\x02{more}")
    assert response.code in (0, ResponseCode.MESSAGE_ILLEGAL), response.remark
    return ResponseCode(response.code)


async def places(peer: Peer, topic: str = "LiteT", queue_id: int = 1) -> list[tuple[str | None, ...]]:
    stored = await peer.messages(topic, queue_id=queue_id)
    return [tuple(each.properties.get(name) for name in PLACE) for each in stored]


def test_lite_messages_are_stored_as_rocketmq_stores_them(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        for name in ("a", "b", "a"):
            assert await send(peer, name) == 0
        assert await places(peer) == [
            ("%LMQ%$LiteT$a", "0"), ("%LMQ%$LiteT$b", "0"), ("%LMQ%$LiteT$a", "1"),
        ]  # fmt: skip
        [first, *_] = await peer.messages("LiteT", queue_id=1)
        assert (first.queue_offset, first.properties["__LITE_TOPIC"]) == (0, "a")
        assert (await end_of(peer, "a"), await end_of(peer, "b")) == (2, 1)

    with_lite(story, tmp_path)


REFUSED = {
    "name with $": "__LITE_TOPIC\x01a$b\x02",
    "blank in the name": "__LITE_TOPIC\x01a b\x02",
    "long name": f"__LITE_TOPIC\x01{'x' * 65}\x02",
    "no lite topic": "TAGS\x01a\x02",
    "delay level": "__LITE_TOPIC\x01a\x02DELAY\x011\x02",
    "timer": "__LITE_TOPIC\x01a\x02TIMER_DELAY_SEC\x011\x02",
    "transaction": "__LITE_TOPIC\x01a\x02TRAN_MSG\x01true\x02",
    "sharding key": "__LITE_TOPIC\x01a\x02__SHARDINGKEY\x01k\x02",
    "priority": "__LITE_TOPIC\x01a\x02_SYS_MSG_PRIORITY_\x011\x02",
}


@pytest.mark.parametrize("case", REFUSED)
def test_message_that_no_lite_consumer_would_get_is_refused(tmp_path: Path, case: str) -> None:
    async def story(peer: Peer) -> None:
        response = await peer.send("LiteT", b"x", 1, REFUSED[case], sys_flag=4 * (case == "transaction"))
        assert response.code == ResponseCode.MESSAGE_ILLEGAL, response.remark
        assert "lite topic" in str(response.remark)
        assert peer.store.positions.written == 0
        assert await send(peer, "a") == 0
        assert await places(peer) == [("%LMQ%$LiteT$a", "0")]

    with_lite(story, tmp_path)


def test_batch_of_lite_messages_is_refused(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        body = encode_batch([Message("LiteT", b"x", properties={"__LITE_TOPIC": "a"})])
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            ext = {
                "a": "PG",
                "b": "LiteT",
                "c": "TBW102",
                "d": "4",
                "e": "0",
                "f": "0",
                "g": "1",
                "h": "0",
                "m": "true",
            }
            response = await peer.ask(code, ext, body)
            assert (response.code, "one by one" in str(response.remark)) == (
                ResponseCode.MESSAGE_ILLEGAL,
                True,
            )

    with_lite(story, tmp_path)


def test_place_in_a_lite_topic_is_the_brokers(tmp_path: Path) -> None:
    forged = "INNER_MULTI_DISPATCH\x01%LMQ%$LiteT$b\x02INNER_MULTI_QUEUE_OFFSET\x017\x02"

    async def story(peer: Peer) -> None:
        assert await send(peer, "a", more=forged) == 0
        assert await places(peer) == [("%LMQ%$LiteT$a", "0")]
        assert (await peer.send("Plain", b"x", 1, forged)).code == 0
        assert await places(peer, "Plain") == [(None, None)]
        assert await send(peer, "a", topic="Plain") == ResponseCode.MESSAGE_ILLEGAL  # it is not of type LITE

    with_lite(story, tmp_path)


def test_failed_append_leaves_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(peer: Peer) -> None:
        assert await send(peer, "a") == 0
        long = f"__LITE_TOPIC\x01a\x02long\x01{'x' * 32_700}\x02"
        assert (await peer.send("LiteT", b"x", 1, long)).code == ResponseCode.MESSAGE_ILLEGAL
        with monkeypatch.context() as patched:
            patched.setattr(type(peer.store), "append", _full)
            assert (await peer.send("LiteT", b"x", 1, "__LITE_TOPIC\x01a\x02")).code != 0
        assert await send(peer, "a") == 0
        assert [offset for _, offset in await places(peer)] == ["0", "1"]

    with_lite(story, tmp_path)


def _full(*_: object) -> None:
    raise StoreError("the commit log cannot be written")


def _no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "no space")


@pytest.mark.parametrize("key", ["", KEY])
def test_offsets_continue_after_a_restart(tmp_path: Path, key: str) -> None:
    settings = settings_of(tmp_path)

    async def story() -> None:
        for first in (0, 3):
            async with serving(settings) as peer:
                create_topic(peer)
                for number in range(3):
                    assert await send(peer, "a", b"%d" % (first + number), more=key) == 0
                assert [int(str(offset)) for _, offset in await places(peer)] == list(range(first + 3))

    run(story)


def test_dead_letter_is_not_in_its_lite_topic(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        assert await send(peer, "a") == 0
        await peer.heartbeat("client", "CG", LiteT="*")
        back = ConsumerSendMsgBackHeader(0, "CG", delay_level=-1).to_ext()
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
        assert await send(peer, "a") == 0
        [dead] = await peer.messages("%DLQ%CG")
        assert dead.properties["__LITE_TOPIC"] == "a"
        assert not set(PLACE) & set(dead.properties)
        assert await end_of(peer, "a") == 2

    with_lite(story, tmp_path)


async def warmed_up(peer: Peer) -> int:
    """Let the compiled path learn the queue; return how many sends it has taken."""
    while not taken(peer.broker):
        assert await send(peer, "warm-up", more=KEY) == 0
    return taken(peer.broker)


def test_lite_messages_take_the_compiled_path_with_the_offsets_of_the_other(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        compiled = await warmed_up(peer)
        for number in range(10):
            assert await send(peer, f"n{number // 4}", more=KEY) == 0
            assert await send(peer, "a", more=KEY if number % 2 else "") == 0
        assert taken(peer.broker) > compiled
        stored = await places(peer)
        assert [offset for name, offset in stored if name == "%LMQ%$LiteT$a"] == list(map(str, range(10)))
        assert [offset for name, offset in stored if name == "%LMQ%$LiteT$n1"] == list("0123")
        assert (await end_of(peer, "a"), await end_of(peer, "n1")) == (10, 4)

    with_lite(story, tmp_path)


def test_failed_append_on_the_compiled_path_leaves_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(peer: Peer) -> None:
        await warmed_up(peer)
        assert await send(peer, "a", more=KEY) == 0
        with monkeypatch.context() as patched:
            patched.setattr(CommitLog, "write_at", _no_space)
            assert (await peer.send("LiteT", b"x", 1, f"__LITE_TOPIC\x01a\x02{KEY}")).code != 0
        for _ in range(2):
            assert await send(peer, "a", more=KEY) == 0
        stored = await places(peer)
        assert [offset for name, offset in stored if name == "%LMQ%$LiteT$a"] == ["0", "1", "2"]

    with_lite(story, tmp_path)
