"""Jobs in the background come to their end, whatever those before them did."""

from __future__ import annotations

import threading

import pytest

from store.disk.background import Background
from tests.eventually import LIMIT_S


class Run:
    """A job that fails, or says that it has run."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.ended = threading.Event()

    def run(self) -> None:
        if self.error is not None:
            raise self.error
        self.ended.set()


def test_an_error_of_the_disk_is_given_back_with_its_job() -> None:
    background, error = Background(), OSError(28, "No space left on device")
    failing, following = Run(error), Run()
    background.submit(failing)
    background.submit(following)
    background.finish()
    assert background.collect() == [(failing, error), (following, None)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_of_one_job_stops_no_job_after_it() -> None:
    background = Background()
    background.submit(Run(ZeroDivisionError()))
    assert background._thread is not None
    background._thread.join(LIMIT_S)
    following = Run()
    background.submit(following)
    assert following.ended.wait(LIMIT_S)
    background.finish()
