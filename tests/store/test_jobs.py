"""Jobs end, whatever those before them did; their outcome comes back to the owner's thread."""

from __future__ import annotations

import threading

import structlog.testing

from store.jobs import Jobs
from tests.eventually import LIMIT_S


def failing(error: Exception) -> None:
    raise error


def test_an_error_of_the_disk_comes_back_to_the_owner() -> None:
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


def test_a_fault_is_logged_and_stops_no_job_after_it() -> None:
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


def test_the_owner_is_called_when_a_job_has_ended_and_its_outcome_can_be_taken() -> None:
    jobs = Jobs()
    is_called, threads = threading.Event(), []
    jobs.on_job_done(is_called.set)
    future = jobs.lane("test").submit(lambda: 7, lambda _: threads.append(threading.current_thread()))
    assert is_called.wait(LIMIT_S)
    assert (future.done(), threads) == (True, [])
    jobs.collect()
    assert threads == [threading.current_thread()]
    jobs.close()


def test_lanes_do_not_wait_for_each_other() -> None:
    jobs, goes_on = Jobs(), threading.Event()
    slow = jobs.lane("slow").submit(lambda: goes_on.wait(LIMIT_S))
    quick = jobs.lane("quick")
    quick.submit(lambda: None)
    quick.finish()
    assert not slow.done()
    goes_on.set()
    jobs.close()
