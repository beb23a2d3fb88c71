"""Claims survive restarts: what is acked stays so, what is not returns in time, or early after a crash."""

from __future__ import annotations

import shutil
from pathlib import Path

from actors.broker.broker_settings import BrokerSettings
from actors.broker.features.pop.claims import STAY_MS
from actors.broker.features.pop.revive_log import REVIVE_GROUP
from actors.wire.admin_headers import ConsumeStatsHeader
from actors.wire.bodies.progress import ConsumeStats
from actors.wire.codes import RequestCode, ResponseCode
from store.message.pop_records import CheckPoint, ClaimAck
from tests.actors.broker.brokers import Peer, settings_of, with_broker
from tests.actors.broker.features.pop.pops import (
    GROUP,
    Popped,
    ack,
    bodies,
    change,
    changed,
    committed,
    pop,
    pop_response,
    send,
)
from tests.conftest import ClockAtRest
from tests.eventually import eventually_async

REVIVE_TOPIC = "rmq_sys_REVIVE_LOG_DefaultCluster"


def copy_of_live_store(store: Path, to: Path) -> None:
    """Copy a store while its broker runs, without the files that are not complete yet."""
    shutil.copytree(store, to, ignore=shutil.ignore_patterns("*.new"))


def pop_settings(root: Path) -> BrokerSettings:
    return settings_of(root, timer_log_file_bytes=1 << 16)


async def popped_again(peer: Peer, clock: ClockAtRest, count: int) -> list[Popped]:
    """Return the next messages; time passes until they are visible."""
    found: list[Popped] = []

    async def are_found() -> bool:
        clock.advance(100)
        found.extend(await pop(peer))
        return len(found) >= count

    await eventually_async(are_found)
    return found


async def nothing_to_pop(peer: Peer, clock: ClockAtRest) -> None:
    for _ in range(20):
        clock.advance(100)
        assert (await pop_response(peer)).code == ResponseCode.POLLING_TIMEOUT


def revive_offset(peer: Peer, queue_id: int) -> int | None:
    return peer.tables.offsets.query(REVIVE_GROUP, REVIVE_TOPIC, queue_id)


def test_clean_restart_keeps_claims_and_acks(tmp_path: Path) -> None:
    clock, settings = ClockAtRest(), pop_settings(tmp_path)
    claimed: list[Popped] = []

    async def before(peer: Peer) -> None:
        await send(peer, "0", "1", "2", "3")
        claimed.extend(await pop(peer))
        await ack(peer, claimed[1])

    async def after(peer: Peer) -> None:
        assert await committed(peer) == 4  # all claims are safe in the revive topic
        assert (await pop_response(peer)).code == ResponseCode.POLLING_TIMEOUT
        assert (await ack(peer, claimed[0])).code == 0
        longer = await change(peer, claimed[3], 120_000)
        assert longer.code == 0
        clock.advance(60_000)
        assert bodies(await popped_again(peer, clock, 1)) == [b"2"]
        assert (await ack(peer, changed(claimed[3], longer))).code == 0
        clock.advance(120_000)  # "2" was popped once more above
        assert bodies(await popped_again(peer, clock, 1)) == [b"2"]
        await nothing_to_pop(peer, clock)

    with_broker(before, settings, clock)
    clock.advance(1)
    with_broker(after, settings, clock)


def samples(peer: Peer, name: str) -> dict[tuple[str, ...], object]:
    """Return the samples of one of the broker's figures."""
    (figure,) = (each for each in peer.figures if each.name == name)
    return dict(figure.samples())


def test_acks_before_a_second_restart_are_kept(tmp_path: Path) -> None:
    clock, settings = ClockAtRest(), pop_settings(tmp_path)
    claimed: list[Popped] = []

    async def before(peer: Peer) -> None:
        await send(peer, "0", "1")
        claimed.extend(await pop(peer))

    async def between(peer: Peer) -> None:
        assert (await ack(peer, claimed[0])).code == 0

    async def after(peer: Peer) -> None:
        clock.advance(60_000)
        assert bodies(await popped_again(peer, clock, 1)) == [b"1"]
        await nothing_to_pop(peer, clock)
        queue = claimed[0].receipt.revive_queue
        await eventually_async(lambda: revive_offset(peer, queue) == 0)
        assert samples(peer, "pop_revive_records_read")["T", GROUP, "CK", str(queue)] == 1
        assert samples(peer, "pop_retries") == {(f"%RETRY%{GROUP}_T", GROUP, "PUT_OK"): 1}
        assert set(samples(peer, "pop_revive_latency").values()) == {0}

    for story in (before, between, after):
        clock.advance(1)
        with_broker(story, settings, clock)


def test_killed_broker_delivers_unacked_messages_early(tmp_path: Path) -> None:
    clock, settings = ClockAtRest(), pop_settings(tmp_path)
    image = tmp_path / "image"

    async def before(peer: Peer) -> None:
        await send(peer, "0", "1", "2")
        claimed = await pop(peer)
        await ack(peer, claimed[0])
        await peer.tables.save_offsets()
        copy_of_live_store(settings.store_root, image / "store")

    async def after(peer: Peer) -> None:
        assert bodies(await pop(peer)) == [b"1", b"2"]

    with_broker(before, settings, clock)
    with_broker(after, pop_settings(image), clock)


