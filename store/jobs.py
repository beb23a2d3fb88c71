"""Jobs: work of a store that waits for the disk, run off the thread that owns the store.

    owner: lane.submit(work, done) ──→ a thread of the lane: work() ──→ on_ended()
                                                                           │
    owner: done(error) ←── collect() ←─────────────────────────────────────┘

Nothing of the store is touched in between. An OSError of `work` is an outcome that `done` handles. Any other
exception is a bug: it is logged with its traceback and given to `done` as well, so that nothing waits for
the job forever.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from store.logs import get_logger

_log = get_logger(__name__)

Done = Callable[[Exception | None], None]
Result = TypeVar("Result")


def _ignore(_error: Exception | None = None) -> None:
    """Do nothing."""


class Lane:
    """Threads that run jobs in the order in which they were submitted. Made by `Jobs.lane`."""

    def __init__(
        self,
        executor: ThreadPoolExecutor,
        end: Callable[[Done, Exception | None], None],
        wake: Callable[[], object],
        collect: Callable[[], None],
    ) -> None:
        self._executor = executor
        self._end = end
        self._wake = wake
        self._collect = collect
        self._pending: set[Future[Any]] = set()  # no others: an error keeps what its job has used

    def submit(self, work: Callable[[], Result], done: Done = _ignore) -> Future[Result]:
        """Run `work` in a thread; call `done` in a later `collect`."""
        future = self._executor.submit(self._run, work, done)
        self._pending.add(future)
        future.add_done_callback(self._leave)
        return future

    def finish(self) -> None:
        """Wait for all jobs of this lane, and collect."""
        wait(list(self._pending))
        self._collect()

    def close(self) -> None:
        """Wait for the running jobs, cancel the others and end the threads."""
        self._executor.shutdown(cancel_futures=True)

    def _leave(self, future: Future[Any]) -> None:
        self._pending.discard(future)
        self._wake()

    def _run(self, work: Callable[[], Result], done: Done) -> Result:
        try:
            result = work()
        except Exception as error:
            if not isinstance(error, OSError):
                _log.exception("job_failed", job=getattr(work, "__qualname__", repr(work)))
            self._end(done, error)
            raise
        self._end(done, None)
        return result


class Jobs:
    """The lanes of one owner. Only the owner's thread calls."""

    def __init__(self) -> None:
        self._lanes: list[Lane] = []
        self._ended: deque[tuple[Done, Exception | None]] = deque()
        self._on_ended: Callable[[], object] = _ignore

    def lane(self, name: str, threads: int = 1) -> Lane:
        """Return a new lane; its threads are started when they are needed."""
        executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        lane = Lane(executor, self._end, lambda: self._on_ended(), self.collect)
        self._lanes.append(lane)
        return lane

    def on_ended(self, callback: Callable[[], object]) -> None:
        """From now on call this, on a thread of a lane, whenever a job has ended: `collect` takes it."""
        self._on_ended = callback

    def collect(self) -> None:
        """Call `done` of the jobs that have ended since the last call."""
        while self._ended:
            done, error = self._ended.popleft()
            done(error)

    def finish(self) -> None:
        """Wait for all jobs, and collect."""
        for lane in self._lanes:
            lane.finish()

    def close(self) -> None:
        """End all lanes, and collect."""
        for lane in self._lanes:
            lane.close()
        self.collect()

    def _end(self, done: Done, error: Exception | None) -> None:
        self._ended.append((done, error))
