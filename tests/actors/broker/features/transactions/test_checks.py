"""Checks of open transactions: when, how often, to which producer, and what happens in the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import CheckTransactionStateHeader
from store.disk.disk_use import DiskUse
from store.message.record import decode_record
from tests.actors.broker.brokers import A_DAY_MS, Peer, run_now, settings_of, with_broker
from tests.actors.broker.features.transactions.transactions import (
    COMMIT,
    DISCARDED,
    HALF,
    ROLLBACK,
    TIMEOUT_MS,
    UNKNOWN,
    CrashImages,
    a_producer,
    begin,
    check,
    end,
    every,
    manual,
)
from tests.eventually import eventually_async

INTERVAL_MS = 30_000


def test_open_transaction_is_checked_after_the_timeout_and_then_committed(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        async with a_producer(peer) as producer:
            half = await begin(peer, b"1", properties="UNIQ_KEY\x01ID\x02", queue_id=2)
            clock.advance(TIMEOUT_MS - 1)
            await check(peer)
            assert len(await every(peer, HALF)) == 1
            clock.advance(1)
            await check(peer)
            await producer.until_received(1)
            [request] = producer.received
            [original, copy] = await every(peer, HALF)
            message = decode_record(request.body)
            assert (message.topic, message.queue_id, message.body) == ("T", 2, b"1")
            assert message.properties.items() <= copy.properties.items()
            added = {"TRANSACTION_CHECK_TIMES": "1", "TRAN_PREPARED_QUEUE_OFFSET": "0"}
            assert copy.properties == original.properties | added
            header = CheckTransactionStateHeader.from_ext(request.ext)
            assert (header.tran_state_table_offset, header.commit_log_offset) == (1, copy.commit_log_offset)
            assert (header.transaction_id, header.msg_id, header.topic) == ("ID", "ID", "T")
            assert header.offset_msg_id == copy.offset_msg_id
            assert request.ext["bname"] == "broker-a"
            assert (await producer.respond(0, COMMIT)).code == 0
            assert len(await peer.messages("T", queue_id=2)) == 1
            assert (await end(peer, half, COMMIT)).code == ResponseCode.ILLEGAL_OPERATION
            clock.advance(INTERVAL_MS)
            await check(peer)
            assert len(await every(peer, HALF)) == 2

    with_broker(story, manual(tmp_path), clock)


def test_late_response_to_the_send_or_to_an_earlier_check_ends_the_transaction(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        async with a_producer(peer) as producer:
            halves = [await begin(peer, b"%d" % number) for number in range(3)]
            for number in (1, 2):
                clock.advance(INTERVAL_MS)
                await check(peer)
                await producer.until_received(3 * number)
            assert (await end(peer, halves[0], COMMIT)).code == 0
            assert (await producer.respond(1, COMMIT)).code == 0
            assert (await producer.respond(5, ROLLBACK)).code == 0
            for number in range(6):
                assert (await producer.respond(number, COMMIT)).code == ResponseCode.ILLEGAL_OPERATION
            assert [message.body for message in await every(peer, "T")] == [b"0", b"1"]
            assert peer.broker.describe()["open_transactions"] == 0

    with_broker(story, manual(tmp_path), clock)


def test_transaction_is_discarded_after_the_maximum_of_checks(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        half = await begin(peer, b"never ended")
        async with a_producer(peer) as producer:
            for number in range(1, 4):
                clock.advance(INTERVAL_MS)
                await check(peer)
                await producer.until_received(number)
                await producer.respond(number - 1, UNKNOWN)
            clock.advance(INTERVAL_MS)
            await check(peer)
            assert peer.broker.describe()["transactions_discarded"] == 1
            [discarded] = await every(peer, DISCARDED)
            assert (discarded.body, discarded.properties["REAL_TOPIC"]) == (b"never ended", "T")
            assert discarded.properties["TRANSACTION_CHECK_TIMES"] == "3"
            assert (await end(peer, half, COMMIT)).code == ResponseCode.ILLEGAL_OPERATION
            await check(peer)
            assert (len(producer.received), len(await every(peer, DISCARDED))) == (3, 1)
            assert await every(peer, "T") == []

    with_broker(story, manual(tmp_path, transaction_check_max=3), clock)


def test_checks_go_to_live_producers_of_the_group_only(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        for _ in range(2):
            await begin(peer)
        foreign = await peer.send("T", properties="TRAN_MSG\x01true\x02PGROUP\x01OTHER\x02")
        assert foreign.code == 0
        async with a_producer(peer, "p1") as first, a_producer(peer, "p2") as second:
            clock.advance(INTERVAL_MS)
            await check(peer)
            await first.until_received(1)
            await second.until_received(1)
            await second.peer.client.close()
            clients = peer.groups.clients
            await eventually_async(lambda: len(list(clients.producers("PG"))) == 1)
            clock.advance(INTERVAL_MS)
            await check(peer)
            await first.until_received(3)
        await eventually_async(lambda: not list(clients.producers("PG")))
        clock.advance(INTERVAL_MS)
        await check(peer)
        assert {each.properties["TRANSACTION_CHECK_TIMES"] for each in (await every(peer, HALF))[-3:]} == {
            "3"
        }

    with_broker(story, manual(tmp_path), clock)


@pytest.mark.parametrize(("immunity", "first_check_ms"), [("60", 60_000), ("1", 1_000), ("x", TIMEOUT_MS)])
def test_message_may_set_its_own_immunity_time(
    tmp_path: Path, clock, immunity: str, first_check_ms: int
) -> None:
    async def story(peer: Peer) -> None:
        properties = f"CHECK_IMMUNITY_TIME_IN_SECONDS\x01{immunity}\x02"
        sent = await peer.send(
            "T", properties=f"TRAN_MSG\x01true\x02{properties}", born_timestamp=clock.wall_ms()
        )
        async with a_producer(peer) as producer:
            clock.advance(first_check_ms - 1)
            await check(peer)
            last = (await every(peer, HALF))[-1]
            assert "TRANSACTION_CHECK_TIMES" not in last.properties
            clock.advance(1)
            await check(peer)
            await producer.until_received(1)
            assert (await end(peer, sent, COMMIT)).code == 0
            assert len(await every(peer, "T")) == 1

    with_broker(story, manual(tmp_path), clock)


def test_immunity_without_limit_ends_with_the_retention_time(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        await peer.send(
            "T",
            properties="TRAN_MSG\x01true\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x01999999999999\x02",
            born_timestamp=clock.wall_ms(),
        )
        await peer.send(
            "T",
            properties="TRAN_MSG\x01true\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x01999999999999\x02",
            born_timestamp=clock.wall_ms() + 10**12,
        )
        async with a_producer(peer) as producer:
            await check(peer)
            await producer.until_received(1)  # the client's clock is ahead
            clock.advance(3 * A_DAY_MS)
            await check(peer)
            await producer.until_received(3)

    with_broker(story, manual(tmp_path), clock)


def test_copies_let_the_progress_pass_an_open_transaction(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        graph = peer.broker.graph
        await begin(peer, b"open")
        for _ in range(3):
            await end(peer, await begin(peer), ROLLBACK)
        clock.advance(INTERVAL_MS)
        await check(peer)

        async def is_saved(end: int) -> bool:
            await run_now(peer.broker, "transaction-progress")
            return graph.tables.offsets.query("CID_RMQ_SYS_TRANS", HALF, 0) == end

        await eventually_async(lambda: is_saved(4))
        assert peer.broker.describe()["open_transactions"] == 1

    with_broker(story, manual(tmp_path), clock)


def test_kill_between_the_steps_of_a_check_keeps_one_open_transaction(
    tmp_path: Path, clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies that replace each other are one transaction after every restart."""
    halves: list[RemotingCommand] = []
    images = CrashImages(monkeypatch, tmp_path)

    async def story(peer: Peer) -> None:
        halves.append(await begin(peer, b"1"))
        for _ in range(3):
            clock.advance(INTERVAL_MS)
            await check(peer)
        images.take(peer.broker.settings.store_root)

    with_broker(story, manual(tmp_path / "killed", transaction_check_max=9), clock)
    images.stop()
    assert len(images.roots) >= 1 + 3 + 1  # half, copies, the end
    for root in images.roots[1:]:

        async def restarted(peer: Peer) -> None:
            assert peer.broker.describe()["open_transactions"] == 1
            async with a_producer(peer) as producer:
                clock.advance(INTERVAL_MS)
                await check(peer)
                await producer.until_received(1)
                assert (await end(peer, halves[0], COMMIT)).code == 0
                assert (await producer.respond(0, COMMIT)).code == ResponseCode.ILLEGAL_OPERATION
            assert len(await every(peer, "T")) == 1

        with_broker(restarted, manual(root), clock)


