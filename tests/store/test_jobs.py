"""Jobs run whatever earlier jobs did; their results are passed to the owner's thread."""

from __future__ import annotations

import threading

import structlog.testing

from store.jobs import Jobs
from tests.eventually import LIMIT_S


def failing(error: Exception) -> None:
    raise error


def test_job_disk_error_is_passed_to_its_callback() -> None:
    jobs, error = Jobs(), OSError(28, "No space left on device")
    lane = jobs.lane("test")
    ended: list[object] = []
    with structlog.testing.capture_logs() as logs:
        lane.submit(lambda: failing(error), ended.append)
        lane.submit(lambda: None, ended.append)
        lane.finish()
    assert ended == [error, None]
    assert logs == []
    jobs.close()


def test_job_bug_is_logged_and_later_jobs_still_run() -> None:
    jobs, fault = Jobs(), ZeroDivisionError()
    lane = jobs.lane("test")
    ended: list[object] = []
    with structlog.testing.capture_logs() as logs:
        lane.submit(lambda: failing(fault), ended.append)
        lane.submit(lambda: None, ended.append)
        lane.finish()
    assert ended == [fault, None]
    assert [line["event"] for line in logs] == ["job_failed"]
    jobs.close()


def test_on_ended_is_called_before_the_owner_collects_the_result() -> None:
    jobs = Jobs()
    is_called, threads = threading.Event(), []
    jobs.on_job_done(is_called.set)
    future = jobs.lane("test").submit(lambda: 7, lambda _: threads.append(threading.current_thread()))
    assert is_called.wait(LIMIT_S)
    assert (future.done(), threads) == (True, [])
    jobs.collect()
    assert threads == [threading.current_thread()]
    jobs.close()


def test_lanes_run_independently() -> None:
    jobs, may_continue = Jobs(), threading.Event()
    slow = jobs.lane("slow").submit(lambda: may_continue.wait(LIMIT_S))
    quick = jobs.lane("quick")
    quick.submit(lambda: None)
    quick.finish()
    assert not slow.done()
    may_continue.set()
    jobs.close()
