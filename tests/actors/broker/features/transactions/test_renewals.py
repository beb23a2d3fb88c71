"""Which immune half messages are copied: as few as the disk and the progress in the half queue allow."""

from __future__ import annotations

from pathlib import Path

from actors.broker.broker_settings import BrokerSettings
from actors.broker.features.transactions.renewals import FINISHED_MAX, MS_PER_HOUR, Renewals
from store.message.message import MessageExt
from store.store_settings import StoreSettings
from tests.actors.broker.brokers import Peer, with_broker
from tests.actors.broker.features.transactions.transactions import HALF, check, every, manual

FILE_BYTES = 1 << 16
RESERVED_H = 72
IMMUNE_S = RESERVED_H * 3600


def renewals(root: Path) -> Renewals:
    store = StoreSettings(commit_log_file_bytes=FILE_BYTES, file_reserved_time_h=RESERVED_H)
    return Renewals(BrokerSettings(store_root=root, store=store))


def half(position: int, stored_ms: int = 0, size_bytes: int = 1000) -> MessageExt:
    return MessageExt(
        topic=HALF, body=b"", commit_log_offset=position, store_size=size_bytes, store_timestamp=stored_ms
    )


def test_half_is_copied_before_its_log_file_may_be_deleted(tmp_path: Path) -> None:
    some = renewals(tmp_path)
    some.begin_round(0, 0, FILE_BYTES, 0)
    assert not some.is_due(half(0))  # the only log file
    some.end_round(FILE_BYTES)
    some.begin_round(0, FILE_BYTES, 3 * FILE_BYTES, 0)
    assert some.is_due(half(2 * FILE_BYTES - 1))
    assert not some.is_due(half(2 * FILE_BYTES))


def test_half_is_copied_after_half_of_the_retention_time(tmp_path: Path) -> None:
    some, half_time_ms = renewals(tmp_path), RESERVED_H * MS_PER_HOUR // 2
    for now_ms, is_due in ((half_time_ms - 1, False), (half_time_ms, True)):
        some.begin_round(0, 0, 1000, now_ms)
        assert some.is_due(half(0)) is is_due
        some.end_round(1000)


def test_halves_that_hold_back_the_progress_are_copied_up_to_half_of_the_log(tmp_path: Path) -> None:
    some, log_end, copied_bytes = renewals(tmp_path), 10_000, 0
    for _ in range(100):
        some.begin_round(FINISHED_MAX + 1, 0, log_end, 0)
        due = [each for each in (half(0), half(1000)) if some.is_due(each)]
        copied_bytes += sum(each.store_size for each in due)
        log_end += sum(each.store_size for each in due)
        some.end_round(log_end)
        log_end += 100
    assert 0 < copied_bytes <= log_end / 2
    some.begin_round(FINISHED_MAX, 0, log_end + FILE_BYTES // 2, 0)
    assert not some.is_due(half(0))


def test_checks_leave_immune_half_messages_in_place(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        properties = f"TRAN_MSG\x01true\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x01{IMMUNE_S}\x02"
        for _ in range(5):
            await peer.send("T", bytes(4000), properties=properties, born_timestamp=clock.wall_ms())
        written = peer.store.positions.written
        for _ in range(10):
            clock.advance(60_000)
            await check(peer)
        assert peer.store.positions.written == written
        assert len(await every(peer, HALF)) == 5
        assert peer.broker.describe()["open_transactions"] == 5
        clock.advance(RESERVED_H * MS_PER_HOUR // 2)
        for _ in range(3):
            clock.advance(60_000)
            await check(peer)
        assert len(await every(peer, HALF)) == 10  # each was copied once
        assert peer.broker.describe()["open_transactions"] == 5

    with_broker(story, manual(tmp_path), clock)