def test_full_disk_postpones_the_checks(tmp_path: Path, clock) -> None:
    used_percent = 10

    def probe(_: Path) -> DiskUse:
        return DiskUse(used_percent * 10, 1000 - used_percent * 10)

    async def story(peer: Peer) -> None:
        nonlocal used_percent

        def is_refused(*, expected: bool) -> bool:
            clock.advance(1_000)
            return bool(peer.broker.describe()["write_refusal"]) is expected

        await begin(peer)
        used_percent = 95
        await eventually_async(lambda: is_refused(expected=True))
        clock.advance(INTERVAL_MS)
        async with a_producer(peer) as producer:
            await check(peer)
            used_percent = 10
            await eventually_async(lambda: is_refused(expected=False))
            assert producer.received == []
            await check(peer)
            await producer.until_received(1)
        assert peer.broker.describe()["background_task_failures"] == 0

    with_broker(story, manual(tmp_path), clock, probe)


def test_half_that_cannot_be_checked_is_discarded(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        await begin(peer, b"x" * 200_000)
        await begin(peer, b"later")
        await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"maxMessageSize=1000")
        clock.advance(INTERVAL_MS)
        async with a_producer(peer) as producer:
            await check(peer)
            await producer.until_received(1)
            assert decode_record(producer.received[0].body).body == b"later"
        assert peer.broker.describe()["background_task_failures"] == 0

    with_broker(story, manual(tmp_path), clock)


def test_broker_checks_periodically(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        async with a_producer(peer) as producer:
            await begin(peer)
            await eventually_async(lambda: producer.received)
            await eventually_async(lambda: every(peer, DISCARDED))
        assert peer.broker.describe()["background_task_failures"] == 0

    settings = settings_of(
        tmp_path, transaction_check_interval_ms=1, transaction_timeout_ms=0, transaction_check_max=2
    )
    with_broker(story, settings)
