"""Jobs run whatever earlier work did; their results are passed to the owner's thread."""

from __future__ import annotations

import threading

import structlog.testing

from store.common.background import BackgroundWork, wait_for
from tests.eventually import LIMIT_S
from tests.store.stepped import StepByStep


def failing(error: Exception) -> None:
    raise error


def test_job_disk_error_is_passed_to_its_callback() -> None:
    work, error = BackgroundWork(), OSError(28, "No space left on device")
    lane = work.lane("test")
    ended: list[object] = []
    with structlog.testing.capture_logs() as logs:
        lane.submit(lambda: failing(error), ended.append)
        lane.submit(lambda: None, ended.append)
        lane.finish()
    assert ended == [error, None]
    assert logs == []
    work.close()


def test_job_bug_is_logged_and_later_jobs_still_run() -> None:
    work, fault = BackgroundWork(), ZeroDivisionError()
    lane = work.lane("test")
    ended: list[object] = []
    with structlog.testing.capture_logs() as logs:
        lane.submit(lambda: failing(fault), ended.append)
        lane.submit(lambda: None, ended.append)
        lane.finish()
    assert ended == [fault, None]
    assert [line["event"] for line in logs] == ["job_failed"]
    work.close()


def test_on_ended_is_called_before_the_owner_collects_the_result() -> None:
    work = BackgroundWork()
    is_called, threads = threading.Event(), []
    work.on_work_done(is_called.set)
    future = work.lane("test").submit(lambda: 7, lambda _: threads.append(threading.current_thread()))
    assert is_called.wait(LIMIT_S)
    assert (future.done(), threads) == (True, [])
    work.collect()
    assert threads == [threading.current_thread()]
    work.close()


def test_on_ended_is_called_for_jobs_that_finished_before_it_was_set() -> None:
    work, is_called = BackgroundWork(), threading.Event()
    wait_for(work.lane("test").submit(lambda: None), LIMIT_S)
    work.on_work_done(is_called.set)
    assert is_called.is_set()
    work.close()


def test_lanes_run_independently() -> None:
    work, may_continue = BackgroundWork(), threading.Event()
    slow = work.lane("slow").submit(lambda: may_continue.wait(LIMIT_S))
    quick = work.lane("quick")
    quick.submit(lambda: None)
    quick.finish()
    assert not slow.done()
    may_continue.set()
    work.close()


def test_given_executor_runs_jobs_when_it_is_stepped() -> None:
    executor, ended = StepByStep(), []
    work = BackgroundWork(lambda _name, _threads: executor)
    lane = work.lane("test")
    lane.submit(lambda: ended.append("run"), ended.append)
    work.collect()
    assert ended == []
    assert executor.step()
    assert ended == ["run"]
    work.collect()
    assert ended == ["run", None]
    assert not executor.step()
    lane.submit(lambda: ended.append("later"))
    lane.finish()  # runs what is still waiting, instead of waiting forever
    assert ended == ["run", None, "later"]
    work.close()


def test_store_with_a_given_executor_starts_no_thread(stores, draft, monkeypatch) -> None:
    """Recovery, file allocation, checkpoints and units all run in steps of the executor."""

    def refuse(_thread: threading.Thread) -> None:
        raise AssertionError("a thread was started")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    executor = StepByStep()
    for _ in range(2):
        store = stores.open(executors=lambda _name, _threads: executor, preallocate=True)
        for number in range(20):
            store.append(draft(b"x" * 1000, queue_id=number))
        store.flush_now()
        store.advance()
        while executor.step():
            store.advance()
        store.dispatch_now()
        copy = stores.kill(store, f"killed-{len(stores.opened)}")
        store.close()
    again = stores.open(copy.name, executors=lambda _name, _threads: executor)
    assert again.max_offset("Topic", 0) == 2