def test_acks_after_a_kill_are_kept_for_messages_that_are_not_popped_again_yet(tmp_path: Path) -> None:
    """The claims exist only in the memory of the killed process, so its receipts are those of no claim."""
    clock, settings = ClockAtRest(), pop_settings(tmp_path)
    image = tmp_path / "image"
    claimed: list[Popped] = []

    async def before(peer: Peer) -> None:
        await send(peer, "0", "1", "2", "3")
        claimed.extend(await pop(peer))
        await peer.tables.save_offsets()
        copy_of_live_store(settings.store_root, image / "store")

    async def after(peer: Peer) -> None:
        assert (await ack(peer, claimed[1])).code == 0
        assert bodies(await pop(peer)) == [b"0", b"2", b"3"]
        for each in (claimed[0], claimed[3]):
            assert (await ack(peer, each)).code == 0
        assert await committed(peer) == 2
        clock.advance(60_000)
        assert bodies(await popped_again(peer, clock, 1)) == [b"2"]
        await nothing_to_pop(peer, clock)

    with_broker(before, settings, clock)
    clock.advance(1)
    with_broker(after, pop_settings(image), clock)


def test_stored_claim_of_messages_that_are_popped_again_is_not_revived(tmp_path: Path) -> None:
    """The offset that follows from the stored claim was not saved before the kill."""
    clock, settings = ClockAtRest(), pop_settings(tmp_path)
    image = tmp_path / "image"

    async def before(peer: Peer) -> None:
        await send(peer, "0", "1")
        await pop(peer)
        await peer.tables.save_offsets()
        clock.advance(STAY_MS)

        async def is_stored() -> bool:
            return await committed(peer) == 2

        offsets = (settings.store_root / "config" / "consumerOffset.json").read_bytes()
        await eventually_async(is_stored)
        copy_of_live_store(settings.store_root, image / "store")
        (image / "store" / "config" / "consumerOffset.json").write_bytes(offsets)

    async def after(peer: Peer) -> None:
        again = await pop(peer)
        assert bodies(again) == [b"0", b"1"]
        for each in again:
            assert (await ack(peer, each)).code == 0
        clock.advance(60_000)

        async def is_handled() -> bool:
            clock.advance(100)
            return 0 in [revive_offset(peer, queue_id) for queue_id in range(8)]

        await eventually_async(is_handled)
        await nothing_to_pop(peer, clock)

    with_broker(before, settings, clock)
    with_broker(after, pop_settings(image), clock)


def test_long_claim_is_stored_and_survives_a_kill(tmp_path: Path) -> None:
    clock, settings = ClockAtRest(), pop_settings(tmp_path)
    image = tmp_path / "image"

    async def before(peer: Peer) -> None:
        await send(peer, "0", "1", "2")
        claimed = await pop(peer)
        clock.advance(STAY_MS)

        async def is_stored() -> bool:
            return await committed(peer) == 3

        await eventually_async(is_stored)
        (progress,) = (await peer.broker.drain.progress())["groups"]
        assert (progress["group"], progress["topics"]) == (GROUP, {"T": 3})
        body = (await peer.ask(RequestCode.GET_CONSUME_STATS, ConsumeStatsHeader(GROUP).to_ext())).body
        stats = ConsumeStats.decode(body)
        assert (stats.lag, [each.in_flight for each in stats.offsets.values() if each.lag]) == (3, [3])
        (figure,) = (each for each in peer.figures if each.name == "lag_by_group")
        assert figure.refresh is not None
        await figure.refresh()
        assert samples(peer, figure.name)["T", GROUP, "false", "false"] == 3
        await ack(peer, claimed[0])
        store = peer.store
        end = store.positions.written
        await eventually_async(lambda: store.positions.confirmed > end)  # the ack is recorded
        await peer.tables.save_offsets()
        copy_of_live_store(settings.store_root, image / "store")
        # This broker lives on: the claim is revived once, from memory.
        clock.advance(60_000 - STAY_MS)
        assert bodies(await popped_again(peer, clock, 2)) == [b"1", b"2"]
        await nothing_to_pop(peer, clock)
        queue = claimed[0].receipt.revive_queue
        await eventually_async(lambda: revive_offset(peer, queue) == 0)

    later = ClockAtRest()

    async def after(peer: Peer) -> None:
        assert (await pop_response(peer)).code == ResponseCode.POLLING_TIMEOUT
        later.advance(60_000)
        assert bodies(await popped_again(peer, later, 2)) == [b"1", b"2"]
        await nothing_to_pop(peer, later)

    with_broker(before, settings, clock)
    with_broker(after, pop_settings(image), later)


def test_stored_claims_have_rocketmqs_records(tmp_path: Path) -> None:
    clock, settings = ClockAtRest(), pop_settings(tmp_path)
    claimed: list[Popped] = []

    async def before(peer: Peer) -> None:
        await send(peer, "0", "1", "2")
        claimed.extend(await pop(peer))
        await ack(peer, claimed[1])

    async def after(peer: Peer) -> None:
        receipt = claimed[0].receipt
        await ack(peer, claimed[0])
        clock.advance(59_000)

        async def records() -> list[tuple[str, bytes]]:
            found = await peer.messages(REVIVE_TOPIC, queue_id=receipt.revive_queue)
            return [(each.properties["TAGS"], each.body) for each in found]

        async def has_check_point() -> bool:
            return len(await records()) == 1

        await eventually_async(has_check_point)
        clock.advance(1_000)

        async def has_ack() -> bool:
            return len(await records()) == 2

        await eventually_async(has_ack)
        (point_tag, point_body), (ack_tag, ack_body) = await records()
        point, acked = CheckPoint.decode(point_body, "broker-a"), ClaimAck.decode(ack_body, "broker-a")
        assert (point_tag, ack_tag) == ("ck", "ack")
        assert point is not None
        assert acked is not None
        assert (point.offsets, point.invisible_ms, point.key.pop_ms) == ((0, 2), 60_000, receipt.pop_ms)
        assert (acked.key, acked.offsets) == (point.key, (0,))
        assert point.key.group == GROUP

    with_broker(before, settings, clock)
    clock.advance(1)
    with_broker(after, settings, clock)
