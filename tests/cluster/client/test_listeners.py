"""Misbehaving listeners: they exit, return invalid values, or close their own consumer."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from concurrent.futures import Future
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import pytest

from cluster.client import MessageExt, Producer, PullConsumer, PushConfig, PushConsumer, aio
from cluster.client.transport.loop_thread import LoopThread
from store.common import logs
from tests.eventually import LIMIT_S, NEVER_S, eventually, eventually_async

from .conftest import Cluster
from .test_pull_consumer import committed, fill, poll_numbers

QUICK = PushConfig(
    consume_threads=2,
    retry_backoff_ms=(20,),
    max_reconsume_times=1,
    close_timeout_ms=int(NEVER_S * 1000),
)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, StopIteration])
@pytest.mark.parametrize("is_async", [False, True])
def test_base_exceptions_of_listener_are_retried(
    cluster: Cluster, group: str, kind: type[BaseException], is_async: bool
) -> None:
    topic, bodies = cluster.topic(queues=1), []
    fill(cluster, topic, 12)

    def listen(messages: list[MessageExt]) -> None:
        bodies.extend(message.body for message in messages)
        if int(messages[0].body) < 3:
            raise kind

    async def listen_async(messages: list[MessageExt]) -> None:
        listen(messages)

    # Python itself converts a StopIteration of an async function into a RuntimeError.
    config = replace(QUICK, commit_interval_ms=20)
    with PushConsumer(
        cluster.address, group, listen_async if is_async else listen, config=config
    ) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: committed(cluster, group, topic) == 12)
    assert len(bodies) == 12 + 3
    with PullConsumer(cluster.address, f"{group}-dead") as reader:
        reader.assign(reader.queues(f"%DLQ%{group}"))
        assert sorted(poll_numbers(reader, 3)) == [0, 1, 2]


@pytest.mark.parametrize("is_async", [False, True])
def test_failing_log_handler_does_not_prevent_retry(
    cluster: Cluster, group: str, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, bodies = cluster.topic(queues=1), []
    fill(cluster, topic, 2)

    class FailingHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("Set changed size during iteration")

    def listen(messages: list[MessageExt]) -> None:
        bodies.extend(message.body for message in messages)
        if len(bodies) == 1:
            raise ValueError("once")

    async def listen_async(messages: list[MessageExt]) -> None:
        listen(messages)

    monkeypatch.setattr(logging.getLogger(logs.LOGGER_NAME), "handlers", [FailingHandler()])
    config = replace(QUICK, commit_interval_ms=20)
    with PushConsumer(
        cluster.address, group, listen_async if is_async else listen, config=config
    ) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: len(bodies) == 3)
    assert committed(cluster, group, topic) == 2


def test_exit_in_callback_does_not_end_event_loop() -> None:
    thread = LoopThread("test")
    thread.post(sys.exit, 1)
    result: Future[int] = Future()
    thread.post(result.set_result, 7)
    assert thread.call(lambda: 8) == 8
    assert result.result(LIMIT_S) == 7
    thread.stop()


@pytest.mark.parametrize("result", [5, "CONSUME_SUCCESS", [], object()])
def test_invalid_result_of_listener_is_logged_with_remedy(
    cluster: Cluster, group: str, result: Any, caplog: pytest.LogCaptureFixture
) -> None:
    topic, calls = cluster.topic(queues=1), []
    fill(cluster, topic, 1)

    def listen(messages: list[MessageExt]) -> Any:
        calls.append(messages)
        return result

    with (
        caplog.at_level(logging.WARNING),
        PushConsumer(cluster.address, group, listen, config=QUICK) as consumer,
    ):
        consumer.subscribe(topic)
        eventually(lambda: len(calls) == 2)
    assert "the listener returned" in caplog.text
    assert "RECONSUME_LATER" in caplog.text


def test_plain_listener_may_return_coroutine(cluster: Cluster, group: str) -> None:
    topic, bodies, threads = cluster.topic(queues=1), [], set()
    fill(cluster, topic, 10)

    async def work(messages: list[MessageExt]) -> bool:
        await asyncio.sleep(0)
        threads.add(threading.current_thread().name)
        bodies.extend(message.body for message in messages)
        return len(bodies) != 5

    with PushConsumer(cluster.address, group, lambda messages: work(messages), config=QUICK) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: len(bodies) == 11)
    assert committed(cluster, group, topic) == 10
    assert threads == {LoopThread.shared().call(lambda: threading.current_thread().name)}


def test_listener_that_clears_its_list_loses_no_message(cluster: Cluster, group: str) -> None:
    topic, bodies = cluster.topic(queues=1), []
    fill(cluster, topic, 5)

    def listen(messages: list[MessageExt]) -> bool:
        bodies.extend(message.body for message in messages)
        messages.clear()
        return len(bodies) > 5

    with PushConsumer(cluster.address, group, listen, config=QUICK) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: len(bodies) == 10)
    assert committed(cluster, group, topic) == 5


def test_listener_may_close_its_consumer(cluster: Cluster, group: str) -> None:
    topic, bodies = cluster.topic(queues=1), []
    fill(cluster, topic, 20)

    def listen(messages: list[MessageExt]) -> None:
        bodies.extend(message.body for message in messages)
        if len(bodies) == 3:
            consumer.close()
            bodies.append(b"closed")

    config = PushConfig(consume_threads=1, close_timeout_ms=int(NEVER_S * 1000))
    consumer = PushConsumer(cluster.address, group, listen, config=config)
    consumer.subscribe(topic)
    joining = threading.Thread(target=consumer.join, daemon=True)
    joining.start()
    joining.join(LIMIT_S)
    assert not joining.is_alive()
    assert bodies.pop() == b"closed"
    assert committed(cluster, group, topic) == len(bodies) == 3


def test_async_listener_may_close_its_consumer(cluster: Cluster, group: str) -> None:
    topic, bodies = cluster.topic(queues=1), []
    fill(cluster, topic, 20)

    async def main() -> None:
        async def listen(messages: list[MessageExt]) -> None:
            bodies.extend(message.body for message in messages)
            if len(bodies) == 3:
                await consumer.close()

        config = PushConfig(consume_threads=1, close_timeout_ms=int(NEVER_S * 1000))
        consumer = aio.PushConsumer(cluster.address, group, listen, config=config)
        await consumer.subscribe(topic)
        async with asyncio.timeout(LIMIT_S):
            await consumer.join()

    asyncio.run(main())
    assert committed(cluster, group, topic) == len(bodies) == 3


def test_listener_may_outlive_its_event_loop(
    cluster: Cluster, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 1)
    threads: SimpleQueue[threading.Thread] = SimpleQueue()
    unblock = threading.Event()

    def listen(messages: list[MessageExt]) -> None:
        threads.put(threading.current_thread())
        assert unblock.wait(LIMIT_S)

    async def main() -> None:
        config = PushConfig(consume_threads=1, close_timeout_ms=1)
        async with aio.PushConsumer(cluster.address, group, listen, config=config) as consumer:
            await consumer.subscribe(topic)
            await eventually_async(lambda: not threads.empty())

    asyncio.run(main())
    assert "close_timed_out" in caplog.text
    unblock.set()
    thread = threads.get(timeout=LIMIT_S)
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert "consume_failed" not in caplog.text


PROGRAM = """
import sys, threading
from cluster.client import PushConfig, PushConsumer
called = threading.Event()
def listen(messages):
    called.set()
    raise ValueError("no such customer")
with PushConsumer(sys.argv[1], sys.argv[2], listen, config=PushConfig(retry_backoff_ms=[60_000])) as consumer:
    consumer.subscribe(sys.argv[3])
    assert called.wait(600)
"""


def test_listener_error_goes_to_stderr_without_logging_setup(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    with Producer(cluster.address, group) as producer:
        producer.send(topic, b"1")
    command = [sys.executable, "-c", PROGRAM, cluster.address, group, topic]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    assert "listener_failed" in ended.stderr
    assert "ValueError: no such customer" in ended.stderr
    assert ended.stdout == ""
