"""Jobs run whatever earlier work did; their results are passed to the owner's thread."""

from __future__ import annotations

import threading

import structlog.testing

from store.background import BackgroundWork
from tests.eventually import LIMIT_S


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


def test_lanes_run_independently() -> None:
    work, may_continue = BackgroundWork(), threading.Event()
    slow = work.lane("slow").submit(lambda: may_continue.wait(LIMIT_S))
    quick = work.lane("quick")
    quick.submit(lambda: None)
    quick.finish()
    assert not slow.done()
    may_continue.set()
    work.close()
