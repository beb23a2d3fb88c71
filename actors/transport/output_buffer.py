"""OutputBuffer: responses of one connection that are not sent yet, and the backpressure they cause.

    append ──► collected ──── flush, once a turn ────► socket buffer ──► peer
               (counts in the output budget)           (counts as unread while the peer is behind)

A peer is either in time or behind:

               more than 64 KiB in the socket buffer
    in time ──────────────────────────────────────────► behind ──► closed: read no byte for `unread_ms`
            ◄──────────────────────────────────────────
               the transport resumes writing

The buffer is full if its unread bytes exceed `high_water_bytes`, or if those of all connections together
exceed `max_unread_bytes`. While it is full no further responses are produced and no further requests are
read. Both resume after a flush or when the peer is in time again.
"""

import asyncio
from typing import Final

from actors.memory_account import STALLED_MS, Share
from actors.transport.hub import Hub
from actors.wire.command import Buffer, RemotingCommand, append_command
from store.common.clock import NS_PER_MS

# Up to this size joining the buffers and writing once is cheaper than writing many buffers.
_JOIN_BYTES: Final = 64 * 1024
_LARGE_PART_BYTES: Final = 8 * 1024
# A peer with more than this in the socket buffer is behind.
_BEHIND_BYTES: Final = 64 * 1024


class OutputBuffer:
    """The unsent responses of one connection."""

    def __init__(self, hub: Hub) -> None:
        self.is_behind = False
        self.unread_bytes = 0  # in the socket buffer of a peer that is behind, at the last count
        self.written_bytes = 0  # since the connection was opened
        self._hub = hub
        self._scheduler = hub.scheduler
        self._transport: asyncio.WriteTransport | None = None
        self._share: Share | None = None
        self._seen = (-1, 0)  # `taken_bytes` and the time at the last change that `has_stalled` saw
        self._parts: list[Buffer] = []
        self._bytes = 0

    @property
    def is_empty(self) -> bool:
        """Whether no response is collected."""
        return not self._parts

    @property
    def is_full(self) -> bool:
        """Whether the limits of this connection or of all connections are exceeded."""
        if self._bytes <= _BEHIND_BYTES and not self.is_behind:
            return False
        unread_bytes = self._hub.unread_bytes + self._scheduler.collected_bytes
        return self.is_over_high_water or unread_bytes > self._hub.limits.max_unread_bytes

    @property
    def is_over_high_water(self) -> bool:
        """Whether more than `high_water_bytes` of this connection are unread."""
        waiting_bytes = self._bytes
        if self.is_behind and self._transport is not None:
            waiting_bytes += self._transport.get_write_buffer_size()
        return waiting_bytes > self._hub.limits.high_water_bytes

    @property
    def taken_bytes(self) -> int:
        """Number of bytes passed to the kernel since the connection was opened."""
        return self.written_bytes - (self._transport.get_write_buffer_size() if self._transport else 0)

    def connection_made(self, transport: asyncio.WriteTransport, share: Share) -> None:
        """Set the transport to write to, and the share that counts the unread bytes."""
        self._transport = transport
        self._share = share if self._hub.is_server else None
        transport.set_write_buffer_limits(high=min(_BEHIND_BYTES, self._hub.limits.high_water_bytes))

    def append(self, command: RemotingCommand) -> None:
        """Encode a command and collect it for the next flush."""
        size_bytes = append_command(self._parts, command)
        self._bytes += size_bytes
        self._scheduler.collect(size_bytes)

    def append_frames(self, frames: bytes) -> None:
        """Collect encoded frames for the next flush."""
        self._parts.append(frames)
        self._bytes += len(frames)
        self._scheduler.collect(len(frames))

    def flush(self) -> None:
        """Write all collected responses in one call."""
        if self._transport is not None:
            if self._bytes <= _JOIN_BYTES:
                self._transport.write(b"".join(self._parts))
            else:
                self._transport.writelines(_coalesced(self._parts))
            self.written_bytes += self._bytes
            if self.is_behind:
                self.count_unread()
        self.clear()

    def clear(self) -> None:
        """Drop all collected responses."""
        self._parts = []
        self._bytes = 0

    def fall_behind(self) -> None:
        """Mark the peer as behind: it reads more slowly than this side writes."""
        self.is_behind = True
        self.count_unread()

    def catch_up(self) -> None:
        """Mark the peer as in time: it has read most of the output, or the socket is closed."""
        self.is_behind = False
        self.count_unread()

    def count_unread(self) -> None:
        """Update the count of unread bytes of this connection, of the hub and of the account of memory."""
        unread_bytes = 0
        if self.is_behind and self._transport is not None:
            unread_bytes = self._transport.get_write_buffer_size()
        added, self.unread_bytes = unread_bytes - self.unread_bytes, unread_bytes
        self._hub.add_unread(added)
        if self._share is not None and added:
            self._share.count_unread(added)

    def has_stalled(self, now_ns: int) -> bool:
        """Return True if the peer is behind, and has read nothing since a call `STALLED_MS` ago."""
        if not self.unread_bytes:
            return False
        taken_bytes, (seen_bytes, seen_ns) = self.taken_bytes, self._seen
        if taken_bytes != seen_bytes:
            self._seen = taken_bytes, now_ns
            return False
        return now_ns - seen_ns >= STALLED_MS * NS_PER_MS


def _coalesced(parts: list[Buffer]) -> list[Buffer]:
    """Join adjacent small buffers; leave large ones uncopied."""
    merged: list[Buffer] = []
    small: list[Buffer] = []
    for part in parts:
        if len(part) < _LARGE_PART_BYTES:
            small.append(part)
            continue
        if small:
            merged.append(b"".join(small))
            small = []
        merged.append(part)
    if small:
        merged.append(b"".join(small))
    return merged
