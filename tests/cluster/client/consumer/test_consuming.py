"""Consuming: number of workers, suspension, internal errors, and failures to start threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from actors.supervisor import Supervisor
from cluster.client.config import PushConfig
from cluster.client.consumer import consuming as module
from cluster.client.consumer.consuming import Consuming
from cluster.client.consumer.listener import Listener, ListenerCall
from cluster.client.consumer.process_queue import ProcessQueue
from cluster.client.consumer.queue_work import CacheLimits, QueueWork, Task
from store.common.clock import SystemClock
from store.message.message import MessageExt
from store.message.message_queue import MessageQueue
from tests.cluster.client.consumer.test_queue_work import FETCHER, chunk
from tests.eventually import LIMIT_S, eventually_async

CONFIG = PushConfig(consume_threads=3, retry_backoff_ms=(1,))
Steps = Callable[[Consuming], Coroutine[Any, Any, None]]


def run(listener: Listener, steps: Steps, config: PushConfig = CONFIG) -> None:
    """Run `steps` with a Consuming that calls `listener` and does not retry failed calls."""

    class NoRetries:
        def failed(self, task: Task, delay_level: int, offer: Callable[[Task], None]) -> None:
            pass

    async def main() -> None:
        clock = SystemClock()
        supervisor = Supervisor(clock)
        call = ListenerCall(listener)
        consuming = Consuming(
            call, config, clock, supervisor, lambda _work: None, NoRetries(), lambda _now_ms: True
        )
        try:
            await steps(consuming)
        finally:
            consuming.stop()
            await supervisor.stop()

    asyncio.run(main())


def queue_with(count: int, queue_id: int = 0) -> QueueWork:
    queue = MessageQueue("T", "a", queue_id)
    work = QueueWork(queue, 1, ProcessQueue(0), CacheLimits.of(PushConfig(), 1), FETCHER)
    assert work.put(chunk(0, count), None)
    return work


def test_listener_calls_are_limited_to_consume_threads() -> None:
    three, lock = threading.Barrier(3), threading.Lock()
    running = most = done = 0

    def listen(messages: list[MessageExt]) -> None:
        nonlocal running, most, done
        with lock:
            running += 1
            most = max(most, running)
        if messages[0].queue_offset < 3:
            three.wait(LIMIT_S)
        with lock:
            running -= 1
            done += 1

    async def steps(consuming: Consuming) -> None:
        consuming.offer(queue_with(60))
        await eventually_async(lambda: done == 60)

    run(listen, steps)
    assert most == 3


def test_one_thread_consumes_whole_queue() -> None:
    threads: list[int] = []

    async def steps(consuming: Consuming) -> None:
        consuming.offer(queue_with(50))
        await eventually_async(lambda: len(threads) == 50)

    run(lambda _messages: threads.append(threading.get_ident()), steps, PushConfig(consume_threads=1))
    assert len(set(threads)) == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_queues_offered_while_suspended_wait_for_resume(is_async: bool) -> None:
    offsets: list[int] = []

    def listen(messages: list[MessageExt]) -> None:
        offsets.append(messages[0].queue_offset)

    async def listen_async(messages: list[MessageExt]) -> None:
        listen(messages)

    async def steps(consuming: Consuming) -> None:
        consuming.suspend(suspended=True)
        works = [queue_with(4, number) for number in range(8)]
        for work in works:
            consuming.offer(work)
        assert not any(work.running for work in works)
        assert not offsets
        consuming.suspend(suspended=False)
        await eventually_async(lambda: len(offsets) == 32)

    run(listen_async if is_async else listen, steps)


@pytest.mark.parametrize("is_async", [False, True])
def test_internal_error_is_logged_and_task_is_retried(
    is_async: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settle, take, bugs = QueueWork.settle, QueueWork.take, ["settle", "take"]

    def settle_later(work: QueueWork, task: Task, *, succeeded: bool) -> bool:
        if "settle" in bugs:
            bugs.remove("settle")
            raise ValueError("a bug in settle")
        return settle(work, task, succeeded=succeeded)

    def take_later(work: QueueWork, count: int, now_ms: int) -> tuple[Task | None, bool]:
        if "take" in bugs:
            bugs.remove("take")
            raise ValueError("a bug in take")
        return take(work, count, now_ms)

    monkeypatch.setattr(QueueWork, "settle", settle_later)
    monkeypatch.setattr(QueueWork, "take", take_later)
    monkeypatch.setattr(module, "BUG_BACKOFF_S", 0.0)

    def listen(_messages: list[MessageExt]) -> None:
        pass

    async def listen_async(_messages: list[MessageExt]) -> None:
        pass

    async def steps(consuming: Consuming) -> None:
        work = queue_with(5)
        consuming.offer(work)
        await eventually_async(lambda: work.process_queue.commit_offset == 5)

    run(listen_async if is_async else listen, steps)
    assert caplog.text.count("consume_failed") == 2
    assert "a bug in take" in caplog.text
    assert "a bug in settle" in caplog.text
    assert "Traceback" in caplog.text


def test_async_listener_without_awaits_does_not_block_event_loop() -> None:
    offsets: list[int] = []
    turns: list[int] = []

    async def listen(messages: list[MessageExt]) -> None:
        offsets.append(messages[0].queue_offset)

    async def steps(consuming: Consuming) -> None:
        consuming.offer(queue_with(100))
        while len(offsets) < 100:
            turns.append(len(offsets))
            await asyncio.sleep(0)

    run(listen, steps, PushConfig(consume_threads=1))
    assert len(set(turns)) > 50


def test_running_thread_consumes_all_if_no_other_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, unblock, offsets = threading.Event(), threading.Event(), list[int]()

    def listen(messages: list[MessageExt]) -> None:
        entered.set()
        assert unblock.wait(LIMIT_S)
        offsets.append(messages[0].queue_offset)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def steps(consuming: Consuming) -> None:
        consuming.offer(queue_with(1))
        await eventually_async(entered.is_set)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            consuming.offer(queue_with(10, 1))
            unblock.set()
            await eventually_async(lambda: len(offsets) == 11)

    run(listen, steps)


def test_consumer_fails_at_creation_if_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def steps(_consuming: Consuming) -> None:
        pass

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        run(print, steps)
