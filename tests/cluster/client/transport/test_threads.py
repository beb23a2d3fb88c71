"""The loop in its thread, what other threads hand to it, and the threads that listeners run in."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from queue import SimpleQueue

import pytest

from cluster.client.config import parse_addresses
from cluster.client.consumer.workers import Job, Workers
from cluster.client.errors import ClientError, ConfigInvalid
from cluster.client.transport.backoff import Backoff
from cluster.client.transport.loop_thread import LoopThread
from tests.eventually import LIMIT_S, NEVER_S


def test_what_one_thread_posts_runs_in_its_order_and_all_of_it() -> None:
    thread = LoopThread("test")
    seen: list[tuple[int, int]] = []
    done = threading.Barrier(5)

    def post(number: int) -> None:
        for count in range(2_000):
            thread.post(seen.append, (number, count))
        thread.post(done.wait) if number == 0 else done.wait(LIMIT_S)

    posters = [threading.Thread(target=post, args=(number,)) for number in range(1, 5)]
    for poster in posters:
        poster.start()
    post(0)
    for poster in posters:
        poster.join(LIMIT_S)
    thread.call(lambda: None)
    for number in range(5):
        assert [count for who, count in seen if who == number] == list(range(2_000))
    thread.stop()


def test_a_call_that_raises_does_not_stop_the_others() -> None:
    thread = LoopThread("test")
    thread.loop.call_soon_threadsafe(thread.loop.set_exception_handler, lambda loop, context: None)
    result: Future[int] = Future()
    gate = threading.Event()
    thread.post(gate.wait)
    thread.post(int, "no number")
    thread.post(result.set_result, 7)
    gate.set()
    assert result.result(LIMIT_S) == 7
    thread.stop()


def test_waiting_for_the_loop_on_the_loop_is_refused() -> None:
    thread = LoopThread("test")

    async def wait_for_itself() -> None:
        thread.run(asyncio.sleep(0))

    with pytest.raises(ClientError, match="wait for ever"):
        thread.run(wait_for_itself())
    thread.stop()


def test_an_error_reaches_the_waiting_thread() -> None:
    thread = LoopThread("test")
    with pytest.raises(ValueError, match="no number"):
        thread.call(lambda: int("no number"))
    thread.stop()


def test_workers_run_at_once_what_they_can_and_never_more() -> None:
    workers = Workers(3, "test")
    running = threading.Barrier(4)
    left = threading.Semaphore(0)
    most = 0
    now = 0
    lock = threading.Lock()

    def job() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        with lock:
            now -= 1
        left.release()

    for _ in range(3):
        workers.put(lambda: running.wait(LIMIT_S) and None)
    running.wait(LIMIT_S)  # three at once
    for _ in range(50):
        workers.put(job)
    assert all(left.acquire(timeout=LIMIT_S) for _ in range(50))
    assert most <= 3
    workers.stop()


def test_a_job_that_puts_another_gets_no_second_thread_for_it() -> None:
    for _ in range(50):
        workers, done = Workers(1, "test"), threading.Event()
        threads: list[int] = []

        def last(threads: list[int] = threads, done: threading.Event = done) -> None:
            threads.append(threading.get_ident())
            done.set()

        def first(workers: Workers = workers, threads: list[int] = threads, last: Job = last) -> None:
            threads.append(threading.get_ident())
            workers.put(last)

        workers.put(first)
        assert done.wait(LIMIT_S)
        workers.stop()
        assert len(set(threads)) == 1


class HaltingJobs(SimpleQueue[Job | None]):
    """Whoever has waited for a job halts when he has got it, before anybody can know."""

    def __init__(self) -> None:
        super().__init__()
        self.is_waited_for, self.is_taken, self.goes_on = (threading.Event() for _ in range(3))

    def get(self, block: bool = True, timeout: float | None = None) -> Job | None:
        self.is_waited_for.set()
        job = super().get(block, timeout)
        self.is_taken.set()
        self.goes_on.wait(NEVER_S)
        return job


def test_a_job_is_not_left_behind_another_while_threads_may_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = HaltingJobs()
    monkeypatch.setattr("cluster.client.consumer.workers.SimpleQueue", lambda: jobs)
    workers = Workers(2, "test")
    second = threading.Event()
    workers.put(lambda: None)
    assert jobs.is_waited_for.wait(LIMIT_S)
    workers.put(lambda: None)
    assert jobs.is_taken.wait(LIMIT_S)
    workers.put(second.set)
    assert second.wait(LIMIT_S)
    jobs.goes_on.set()
    workers.stop()


def test_where_the_system_gives_no_more_threads_those_that_run_do_it_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = Workers(2, "test")
    is_running, goes_on, done = threading.Event(), threading.Event(), threading.Event()
    workers.put(lambda: is_running.set() or (goes_on.wait(LIMIT_S) and None))
    assert is_running.wait(LIMIT_S)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    workers.put(done.set)
    goes_on.set()
    assert done.wait(LIMIT_S)
    workers.stop()
    with pytest.raises(RuntimeError, match="can't start"):
        Workers(2, "none").put(done.set)


def test_a_job_with_a_bug_is_told_and_costs_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    workers = Workers(1, "test")
    done = threading.Event()

    def bug() -> None:
        raise RuntimeError("threads can only be started once")

    workers.put(bug)
    workers.put(done.set)
    assert done.wait(LIMIT_S)
    assert "job_failed" in caplog.text
    assert "threads can only be started once" in caplog.text
    workers.stop()


def test_backoff_doubles_to_its_limit_and_begins_again() -> None:
    backoff = Backoff(first_ms=100, last_ms=400, seed=1)
    delays = [backoff.next_ms() for _ in range(4)]
    for delay_ms, full_ms in zip(delays, (100, 200, 400, 400), strict=True):
        assert 0.8 * full_ms <= delay_ms <= full_ms
    backoff.reset()
    assert backoff.next_ms() <= 100


@pytest.mark.parametrize("given", ["", "host", "host:", ":9876", "host:0", "host:70000", "a:1;b"])
def test_addresses_that_are_none_are_refused_by_name(given: str) -> None:
    with pytest.raises(ConfigInvalid):
        parse_addresses(given)


def test_addresses_may_be_written_as_rocketmq_has_them() -> None:
    assert parse_addresses("a:1;b:2, c:3") == parse_addresses(["a:1", "b:2", "c:3"]) == ["a:1", "b:2", "c:3"]
