"""AllocateMappedFileService: allocates CommitLog files ahead of need, on a background thread.

As with RocketMQ's service of this name, a roll to the next file rarely has to wait for the disk:

    1/8 of a file written ──→ request the next file        3/4 written ──→ request the file after that
    roll ──→ take ──→ the file is ready
                 └──→ the file is being allocated: wait for it, once, up to 1 s
                      (up to 5 s for the first file of a log, as in RocketMQ: a new store serves no reads)

If a file cannot be allocated, for example because the disk is full, `take` raises the error, and the request
is retried after one second. The first pages of a new file are read into the page cache immediately, the
others ahead of the writer (`TouchAhead`). The setting `warm_mapped_file` (RocketMQ's warmMapedFileEnable)
locks the next and the current file in memory instead.
"""

import errno
import os
from concurrent.futures import Future
from functools import partial

from store.commitlog.log_paths import LogPaths
from store.commitlog.mapped_file import MappedFile, file_name
from store.commitlog.positions import Positions
from store.common.background import Lane, wait_for
from store.common.clock import Clock
from store.common.logs import get_logger
from store.disk.touch_ahead import AHEAD_BYTES, touch_sequentially
from store.store_errors import StoreError
from store.store_settings import StoreSettings

_log = get_logger(__name__)

RETRY_NS = 1_000_000_000
_WAIT_S = 1.0
_FIRST_WAIT_S = 5.0


class _Request:
    """A request to allocate the log file at CommitLog offset `base`.

    If the allocation fails, the request may be repeated at the monotonic time `retry_at_ns`.
    """

    __slots__ = ("base", "future", "has_timed_out", "retry_at_ns")

    def __init__(self, base: int, future: Future[MappedFile], retry_at_ns: int) -> None:
        self.base = base
        self.future = future
        self.retry_at_ns = retry_at_ns
        self.has_timed_out = False  # a caller has waited for it: later calls do not wait again

    @property
    def has_failed(self) -> bool:
        """True if the allocation of the file failed."""
        return self.future.done() and self.future.exception() is not None


class AllocateMappedFileService:
    """Allocates the files of one CommitLog ahead of need.

    The thread that owns the log calls all public methods; the background thread does not access the log.
    """

    def __init__(
        self, paths: LogPaths, positions: Positions, clock: Clock, settings: StoreSettings, lane: Lane
    ) -> None:
        """Create the service for the log in `paths`; files are allocated in threads of `lane`.

        If the setting `preallocate` is false, `take` allocates each file when it is called, in the calling
        thread.
        """
        self._paths = paths
        self._file_bytes = settings.commit_log_file_bytes
        self._positions = positions
        self._clock = clock
        self._settings = settings
        self._requests: dict[int, _Request] = {}
        self._lane = lane
        self.look_after = -1
        """`look` must be called once the log is written beyond this CommitLog offset."""
        self._last: MappedFile | None = None
        self._cannot_lock = False

    def look(self, end: int) -> None:
        """Request the files that will be needed soon; `end` is the end of the log's last file, 0 if none."""
        file_bytes = self._file_bytes
        if not self._settings.preallocate or not end:
            return
        written = self._positions.written
        self.look_after = end - file_bytes + file_bytes // 8
        if written > self.look_after:
            self._request(end)
            self.look_after = end - file_bytes // 4
        if written > self.look_after:
            self._request(end + file_bytes)
            self.look_after = end

    def take(self, base: int) -> MappedFile:
        """Return the log file that begins at CommitLog offset `base`. Wait for its allocation if necessary.

        Raises:
            OSError: The file cannot be allocated, or not within the time limit.
            StoreError: The allocation failed with another error.
        """
        self.look_after = -1
        for request in list(self._requests.values()):
            if request.base < base or (request.base - base) % self._file_bytes:
                self._discard(request)  # a replica's log may start at another offset than the file allocated
        if self._settings.preallocate or base in self._requests:
            file = self._await(base)
        else:
            file = self._paths.make(base, self._file_bytes)
        if self._settings.warm_mapped_file and self._last is not None:
            self._lane.submit(self._last.unlock_from_memory)
        self._last = file
        return file

    def _await(self, base: int) -> MappedFile:
        request = self._request(base)
        is_first = self._positions.written == self._positions.min
        wait_s = _FIRST_WAIT_S if is_first else _WAIT_S
        if not request.has_timed_out:
            wait_for(request.future, wait_s)
            request.has_timed_out = not request.future.done()
        if not request.future.done():
            path = str(self._paths.writable[0] / file_name(base))
            raise OSError(
                errno.EAGAIN,
                f"the next CommitLog file was not allocated within {wait_s:g} s: try again",
                path,
            )
        try:
            file = request.future.result()
        except OSError:
            raise
        except Exception as error:
            reason = f"the next CommitLog file cannot be allocated: {error!r}"
            raise StoreError(reason, str(self._paths)) from error
        del self._requests[base]
        return file

    def _request(self, base: int) -> _Request:
        """Return the request for the log file at `base`.

        The request is submitted if it is new, or if it failed and the retry delay has passed.
        """
        request = self._requests.get(base)
        now_ns = self._clock.monotonic_ns()
        if request is None or (request.has_failed and now_ns >= request.retry_at_ns):
            future = self._lane.submit(partial(self._make, base))
            request = self._requests[base] = _Request(base, future, now_ns + RETRY_NS)
        return request

    def finish(self) -> None:
        """Wait until all requested files are allocated or have failed."""
        self._lane.finish()

    def discard(self) -> None:
        """Remove all files allocated ahead, because the log will be continued at another offset."""
        for request in list(self._requests.values()):
            self._discard(request)
        self.look_after = -1

    def close(self) -> None:
        """Remove all files allocated ahead, as RocketMQ does on a clean shutdown."""
        self.discard()
        self._last = None

    def _discard(self, request: _Request) -> None:
        wait_for(request.future)
        del self._requests[request.base]
        if not request.has_failed:
            file = request.future.result()
            file.close()
            file.path.unlink(missing_ok=True)

    # ---- background thread ---------------------------------------------------------------------------------

    def _make(self, base: int) -> MappedFile:
        file = self._paths.make(base, self._file_bytes)
        if self._settings.warm_mapped_file:
            self._lock(file)
        else:
            touch_sequentially(file.name, 0, AHEAD_BYTES)
        return file

    def _lock(self, file: MappedFile) -> None:
        """Lock a log file in memory (mlock).

        If that is not permitted, log it once and continue, as RocketMQ does.
        """
        try:
            file.lock_in_memory()
        except OSError as error:
            if not self._cannot_lock:
                _log.warning(
                    "memory_lock_failed",
                    path=str(file.path),
                    error=os.strerror(error.errno or 0),
                    remedy=f"allow the broker to lock {file.size_bytes:,} bytes or more (ulimit -l), "
                    "or set warm_mapped_file to false",
                )
            self._cannot_lock = True
