"""Renewals: decides which immune half messages a round of checks copies to the end of the half queue.

A half message may be immune for days (CHECK_IMMUNITY_TIME_IN_SECONDS). RocketMQ copies it in every round,
so that a client can fill the disk. This broker leaves it in place until a copy is necessary:

    it is in the oldest of several log files      the next deletion of log files would delete it
    half of `file_reserved_time_h` has passed     the same, for files that were kept longer
    it holds back the saved offset, and with it   if the log has grown since the last copies by as much as
    `FINISHED_MAX` finished half messages         they take: so copies take at most half of the log
"""

from __future__ import annotations

from actors.broker.broker_settings import BrokerSettings
from store.message.message import MessageExt

MS_PER_HOUR = 3_600_000

FINISHED_MAX = 4096
"""Finished half messages behind an open one, up to which it need not be copied: they are kept in memory."""


class Renewals:
    """Decides about the immune half messages of one broker, in rounds."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._old_ms = 0  # a record that was stored before this time may soon be deleted
        self._oldest_end = 0  # CommitLog offset at which the oldest of several log files ends
        self._copied_to: int | None = None  # end of the log after the last copies that let the offset advance
        self._immune_bytes = 0  # size of the immune half messages of the last round
        self._round_bytes = 0
        self._holds_back = False

    def begin_round(self, finished: int, log_begin: int, log_end: int, now_ms: int) -> None:
        """Begin a round; `finished` is the number of finished half messages behind the oldest open one."""
        if self._copied_to is None:
            self._copied_to = log_end
        store = self._settings.store
        self._old_ms = now_ms - store.file_reserved_time_h * MS_PER_HOUR // 2
        self._immune_bytes, self._round_bytes = self._round_bytes, 0
        file_bytes = store.commit_log_file_bytes
        oldest_end = log_begin - log_begin % file_bytes + file_bytes
        self._oldest_end = oldest_end if oldest_end < log_end else log_begin
        self._holds_back = finished > FINISHED_MAX and log_end - self._copied_to >= self._immune_bytes

    def is_due(self, half: MessageExt) -> bool:
        """Return True if this immune half message must be copied."""
        self._round_bytes += half.store_size
        is_old = half.store_timestamp <= self._old_ms
        return self._holds_back or is_old or half.commit_log_offset < self._oldest_end

    def end_round(self, log_end: int) -> None:
        """End a round; copies may have been appended in it."""
        if self._holds_back:
            self._copied_to = log_end
            self._holds_back = False
