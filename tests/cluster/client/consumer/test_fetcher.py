"""Fetcher: buffer limit, back-off, offset moves, failures and changed filter expressions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actors.supervisor import Supervisor
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from cluster.client.config import ConsumerConfig
from cluster.client.consumer import fetcher as module
from cluster.client.consumer.fetcher import Chunk, Fetcher, PullSender
from cluster.client.errors import BrokerUnreachable, ClientError, DeadlineExceeded
from cluster.client.message_selector import ALL_MESSAGES, MessageSelector
from cluster.client.transport.instance import ClientInstance
from store.common.clock import SystemClock
from store.message.message_queue import MessageQueue
from tests.eventually import eventually_async

QUEUE = MessageQueue("T", "a", 0)
MAX_REQUESTS = 200


def response(
    code: int = ResponseCode.SUCCESS, following: int = 1, body: bytes = b"x" * 100, **more: str
) -> RemotingCommand:
    ext = {"nextBeginOffset": str(following), "minOffset": "0", "maxOffset": "9", "count": "1", **more}
    return RemotingCommand(code, ext, body)


class Broker:
    """Fake ClientInstance with one broker. `script(number, request)` returns each response.

    `script` returns a ClientError to raise it, or None to leave the request without a response.
    """

    def __init__(
        self, script: Callable[[int, RemotingCommand], RemotingCommand | ClientError | None]
    ) -> None:
        self.config = SimpleNamespace(request_timeout_ms=3_000)
        self.routes = SimpleNamespace(refresh=self._refresh, peek=lambda topic: None)
        self.requests: list[RemotingCommand] = []
        self.timeouts_ms: list[int] = []
        self.refreshed = 0
        self.time_ms = 0
        self.held_ms = 0
        self._script = script

        async def sleep(_delay_s: float) -> None:
            await asyncio.sleep(0)

        self.supervisor = Supervisor(SystemClock(), sleep=sleep)

    def now_ms(self) -> int:
        return self.time_ms

    def replica_of(self, topic: str, broker_name: str, broker_id: int) -> str:
        return f"{broker_name}:{topic}"

    async def request(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        assert len(self.requests) < MAX_REQUESTS, "the fetcher sends requests in an endless loop"
        self.requests.append(command)
        self.timeouts_ms.append(timeout_ms)
        await asyncio.sleep(0)
        self.time_ms += self.held_ms
        outcome = self._script(len(self.requests) - 1, command)
        if outcome is None:
            await asyncio.Event().wait()
        if isinstance(outcome, ClientError):
            raise outcome
        assert outcome is not None
        return outcome

    async def _refresh(self, topic: str) -> None:
        self.refreshed += 1


class Sink:
    def __init__(self) -> None:
        self.chunks: list[Chunk] = []

    def arrived(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)


def run(
    broker: Broker,
    steps: Callable[[Fetcher, Sink, list[float]], Coroutine[Any, Any, None]],
    monkeypatch: pytest.MonkeyPatch,
    consumed: Callable[[], int] | None = None,
) -> None:
    """Run a fetcher and `steps(fetcher, sink, slept)`. `slept` lists the back-off times in seconds.

    The fetcher does not really sleep.
    """
    slept: list[float] = []

    async def sleep(delay_s: float) -> None:
        slept.append(delay_s)
        await asyncio.sleep(0)

    monkeypatch.setattr(
        module, "asyncio", SimpleNamespace(sleep=sleep, Event=asyncio.Event, Task=asyncio.Task)
    )

    async def main() -> None:
        sink = Sink()
        instance = cast("ClientInstance", broker)
        puller = PullSender(instance, ConsumerConfig(fetch_bytes=1_000))
        fetcher = Fetcher(instance, puller, QUEUE, 0, ALL_MESSAGES, lambda: 250, sink, consumed)
        fetcher.start()
        await steps(fetcher, sink, slept)
        fetcher.stop()

    asyncio.run(main())


async def settled(turns: int = 50) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


def test_fetcher_stops_at_buffer_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(lambda number, _: response(following=number + 1))

    async def steps(fetcher: Fetcher, sink: Sink, slept: list[float]) -> None:
        await settled()
        assert [chunk.begin_offset for chunk in sink.chunks] == [0, 1, 2]  # 300 bytes; the limit is 250
        assert {request.ext["maxBytes"] for request in broker.requests} == {"250"}
        fetcher.consumed(50)
        await settled()
        assert len(sink.chunks) == 3
        fetcher.consumed(50)
        await settled()
        assert len(sink.chunks) == 4
        fetcher.pause(paused=True)
        fetcher.consumed(300)
        await settled()
        assert len(sink.chunks) == 4
        fetcher.pause(paused=False)
        await settled()
        assert len(sink.chunks) == 7
        assert not slept

    run(broker, steps, monkeypatch)


def test_fetcher_backs_off_if_broker_does_not_hold_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(lambda number, _: response(ResponseCode.PULL_NOT_FOUND) if number < 10 else None)

    async def steps(_fetcher: Fetcher, sink: Sink, slept: list[float]) -> None:
        await settled()
        assert len(slept) == 10
        assert slept[0] <= 0.05 < slept[1] * 2
        assert slept[-1] > 0.5
        assert not sink.chunks
        assert not broker.refreshed

    run(broker, steps, monkeypatch)


def test_fetcher_pulls_immediately_after_held_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(lambda number, _: response(ResponseCode.PULL_NOT_FOUND) if number < 10 else None)
    broker.held_ms = 15_000

    async def steps(_fetcher: Fetcher, _sink: Sink, slept: list[float]) -> None:
        await settled()
        assert len(broker.requests) == 11
        assert not slept

    run(broker, steps, monkeypatch)


@pytest.mark.parametrize("code", [ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED])
def test_response_without_records_moves_offset(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(lambda number, _: response(code, 7) if not number else None)

    async def steps(fetcher: Fetcher, sink: Sink, _slept: list[float]) -> None:
        await settled()
        [chunk] = sink.chunks
        assert (chunk.begin_offset, chunk.next_offset, bytes(chunk.records)) == (0, 7, b"")
        assert fetcher.offset == 7
        assert broker.requests[-1].ext["queueOffset"] == "7"

    run(broker, steps, monkeypatch)


def test_fetcher_names_the_epoch_of_the_log_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    code = ResponseCode.PULL_RETRY_IMMEDIATELY
    broker = Broker(lambda number, _: response(code, 0, history="e1") if not number else None)

    async def steps(_fetcher: Fetcher, _sink: Sink, slept: list[float]) -> None:
        await settled()
        assert [each.ext["history"] for each in broker.requests] == ["", "e1"]
        assert not slept

    run(broker, steps, monkeypatch)


def test_epoch_of_one_replica_is_not_named_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The position is of the slave's log; the master's epoch may have ended before."""
    retry, slave = ResponseCode.PULL_RETRY_IMMEDIATELY, {"suggestWhichBrokerId": "1"}
    script = [response(retry, 0, history="e1"), response(following=2, **slave), response(following=3)]
    broker = Broker(lambda number, _: script[number] if number < len(script) else None)
    monkeypatch.setattr(broker, "replica_of", lambda topic, name, broker_id: f"{name}-{broker_id}")

    async def steps(fetcher: Fetcher, _sink: Sink, _slept: list[float]) -> None:
        await settled()
        assert [each.ext["history"] for each in broker.requests] == ["", "e1", "", ""]
        assert fetcher.epoch.id == ""

    run(broker, steps, monkeypatch)


