"""GET_TIMER_CHECK_POINT and GET_TIMER_METRICS, with RocketMQ's codes and bodies."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from actors.wire.codes import RequestCode, ResponseCode
from store.timer.timer_checkpoint import TimerCheckpoint
from tests.actors.broker.brokers import Peer, with_broker
from tests.actors.broker.features.timer.timers import START_MS, rounds, send_at, timer_settings


def test_timer_check_point_and_metrics_are_those_of_the_files(tmp_path: Path, clock) -> None:
    settings = timer_settings(tmp_path)

    async def before(peer: Peer) -> None:
        first = await peer.ask(RequestCode.GET_TIMER_CHECK_POINT)
        assert (first.code, TimerCheckpoint.decode(first.body)) == (0, TimerCheckpoint(START_MS))
        for number in range(3):
            await send_at(peer, START_MS + 60_000, topic="T" if number else "U")
        await rounds(peer)
        table = orjson.loads((await peer.ask(RequestCode.GET_TIMER_METRICS)).body)
        assert table["timingCount"] == {
            "T": {"count": 2, "timeStamp": START_MS},
            "U": {"count": 1, "timeStamp": START_MS},
        }
        assert table["dataVersion"]["counter"] == 3

    async def after(peer: Peer) -> None:
        saved = (tmp_path / "store/config/timercheck").read_bytes()
        body = bytes((await peer.ask(RequestCode.GET_TIMER_CHECK_POINT)).body)
        assert (body, TimerCheckpoint.decode(body).queue_offset) == (saved[:56], 3)
        saved = (tmp_path / "store/config/timermetrics").read_bytes()
        assert orjson.loads((await peer.ask(RequestCode.GET_TIMER_METRICS)).body) == orjson.loads(saved)

    with_broker(before, settings, clock)
    with_broker(after, settings, clock)


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (RequestCode.GET_TIMER_CHECK_POINT, "The checkpoint is null"),
        (RequestCode.GET_TIMER_METRICS, "The timer message store is null"),
    ],
)
def test_broker_without_timer_refuses_with_rocketmq_remark(tmp_path: Path, code: int, remark: str) -> None:
    async def story(peer: Peer) -> None:
        response = await peer.ask(code)
        expected = f"{remark}: set timer_wheel_enable to true on the broker"
        assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, expected)

    with_broker(story, timer_settings(tmp_path, timer_wheel_enable=False))
