"""END_TRANSACTION: what is stored and visible before and after a commit or rollback, and bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.broker.features.transactions.op_messages import finished_offsets, op_bodies
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import DeleteTopicHeader
from store.disk.disk_use import DiskUse
from store.message.sys_flag import TRANSACTION_COMMIT
from tests.actors.broker.brokers import HOLD_MS, Peer, settings_of, with_broker
from tests.actors.broker.features.transactions.transactions import (
    COMMIT,
    HALF,
    OP,
    PREPARED,
    ROLLBACK,
    UNKNOWN,
    begin,
    end,
    end_header,
    every,
)
from tests.eventually import eventually_async

SYNC_AND_ASYNC = pytest.mark.parametrize("flush", ["sync", "async"])


@pytest.mark.parametrize(
    "properties",
    [
        "UNIQ_KEY\x01ID1\x02TAGS\x01t\x02",
        "UNIQ_KEY\x01ID1\x02TAGS\x01t",  # no separator at the end
        "UNIQ_KEY\x01ID1\x02REAL_QID\x017\x02TAGS\x01t\x02",  # only brokers set REAL_QID
        "UNIQ_KEY\x01ID1\x02TAGS\x01t\x02PGROUP\x01\x02",
    ],
)
def test_half_message_is_stored_with_its_real_queue_and_is_invisible(tmp_path: Path, properties: str) -> None:
    async def story(peer: Peer) -> None:
        half = await begin(peer, b"1", "T", properties, 3)
        assert (half.ext["queueId"], half.ext["queueOffset"], half.ext["transactionId"]) == ("3", "0", "ID1")
        [stored] = await peer.messages(HALF)
        assert (stored.body, stored.sys_flag, stored.queue_id) == (b"1", 0, 0)
        expected = {
            "REAL_TOPIC": "T",
            "REAL_QID": "3",
            "__transactionId__": "ID1",
            "UNIQ_KEY": "ID1",
            "TRAN_MSG": "true",
            "PGROUP": "PG",
            "TAGS": "t",
        }
        assert expected.items() <= stored.properties.items()
        assert await peer.messages("T", queue_id=3) == []

    with_broker(story, settings_of(tmp_path))


@SYNC_AND_ASYNC
def test_committed_message_is_visible_once_with_the_content_of_its_half(tmp_path: Path, flush: str) -> None:
    async def story(peer: Peer) -> None:
        await begin(peer, b"stays open")
        sent = await peer.send("T", b"1", 2, PREPARED + "a\x01b\x02", sys_flag=4, born_timestamp=77, flag=9)
        [_, half] = await peer.messages(HALF)
        assert (await end(peer, sent, COMMIT)).code == 0
        [message] = await peer.messages("T", queue_id=2)
        assert (message.body, message.flag, message.born_timestamp) == (b"1", 9, 77)
        assert (message.sys_flag, message.queue_offset) == (TRANSACTION_COMMIT, 0)
        assert message.prepared_transaction_offset == half.commit_log_offset
        assert message.properties == half.properties
        await eventually_async(lambda: every(peer, OP))
        [op] = await every(peer, OP)
        assert (op.body, op.properties) == (b"1,", {"TAGS": "d", "WAIT": "true"})
        again = await end(peer, sent, COMMIT)
        assert (again.code, "finished" in (again.remark or "")) == (ResponseCode.ILLEGAL_OPERATION, True)
        assert len(await peer.messages("T", queue_id=2)) == 1

    with_broker(story, settings_of(tmp_path, {"flush": flush}))


@SYNC_AND_ASYNC
def test_rolled_back_message_is_never_visible(tmp_path: Path, flush: str) -> None:
    async def story(peer: Peer) -> None:
        half = await begin(peer)
        assert (await end(peer, half, ROLLBACK)).code == 0
        [op] = await every(peer, OP)
        assert op.body == b"0,"
        assert (await end(peer, half, COMMIT)).code == ResponseCode.ILLEGAL_OPERATION
        assert await peer.messages("T") == []

    with_broker(story, settings_of(tmp_path, {"flush": flush}))


def test_unknown_outcome_leaves_the_transaction_open(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        half = await begin(peer)
        assert (await end(peer, half, UNKNOWN)).code == 0
        assert await peer.messages("T") == []
        assert (await end(peer, half, COMMIT)).code == 0
        assert len(await peer.messages("T")) == 1

    with_broker(story, settings_of(tmp_path))


def test_commit_wakes_a_held_pull(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", queue_id=1)
        half = await begin(peer)
        await end(peer, half, COMMIT)
        pulled = await peer.pull("T", wait_ms=HOLD_MS)
        assert pulled.code == 0

    with_broker(story, settings_of(tmp_path))


def test_client_cannot_set_the_properties_of_the_broker(tmp_path: Path) -> None:
    """Otherwise it could refer to the transaction of another client, or have its own discarded at once."""

    async def story(peer: Peer) -> None:
        victim = await begin(peer, b"victim", properties="UNIQ_KEY\x01V\x02")
        forged = (
            "TRAN_PREPARED_QUEUE_OFFSET\x010\x02TRANSACTION_CHECK_TIMES\x0115\x02REAL_TOPIC\x01X\x02"
            "REAL_QID\x019\x02__transactionId__\x01V\x02UNIQ_KEY\x01F\x02"
        )
        own = await begin(peer, b"own", properties=forged)
        [_, half] = await peer.messages(HALF)
        assert not {"TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES"} & half.properties.keys()
        assert half.properties["__transactionId__"] == "F"
        await end(peer, own, ROLLBACK)
        assert (await end(peer, victim, COMMIT)).code == 0
        assert [message.body for message in await peer.messages("T")] == [b"victim"]

    with_broker(story, settings_of(tmp_path))


def test_half_without_producer_group_gets_the_group_of_the_request(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        half = await peer.send("T", properties="TRAN_MSG\x01true\x02")
        assert (await end(peer, half, COMMIT)).code == 0
        assert len(await peer.messages("T")) == 1

    with_broker(story, settings_of(tmp_path))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"producer_group": "OTHER"}, "producer group"),
    ({"tran_state_table_offset": 7}, "tranStateTableOffset is 7"),
    ({"commit_log_offset": 1}, "no half message at CommitLog offset 1"),
    ({"commit_log_offset": -1}, "no half message at CommitLog offset -1"),
    ({"commit_log_offset": 2**62}, "no half message at CommitLog offset"),
    ({"commit_or_rollback": 4}, "commitOrRollback is 4"),
    ({"commit_or_rollback": -8}, "commitOrRollback is -8"),
    ({"transaction_id": "FOREIGN"}, "transactionId 'FOREIGN'"),
    ({"topic": "OTHER"}, "topic 'OTHER'"),
]


def test_bad_end_transaction_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        plain = await peer.send("T", b"plain")
        half = await begin(peer)
        for changes, words in BAD:
            response = await end(peer, half, **{"outcome": COMMIT, **changes})
            assert (response.code, words in (response.remark or "")) == (1, True), (changes, response.remark)
        not_half = await end(peer, plain, COMMIT)
        assert (not_half.code, "is not a half message" in (not_half.remark or "")) == (1, True)
        ext = end_header(half, COMMIT).to_ext()
        for name in ("producerGroup", "tranStateTableOffset", "commitLogOffset", "commitOrRollback"):
            without = {key: value for key, value in ext.items() if key != name}
            missing = await peer.ask(RequestCode.END_TRANSACTION, without)
            assert (missing.code, name in (missing.remark or "")) == (1, True)
            wrong = await peer.ask(RequestCode.END_TRANSACTION, ext | {name: "x" * 100_000})
            assert wrong.code == 1
        assert [message.body for message in await peer.messages("T")] == [b"plain"]
        assert (await end(peer, half, COMMIT, topic="T")).code == 0

    with_broker(story, settings_of(tmp_path))


def test_commit_to_a_deleted_topic_is_refused_until_it_exists_again(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        half = await begin(peer)
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("T").to_ext())
        assert (await end(peer, half, COMMIT)).code == ResponseCode.TOPIC_NOT_EXIST
        await peer.send("T", b"creates it", 1)
        assert (await end(peer, half, COMMIT)).code == 0
        assert [message.body for message in await peer.messages("T")] == [b"half"]

    with_broker(story, settings_of(tmp_path))


def test_full_disk_refuses_a_commit_and_a_rollback_is_written_later(tmp_path: Path, clock) -> None:
    used_percent = 10

    def probe(_: Path) -> DiskUse:
        return DiskUse(used_percent * 10, 1000 - used_percent * 10)

    async def story(peer: Peer) -> None:
        nonlocal used_percent

        def is_refused(*, expected: bool) -> bool:
            clock.advance(1_000)
            return bool(peer.broker.describe()["write_refusal"]) is expected

        committed, rolled_back = await begin(peer, b"1"), await begin(peer, b"2")
        used_percent = 95
        await eventually_async(lambda: is_refused(expected=True))
        assert (await end(peer, committed, COMMIT)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert (await end(peer, rolled_back, ROLLBACK)).code == ResponseCode.SYSTEM_ERROR
        used_percent = 10
        await eventually_async(lambda: is_refused(expected=False))
        assert (await end(peer, committed, COMMIT)).code == 0
        await eventually_async(lambda: every(peer, OP))
        assert sorted(offset for op in await every(peer, OP) for offset in finished_offsets(op.body)) == [
            0,
            1,
        ]
        assert [message.body for message in await peer.messages("T")] == [b"1"]

    with_broker(story, settings_of(tmp_path), clock, probe)


def test_one_way_request_ends_a_transaction(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        half = await begin(peer)
        command = RemotingCommand(RequestCode.END_TRANSACTION, end_header(half, COMMIT).to_ext())
        peer.client.oneway(peer.broker.address, command)
        await eventually_async(lambda: peer.messages("T"))

    with_broker(story, settings_of(tmp_path))


def test_op_bodies_are_split_and_both_formats_are_read() -> None:
    offsets = list(range(10_000_000, 10_001_000))
    bodies = list(op_bodies(offsets))
    assert [len(body) <= 4096 for body in bodies] == [True, True, True]
    assert [offset for body in bodies for offset in finished_offsets(body)] == offsets
    assert list(op_bodies([12, 13])) == [b"12,13,"]
    assert finished_offsets(b"12") == [12]
    assert finished_offsets(b"x,,5,-1, 7," + b"9" * 30) == [5]
