"""A message that the broker moves to another queue keeps its content, and gets the CRC of its new record."""

from __future__ import annotations

from pathlib import Path

from actors.wire.codes import RequestCode
from actors.wire.headers import ConsumerSendMsgBackHeader
from tests.actors.broker.brokers import Peer, settings_of, with_broker
from tests.actors.broker.features.timer.timers import START_MS, rounds, send_at
from tests.actors.broker.features.transactions.transactions import COMMIT, begin, end, every
from tests.eventually import eventually_async
from tests.store.kernels.plain_check import RecordVerdict, check_record


def test_every_move_replaces_the_crc_of_the_record(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        sent = await peer.send("T", b"body", 0, "k\x01v\x02")
        place = int(sent.ext["msgId"][16:], 16)
        for level in (-1, 0, 1):  # a dead letter, a retry, and a retry after a second
            header = ConsumerSendMsgBackHeader(place, "CG", delay_level=level)
            await peer.heartbeat("c", "CG", T="*")
            answer = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header.to_ext())
            assert answer.code == 0, answer.remark
        copied = "".join(
            f"{name}\x01{value}\x02" for name, value in (await every(peer, "T"))[0].properties.items()
        )
        assert "__CRC32#" in copied
        await peer.send("T", b"a consumer's own copy", 0, copied)
        await peer.send("T", b"delayed", 0, "DELAY\x011\x02")
        await send_at(peer, START_MS + 1_000)
        assert (await end(peer, await begin(peer), COMMIT)).code == 0
        clock.advance(60_000)
        await rounds(peer)
        await eventually_async(lambda: _is_delivered(peer))

        store = peer.store
        log = bytes(store.log_bytes(0, store.positions.written))
        position = 0
        while position < len(log):
            check = check_record(log, position, force_crc_property=True)
            assert check.verdict is RecordVerdict.RECORD
            record = log[position : position + check.size_bytes]
            assert record.count(b"__CRC32#") == 1, record
            position += check.size_bytes

    async def _is_delivered(peer: Peer) -> bool:
        bodies = {message.body for message in await every(peer, "T")}
        return {b"body", b"a consumer's own copy", b"delayed", b"timer", b"half"} <= bodies

    settings = settings_of(tmp_path, {"append_property_crc": True}, timer_flush_interval_ms=1)
    with_broker(story, settings, clock)
