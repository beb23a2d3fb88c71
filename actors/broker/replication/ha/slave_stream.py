"""SlaveStream: what a master sends to one slave, and what the slave has; sans I/O.

    WAITING ──first report──> STREAMING: each report acknowledges the log up to its offset

    first report            the stream begins at
    0                       the oldest record of the master
    in the master's log     the reported offset
    anything else           refused: the slave has another log, or one that is too old

The reports say nothing about content, so a master cannot check it. A slave that has records which this master
does not have is refused by its length only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from actors.bounds import AtLimit, Bound
from actors.broker.replication.ha.ha_frames import (
    CHUNK_BYTES,
    REPORT_BYTES,
    ReportReader,
    encode_header,
)
from actors.wire.raymq_requests import IN_SYNC_BYTES
from store.commitlog.positions import Positions
from store.common.clock import NS_PER_MS
from store.message.buffers import Buffer

SILENCE_MS = 20_000
"""A slave that sends nothing for this long is disconnected (RocketMQ's haHousekeepingInterval)."""
HEARTBEAT_MS = 5_000
"""The master sends a heartbeat after this time without data (RocketMQ's haSendHeartbeatInterval)."""
REPORTS_AHEAD: Final = Bound(
    "ha_reports_ahead", 1_000, AtLimit.CLOSE, "Reports of one slave beyond one for each frame and second."
)
"""A slave sends one report for each frame and one every 5 s."""


class SlaveRefused(Exception):
    """The master disconnects a slave; the message has the reason and a remedy."""


class SlaveStream:
    """The stream to one slave over one connection."""

    def __init__(self, positions: Positions, now_ns: int) -> None:
        self.is_streaming = False
        """False until the first report: the master does not know where to begin."""
        self.next = 0
        """CommitLog offset of the next byte to send."""
        self.acknowledged = 0
        """The slave has the log up to this CommitLog offset."""
        self._positions = positions
        self._reader = ReportReader()
        self._connected_ns = self._received_ns = self._sent_ns = now_ns
        self._reports = 0
        self._frames = 0
        self.reports_ahead = 0
        """Reports beyond one for each frame and second, when the last one was received."""

    @property
    def lag_bytes(self) -> int:
        """How many bytes of the log the slave has not acknowledged."""
        return max(self._positions.written - self.acknowledged, 0)

    @property
    def is_in_sync(self) -> bool:
        """True if the slave lacks at most IN_SYNC_BYTES."""
        return self.is_streaming and self.lag_bytes <= IN_SYNC_BYTES

    def received(self, data: Buffer, now_ns: int) -> bool:
        """Take bytes from the slave. Return True if they complete a report.

        Raises ProtocolError or SlaveRefused; the connection must then be closed.
        """
        self._received_ns = now_ns
        self._reports += len(data) // REPORT_BYTES
        seconds = (now_ns - self._connected_ns) // (1000 * NS_PER_MS)
        self.reports_ahead = max(self._reports - self._frames - seconds, 0)
        if self.reports_ahead > REPORTS_AHEAD.limit:
            raise SlaveRefused(
                f"{self._reports:,} reports after {self._frames:,} frames in {seconds} s: a slave sends one "
                "for each frame; something else uses the HA port"
            )
        end = self._reader.received(data)
        if end is None:
            return False
        self._check(end)
        if not self.is_streaming:
            self.is_streaming = True
            self.next = end or self._positions.min
        self.acknowledged = min(end, self.next)
        return True

    def frames(self, piece: memoryview) -> Iterator[Buffer]:
        """Yield the frames for the bytes `piece` of the log at `next`, and advance `next`."""
        for at in range(0, len(piece), CHUNK_BYTES):
            chunk = piece[at : at + CHUNK_BYTES]
            yield encode_header(self.next, len(chunk))
            yield chunk
            self.next += len(chunk)
            self._frames += 1

    def sent(self, now_ns: int) -> None:
        """Record that frames were sent."""
        self._sent_ns = now_ns

    def heartbeat(self, now_ns: int) -> bytes | None:
        """Return a heartbeat if one is due."""
        if not self.is_streaming or now_ns - self._sent_ns < HEARTBEAT_MS * NS_PER_MS:
            return None
        self._sent_ns = now_ns
        self._frames += 1
        return encode_header(self.next, 0)

    def is_silent(self, now_ns: int) -> bool:
        """Return True if the slave has sent nothing for SILENCE_MS."""
        return now_ns - self._received_ns >= SILENCE_MS * NS_PER_MS

    def _check(self, end: int) -> None:
        positions = self._positions
        if end > positions.written:
            raise SlaveRefused(
                f"its log ends at {end:,}, after the end of this log at {positions.written:,}: it has "
                "records that this master does not have; empty the slave's store to copy this log"
            )
        if not self.is_streaming and 0 < end < positions.min:
            raise SlaveRefused(
                f"its log ends at {end:,}, before the oldest record here at {positions.min:,}: empty the "
                "slave's store to copy this log"
            )
