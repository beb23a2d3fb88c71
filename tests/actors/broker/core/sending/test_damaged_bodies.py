"""Bodies with many messages, damaged in every place: stored as a whole or refused as a whole."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import structlog

from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.headers import AppendBatchHeader, SendRunsHeader
from actors.wire.hot_headers import SendMessageHeader
from store.message.batch import encode_batch
from store.message.message import Message
from tests.actors.broker.brokers import Peer, settings_of, with_broker
from tests.actors.broker.core.sending.test_sending import some_runs

BATCH = encode_batch([Message("T", b"body", tags="a", properties={"k": "v"}), Message("T", b"")])
REQUESTS = {
    RequestCode.SEND_BATCH_MESSAGE: (SendMessageHeader("PG", "T", 0, batch=True), BATCH),
    RayMQRequestCode.APPEND_BATCH: (AppendBatchHeader("T", 0), BATCH),
    RayMQRequestCode.SEND_RUNS: (SendRunsHeader("T"), some_runs("T", {0: 2, 1: 1})),
}
NUMBERS = (
    b"\x00\x00\x00\x00",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff",
    b"\x00",
)
REFUSED = {ResponseCode.MESSAGE_ILLEGAL, ResponseCode.INVALID_PARAMETER}


@pytest.mark.parametrize("code", REQUESTS, ids=lambda code: code.name)
def test_damaged_body_is_stored_or_refused_as_a_whole(tmp_path: Path, code: int) -> None:
    rng = random.Random(7)
    header, body = REQUESTS[code]

    async def story(peer: Peer) -> None:
        assert (await peer.ask(code, header.to_ext(), body)).code == 0
        bodies = [body[:length] for length in range(len(body))]
        for position in range(len(body)):
            number = rng.choice(NUMBERS)
            bodies.append((body[:position] + number + body[position + len(number) :])[: len(body)])
        stored = 0
        for damaged in bodies:
            response = await peer.ask(code, header.to_ext(), damaged)
            assert response.code in {ResponseCode.SUCCESS, *REFUSED}, (damaged, response.remark)
            stored += response.code == 0
        assert stored < len(bodies)
        sent = await peer.send("T", b"last")
        found = await peer.messages("T", int(sent.ext["queueOffset"]))
        assert [message.body for message in found] == [b"last"]

    with structlog.testing.capture_logs() as events:
        with_broker(story, settings_of(tmp_path))
    assert not [event for event in events if event["event"] in ("request_failed", "callback_failed")]
