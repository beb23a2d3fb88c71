"""AllocateMappedFileService: the log's files are made ahead of need, on a thread of their own, so that a roll
finds its file there (RocketMQ's service of this name).

    an eighth of a file written ──→ the next one is asked for        three quarters ──→ the one after it
    roll ──→ take ──→ it is there
                 └──→ it is on its way: waited for, a second at most, and once only
                      (the log's first file five, as RocketMQ waits: there is nothing yet that others read)

A file that cannot be made, for a full disk say, is an error for whoever needs it, and tried again after a
second. The first pages of a new one are touched at once, the others ahead of the writer (`TouchAhead`). Who
wants all of them in memory sets `warm_mapped_file` (RocketMQ's warmMapedFileEnable): files are then locked in
memory as long as they are the next or the last.
"""

import errno
import os
from concurrent.futures import Future, wait
from functools import partial

from store.clock import Clock
from store.commitlog.commit_log import CommitLog
from store.commitlog.mapped_file import MappedFile, file_name
from store.disk.touch_ahead import AHEAD_BYTES, touch
from store.jobs import Lane
from store.logs import get_logger
from store.store_errors import StoreError
from store.store_settings import StoreSettings

_log = get_logger(__name__)

RETRY_NS = 1_000_000_000
_WAIT_S = 1.0
_FIRST_WAIT_S = 5.0


class _Request:
    """One file that has been asked for."""

    __slots__ = ("again_ns", "base", "future", "is_late")

    def __init__(self, base: int, future: Future[MappedFile], again_ns: int) -> None:
        """If it fails, it may be tried again at `again_ns`."""
        self.base = base
        self.future = future
        self.again_ns = again_ns
        self.is_late = False  # it has been waited for in vain

    @property
    def has_failed(self) -> bool:
        """Whether the file could not be made."""
        return self.future.done() and self.future.exception() is not None


class AllocateMappedFileService:
    """Makes the files of one log. The log's owner calls; nothing of the log is touched by the thread."""

    def __init__(self, log: CommitLog, clock: Clock, settings: StoreSettings, lane: Lane) -> None:
        """Without `preallocate` a file is made when it is needed, by whoever needs it."""
        self._log = log
        self._positions = log.positions
        self._clock = clock
        self._settings = settings
        self._requests: dict[int, _Request] = {}
        self._lane = lane
        self._look_at = -1  # when `written` has come so far, there may be something to ask for
        self._last: MappedFile | None = None
        self._cannot_lock = False

    def turn(self) -> None:
        """Once per `advance`: ask for what will soon be needed."""
        if self._positions.written > self._look_at:
            self._look_ahead()

    def _look_ahead(self) -> None:
        end, file_bytes = self._log.end, self._log.file_bytes
        if not self._settings.preallocate or not end:
            return
        written = self._positions.written
        self._look_at = end - file_bytes + file_bytes // 8
        if written > self._look_at:
            self._ask(end)
            self._look_at = end - file_bytes // 4
        if written > self._look_at:
            self._ask(end + file_bytes)
            self._look_at = end

    def take(self, base: int) -> MappedFile:
        """The file at `base`, which is needed now. Raises OSError when there is none."""
        self._look_at = -1
        for request in list(self._requests.values()):
            if request.base < base or (request.base - base) % self._log.file_bytes:
                self._discard(request)  # a replica begins elsewhere than at this file
        if self._settings.preallocate or base in self._requests:
            file = self._await(base)
        else:
            file = self._log.paths.make(base, self._log.file_bytes)
        if self._settings.warm_mapped_file and self._last is not None:
            self._lane.submit(self._last.unlock_from_memory)
        self._last = file
        return file

    def _await(self, base: int) -> MappedFile:
        request = self._ask(base)
        wait_s = _WAIT_S if self._log.bases else _FIRST_WAIT_S
        if not request.is_late:
            wait([request.future], wait_s)
            request.is_late = not request.future.done()
        if not request.future.done():
            path = str(self._log.paths.writable[0] / file_name(base))
            raise OSError(
                errno.EAGAIN, f"the disk has not made the next file within {wait_s:g} s: try again", path
            )
        try:
            file = request.future.result()
        except OSError:
            raise
        except Exception as error:
            reason = f"the log's next file cannot be made: {error!r}"
            raise StoreError(reason, str(self._log.paths)) from error
        del self._requests[base]
        return file

    def _ask(self, base: int) -> _Request:
        """The request for a file; one that has failed is repeated when its time has come."""
        request = self._requests.get(base)
        now_ns = self._clock.monotonic_ns()
        if request is None or (request.has_failed and now_ns >= request.again_ns):
            future = self._lane.submit(partial(self._make, base))
            request = self._requests[base] = _Request(base, future, now_ns + RETRY_NS)
        return request

    def finish(self) -> None:
        """Wait for the files that are being made."""
        self._lane.finish()

    def discard(self) -> None:
        """Remove all files that were made ahead: the log does not go on where they stand."""
        for request in list(self._requests.values()):
            self._discard(request)
        self._look_at = -1

    def close(self) -> None:
        """Remove what was made ahead, as RocketMQ does at an orderly end."""
        self.discard()
        self._last = None

    def _discard(self, request: _Request) -> None:
        wait([request.future])
        del self._requests[request.base]
        if not request.has_failed:
            file = request.future.result()
            file.close()
            file.path.unlink(missing_ok=True)

    # ---- the thread ----------------------------------------------------------------------------------------

    def _make(self, base: int) -> MappedFile:
        file = self._log.paths.make(base, self._log.file_bytes)
        if self._settings.warm_mapped_file:
            self._lock(file)
        else:
            touch(file.name, 0, AHEAD_BYTES)
        return file

    def _lock(self, file: MappedFile) -> None:
        """Lock a file in memory; where that is not allowed, say so once and go on, as RocketMQ does."""
        try:
            file.lock_in_memory()
        except OSError as error:
            if not self._cannot_lock:
                _log.warning(
                    "memory_lock_failed",
                    path=str(file.path),
                    error=os.strerror(error.errno or 0),
                    cure=f"let the broker lock {file.size_bytes:,} bytes and more (ulimit -l), "
                    "or set warm_mapped_file to false",
                )
            self._cannot_lock = True
