"""Checks that run in a second thread while the main thread reads the CommitLog.

Both threads make progress at the same time, because kernels release the GIL.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from store.commitlog.mapped_file import MappedFile
from store.common.background import BackgroundWork
from store.dispatch.sink import RecordBatch
from store.kernels import resync
from store.tools.verify.findings import Report
from store.tools.verify.index import IndexCheck

_WAITING_MAX = 8


class BackgroundChecks:
    """A dispatch sink that compares each batch of records with the index, in a second thread.

    Until `finish` is called, only that thread adds findings to the report.
    """

    def __init__(self, report: Report, index: IndexCheck) -> None:
        self._report = report
        self._index = index
        self._lane = BackgroundWork().lane("verify")
        self._waiting: deque[Future[None]] = deque()

    def accept(self, batch: RecordBatch) -> None:
        """Submit a comparison of the batch's keys with the index."""
        keys = batch.keys.copy()
        self._submit(lambda: self._index.put(keys, len(keys)))

    def rewind(self, offset: int) -> None:
        """Do nothing: a verification never truncates the log."""

    @property
    def missing_from(self) -> int | None:
        """Always None, because a verification reads the whole log."""
        return None

    def check_whole(self, file: MappedFile, begin: int, end: int) -> None:
        """Submit a check of the CRCs that cover whole records, for the bytes [begin, end) of a log file.

        Only records written with enabledAppendPropCRC contain such a CRC.
        """
        path, array = file.path, file.array

        def check() -> None:
            place = begin
            while place < end:
                bad, size = resync.next_bad_crc_property(array, place, end)
                if bad < end:
                    self._report.add(path, bad, size, "log", "the CRC of the whole record is wrong")
                place = bad + size if bad < end else end

        self._submit(check)

    def _submit(self, work: Callable[[], None]) -> None:
        while len(self._waiting) >= _WAITING_MAX:
            self._waiting.popleft().result()
        self._waiting.append(self._lane.submit(work))

    def finish(self) -> None:
        """Wait until all submitted checks are done. Raises the first exception of a check."""
        try:
            while self._waiting:
                self._waiting.popleft().result()
        finally:
            self._lane.close()
