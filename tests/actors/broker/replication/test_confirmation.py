"""`replication: sync`: sends wait for slaves, are refused without them, and show no unconfirmed message."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from actors.wire.codes import ResponseCode
from tests.actors.broker.brokers import Peer, with_broker
from tests.actors.broker.features.transactions.transactions import COMMIT, ROLLBACK, begin, end
from tests.actors.broker.replication.ha.slaves import figure, let_pass, master_of, slave_of, until
from tests.conftest import ClockAtRest
from tests.eventually import eventually_async


def test_sends_are_refused_before_the_append_without_enough_slaves(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        written = figure(peer, "written")
        refused = await peer.send("T")
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert (refused.remark or "").startswith("in-sync replicas not enough")
        async with slave_of(peer):
            await until(peer, "in_sync_replicas", 2)
            assert figure(peer, "written") == written
            assert (await peer.send("T")).code == 0
        await until(peer, "in_sync_replicas", 1)
        written = figure(peer, "written")
        assert (await peer.send("T")).code == ResponseCode.SYSTEM_ERROR
        assert figure(peer, "written") == written

    with_broker(story, master_of(tmp_path, "sync"))


@pytest.mark.parametrize("compiled", [True, False])
def test_compiled_and_ordinary_sends_obey_the_same_rules(tmp_path: Path, compiled: bool) -> None:
    async def story(peer: Peer) -> None:
        async with slave_of(peer) as slave:
            await until(peer, "in_sync_replicas", 2)
            assert (await peer.send("T")).code == 0  # the compiled path knows the queue from now on
            slave.acknowledges = False
            sends = [asyncio.ensure_future(peer.send("T", b"x" * 100)) for _ in range(20)]
            await eventually_async(lambda: figure(peer, "sends_waiting") == 20)
            assert not any(send.done() for send in sends)
            assert (await peer.messages("T"))[-1].queue_offset == 0
            slave.acknowledge()
            assert {(await send).code for send in sends} == {0}
            assert len(await peer.messages("T")) == 21
        await until(peer, "in_sync_replicas", 1)
        refused = await asyncio.gather(*(peer.send("T") for _ in range(20)))
        assert {each.code for each in refused} == {ResponseCode.SYSTEM_ERROR}
        assert len(await peer.messages("T")) == 21

    with_broker(story, master_of(tmp_path, "sync", compiled_turn=compiled))


def test_slow_slave_gets_flush_slave_timeout_and_the_message_is_stored(
    tmp_path: Path, clock: ClockAtRest
) -> None:
    async def story(peer: Peer) -> None:
        async with slave_of(peer) as slave:
            await until(peer, "in_sync_replicas", 2)
            slave.acknowledges = False
            send = asyncio.ensure_future(peer.send("T", b"late"))
            await eventually_async(lambda: len(peer.loop.acks) == 1)
            await let_pass(clock, slave, send.done)
            late = await send
            assert late.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
            assert "slave_timeout_ms 3000" in (late.remark or "")
            assert late.ext["queueOffset"] == "0"
            slave.acknowledge()
            await eventually_async(lambda: figure(peer, "confirmed") == figure(peer, "written"))
            assert [each.body for each in await peer.messages("T")] == [b"late"]

    with_broker(story, master_of(tmp_path, "sync", slave_timeout_ms=3_000), clock)


def test_consumers_see_only_messages_that_slaves_have(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        async with slave_of(peer) as slave:
            await until(peer, "in_sync_replicas", 2)
            await peer.send("T", b"confirmed")
            slave.acknowledges = False
            send = asyncio.ensure_future(peer.send("T", b"unconfirmed"))
            held = asyncio.ensure_future(peer.pull("T", offset=1, wait_ms=60_000))
            await peer.until_held(1)
            assert [each.body for each in await peer.messages("T")] == [b"confirmed"]
            slave.acknowledge()
            assert (await held).code == 0
            assert (await send).code == 0

    with_broker(story, master_of(tmp_path, "sync"))


def test_connections_of_one_address_count_as_one_replica(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        async with slave_of(peer), slave_of(peer):
            await until(peer, "in_sync_replicas", 2)
            await until(peer, "slave_connections", 2)
            refused = await peer.send("T")
            assert "2 of in_sync_replicas 3" in (refused.remark or "")
            async with slave_of(peer, 0, "127.0.0.2"):
                await until(peer, "in_sync_replicas", 3)
                assert (await peer.send("T")).code == 0

    with_broker(story, master_of(tmp_path, "sync", in_sync_replicas=3))


def test_newest_connection_of_an_address_has_its_position(tmp_path: Path) -> None:
    """A slave that lost its disk connects again; the position of its former connection is void."""

    async def story(peer: Peer) -> None:
        async with slave_of(peer) as former:
            await until(peer, "in_sync_replicas", 2)
            await peer.send("T")
            async with slave_of(peer, 0, acknowledges=False) as wiped:
                await eventually_async(lambda: wiped.end == figure(peer, "written"))
                send = asyncio.ensure_future(peer.send("T"))
                await eventually_async(lambda: former.end == wiped.end == figure(peer, "written"))
                former.report(former.end)
                await eventually_async(lambda: figure(peer, "sends_waiting") == 1)
                assert not send.done()
                wiped.acknowledge()
                assert (await send).code == 0

    with_broker(story, master_of(tmp_path, "sync"))


def test_acknowledgement_beyond_what_was_sent_does_not_count(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        async with slave_of(peer, acknowledges=False) as slave:
            await until(peer, "in_sync_replicas", 2)
            send = asyncio.ensure_future(peer.send("T", b"x"))
            await eventually_async(lambda: slave.end == figure(peer, "written"))
            slave.report(slave.end + 1)
            await slave.until_closed()
            assert not send.done()
        async with slave_of(peer):
            assert (await send).code == 0

    with_broker(story, master_of(tmp_path, "sync"))


def test_sync_flush_and_slaves_are_both_awaited(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        async with slave_of(peer) as slave:
            await until(peer, "in_sync_replicas", 2)
            assert (await peer.send("T")).code == 0
            positions = peer.store.positions
            assert positions.flushed >= positions.confirmed == positions.written
            slave.acknowledges = False
            send = asyncio.ensure_future(peer.send("T"))
            await eventually_async(lambda: positions.flushed == positions.written == slave.end)
            assert not send.done()
            slave.acknowledge()
            assert (await send).code == 0

    with_broker(story, master_of(tmp_path, "sync", store={"flush": "sync"}))


def test_unconfirmed_messages_stay_invisible_after_a_restart(tmp_path: Path) -> None:
    settings = master_of(tmp_path, "sync")

    async def first(peer: Peer) -> None:
        async with slave_of(peer) as slave:
            await until(peer, "in_sync_replicas", 2)
            await peer.send("T", b"confirmed")
            slave.acknowledges = False
            send = asyncio.ensure_future(peer.send("T", b"unconfirmed"))
            await eventually_async(lambda: figure(peer, "sends_waiting") == 1)
            send.cancel()

    async def second(peer: Peer) -> None:
        assert [each.body for each in await peer.messages("T")] == [b"confirmed"]
        async with slave_of(peer) as slave:
            await eventually_async(lambda: slave.end == figure(peer, "confirmed") == figure(peer, "written"))
            bodies = [each.body for each in await peer.messages("T")]
            assert bodies == [b"confirmed", b"unconfirmed"]

    with_broker(first, settings)
    with_broker(second, settings)


def test_transactions_cannot_end_while_replicas_are_short(tmp_path: Path) -> None:
    """The requests are one-way, so later checks find the outcome."""

    async def story(peer: Peer) -> None:
        async with slave_of(peer):
            await until(peer, "in_sync_replicas", 2)
            half, other = await begin(peer, b"1"), await begin(peer, b"2")
        await until(peer, "in_sync_replicas", 1)
        written = figure(peer, "written")
        for refused in (await end(peer, half, COMMIT), await end(peer, other, ROLLBACK)):
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert (refused.remark or "").startswith("in-sync replicas not enough")
        assert figure(peer, "written") == written
        async with slave_of(peer):
            await until(peer, "in_sync_replicas", 2)
            assert (await end(peer, half, COMMIT)).code == 0
            assert [each.body for each in await peer.messages("T")] == [b"1"]

    with_broker(story, master_of(tmp_path, "sync"))


def test_delayed_messages_wait_for_replicas_and_confirmed_progress_is_saved(
    tmp_path: Path, clock: ClockAtRest
) -> None:
    async def saved(peer: Peer) -> int:
        await peer.tables.save_offsets()
        path = peer.broker.settings.store_root / "config" / "delayOffset.json"
        return json.loads(path.read_text())["offsetTable"].get("1", 0) if path.exists() else 0

    async def story(peer: Peer) -> None:
        async with slave_of(peer):
            await until(peer, "in_sync_replicas", 2)
            await peer.send("T", b"late", properties="DELAY\x011\x02")
        await until(peer, "in_sync_replicas", 1)
        written = figure(peer, "written")
        for _ in range(20):
            clock.advance(100)
            await asyncio.sleep(0)
        assert figure(peer, "written") == written
        async with slave_of(peer) as slave:
            await until(peer, "in_sync_replicas", 2)
            slave.acknowledges = False
            await let_pass(clock, slave, lambda: figure(peer, "written") > written)
            assert await saved(peer) == 0
            slave.acknowledge()
            await eventually_async(lambda: figure(peer, "confirmed") == figure(peer, "written"))
            await eventually_async(lambda: figure(peer, "flushed") == figure(peer, "written"))
            assert await saved(peer) == 1
            assert [each.body for each in await peer.messages("T")] == [b"late"]

    with_broker(story, master_of(tmp_path, "sync", store={"message_delay_level": "1s"}), clock)