@pytest.mark.parametrize(("consumed", "resumed"), [(None, 5), (3, 3), (9, 5)])
def test_fetcher_goes_back_with_the_log_to_what_is_consumed(
    consumed: int | None, resumed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = [response(following=9), response(ResponseCode.PULL_OFFSET_MOVED, 5, history="e2")]
    broker = Broker(lambda number, _: script[number] if number < len(script) else None)

    async def steps(fetcher: Fetcher, sink: Sink, _slept: list[float]) -> None:
        await settled()
        assert (sink.chunks[-1].has_gone_back, sink.chunks[-1].next_offset) == (True, resumed)
        assert (fetcher.offset, fetcher.epoch.id) == (resumed, "e2")
        assert broker.requests[-1].ext["queueOffset"] == f"{resumed}"

    run(broker, steps, monkeypatch, None if consumed is None else lambda: consumed)


def test_each_failure_type_is_logged_once_and_refreshes_route(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[ClientError] = [
        BrokerUnreachable("unreachable"),
        BrokerUnreachable("unreachable"),
        DeadlineExceeded("slow"),
    ]
    broker = Broker(lambda number, _: failures[number] if number < 3 else None if number > 3 else response())

    async def steps(_fetcher: Fetcher, sink: Sink, slept: list[float]) -> None:
        await settled()
        assert len(sink.chunks) == 1
        assert len(slept) == broker.refreshed == 3

    with caplog.at_level(logging.INFO):
        run(broker, steps, monkeypatch)
    assert caplog.text.count("fetch_failed") == 2
    assert caplog.text.count("fetch_resumed") == 1
    assert caplog.text.index("fetch_failed") < caplog.text.index("fetch_resumed")


def test_error_response_and_fallback_to_plain_pull(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = [
        RemotingCommand(ResponseCode.NO_PERMISSION, remark="no"),
        RemotingCommand(ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        response(body=(40).to_bytes(4, "big") + bytes(36)),
    ]
    broker = Broker(lambda number, _: script[number] if number < 3 else None)

    async def steps(_fetcher: Fetcher, sink: Sink, slept: list[float]) -> None:
        await settled()
        assert len(slept) == 1
        ours, theirs = int(RayMQRequestCode.PULL_RECORDS), int(RequestCode.PULL_MESSAGE)
        assert [request.code for request in broker.requests] == [ours, ours, theirs, theirs]
        # RocketMQ's brokers check only every 5 s whether a held pull has timed out.
        assert broker.timeouts_ms == [18_000, 18_000, 23_000, 23_000]
        assert [chunk.count for chunk in sink.chunks] == [1]

    run(broker, steps, monkeypatch)


def test_changed_expression_repeats_pull_immediately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Broker(lambda _number, _request: None)

    async def steps(fetcher: Fetcher, _sink: Sink, _slept: list[float]) -> None:
        await settled()
        fetcher.filter_by(ALL_MESSAGES)
        await settled()
        assert [request.ext["subscription"] for request in broker.requests] == ["*"]
        fetcher.filter_by(MessageSelector("a || b"))
        await settled()
        assert [request.ext["subscription"] for request in broker.requests] == ["*", "a || b"]
        fetcher.stop()
        await settled()
        fetcher.filter_by(MessageSelector("c"))  # a stopped fetcher stays stopped
        await settled()
        assert len(broker.requests) == 2

    run(broker, steps, monkeypatch)


def test_records_are_fetched_again_if_sink_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(lambda number, _: response() if number < 2 else None)

    async def steps(_fetcher: Fetcher, sink: Sink, _slept: list[float]) -> None:
        arrived, refused = sink.arrived, list[Chunk]()

        def refuse_the_first(chunk: Chunk) -> None:
            if not refused:
                refused.append(chunk)
                raise ValueError
            arrived(chunk)

        monkeypatch.setattr(sink, "arrived", refuse_the_first)
        await eventually_async(lambda: sink.chunks)
        assert [chunk.begin_offset for chunk in refused + sink.chunks] == [0, 0]
        assert broker.supervisor.failures == 1

    run(broker, steps, monkeypatch)
