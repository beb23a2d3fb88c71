"""BackgroundWork: blocking disk work of a store, run outside the thread that owns the store (the owner).

    owner: lane.submit(work, done) ──→ a thread of the lane: work() ──→ on_work_done()
                                                                           │
    owner: done(error) ←── collect() ←─────────────────────────────────────┘

A lane is a queue of jobs with its own threads; a job is one call of `submit`. `work` must not touch the state
of the store; `done` may, as it runs in the owner's thread. An OSError of `work` is an expected result that
`done` handles. Any other exception is a bug: it is logged with its traceback and passed to `done` as well, so
that no caller waits for the job forever.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from store.common.logs import get_logger

_log = get_logger(__name__)

Done = Callable[[Exception | None], None]
Result = TypeVar("Result")
Executors: TypeAlias = Callable[[str, int], Executor]
"""Returns the executor of a new lane, given the lane's name and its maximum number of threads."""


def thread_pool(name: str, threads: int) -> Executor:
    """Return an executor of up to `threads` threads, which start on demand; their names start with `name`."""
    return ThreadPoolExecutor(threads, thread_name_prefix=name)


def wait_for(future: Future[Any], timeout_s: float | None = None) -> None:
    """Wait until a job is finished or cancelled, or until the time-out.

    This requests its exception, because an executor without threads runs the job at the latest then.
    """
    with suppress(TimeoutError, CancelledError):
        future.exception(timeout_s)


def _ignore(_error: Exception | None = None) -> None:
    """Default for `done`: ignore the error of a job."""


class Lane:
    """A queue of jobs with its own threads, which run the jobs in the order of `submit`.

    Lanes are created by `BackgroundWork.lane`.
    """

    def __init__(
        self,
        executor: Executor,
        add_done_job: Callable[[Done, Exception | None], None],
        wake: Callable[[], object],
        collect: Callable[[], None],
    ) -> None:
        self._executor = executor
        self._add_done = add_done_job
        self._wake = wake
        self._collect = collect
        # Finished futures are removed: the traceback of an error would keep the objects of its job alive.
        self._pending: set[Future[Any]] = set()

    def submit(self, work: Callable[[], Result], done: Done = _ignore) -> Future[Result]:
        """Queue `work` to be run in a thread of the lane.

        When it has finished, the next `collect` calls `done` with the exception that it raised, or None.
        """
        future = self._executor.submit(self._run, work, done)
        self._pending.add(future)
        future.add_done_callback(self._remove_pending)
        return future

    def finish(self) -> None:
        """Wait until all jobs of this lane are finished, then call their `done` functions."""
        for future in list(self._pending):
            wait_for(future)
        self._collect()

    def close(self) -> None:
        """Wait for the running jobs, cancel the queued ones, and stop the threads."""
        self._executor.shutdown(cancel_futures=True)

    def _remove_pending(self, future: Future[Any]) -> None:
        self._pending.discard(future)
        self._wake()

    def _run(self, work: Callable[[], Result], done: Done) -> Result:
        try:
            result = work()
        except Exception as error:
            if not isinstance(error, OSError):
                _log.exception("job_failed", job=getattr(work, "__qualname__", repr(work)))
            self._add_done(done, error)
            raise
        self._add_done(done, None)
        return result


class BackgroundWork:
    """The lanes of one owner, for example a store. Only the owner's thread may call the methods."""

    def __init__(self, executors: Executors = thread_pool) -> None:
        """Create the owner's work; a simulator gives executors that run the jobs step by step."""
        self._executors = executors
        self._lanes: list[Lane] = []
        self._done: deque[tuple[Done, Exception | None]] = deque()
        self._on_work_done: Callable[[], object] = _ignore

    def lane(self, name: str, threads: int = 1) -> Lane:
        """Return a new lane of up to `threads` threads, which start on demand.

        The names of the threads start with `name`.
        """
        executor = self._executors(name, threads)
        lane = Lane(executor, self._add_done, lambda: self._on_work_done(), self.collect)
        self._lanes.append(lane)
        return lane

    def on_work_done(self, callback: Callable[[], object]) -> None:
        """Set a function that is called, in a thread of the lane, each time a job has finished.

        The owner must then call `collect`. Called at once if jobs have finished already.
        """
        self._on_work_done = callback
        if self._done:
            callback()

    def collect(self) -> None:
        """Call the `done` functions of all jobs that have finished since the last call."""
        while self._done:
            done, error = self._done.popleft()
            done(error)

    def finish(self) -> None:
        """Wait until the jobs of all lanes are finished, and call their `done` functions."""
        for lane in self._lanes:
            lane.finish()

    def close(self) -> None:
        """Close all lanes, and call the `done` functions of their jobs."""
        for lane in self._lanes:
            lane.close()
        self.collect()

    def _add_done(self, done: Done, error: Exception | None) -> None:
        self._done.append((done, error))
