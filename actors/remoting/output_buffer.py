"""OutputBuffer: the responses of one connection on their way to the peer, and the backpressure they cause.

    append ──► collected ──── flush, once a turn ────► socket buffer ──► peer
               (in the turn's output budget)           (unread, while the peer is behind)

A peer is either in time or behind:

               more than 64 KiB in the socket buffer
    in time ──────────────────────────────────────────► behind ──► closed: took no byte for `unread_ms`
            ◄──────────────────────────────────────────
               the transport resumes writing

The buffer is full if more than `high_water_bytes` are waiting, or more than `max_unread_bytes` for all
connections together. No further responses are produced for a full buffer, and no further requests are read;
both resume after a flush or when the peer is in time again.
"""

import asyncio
from typing import Final

from actors.remoting.command import Buffer, RemotingCommand, append_command
from actors.remoting.hub import Hub

# Up to this size one write of joined bytes is cheaper than a write of many buffers.
_JOIN_BYTES: Final = 64 * 1024
_LARGE_PART_BYTES: Final = 8 * 1024
# A peer that leaves more than this in the socket buffer is behind.
_BEHIND_BYTES: Final = 64 * 1024


class OutputBuffer:
    """The responses of one connection that its peer has not read."""

    def __init__(self, hub: Hub) -> None:
        self.is_behind = False
        self.unread_bytes = 0  # in the socket buffer of a peer that is behind, when last counted
        self.written_bytes = 0  # since the start
        self._hub = hub
        self._turn = hub.turn
        self._transport: asyncio.WriteTransport | None = None
        self._parts: list[Buffer] = []
        self._bytes = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is collected."""
        return not self._parts

    @property
    def is_full(self) -> bool:
        """Whether no further response should be produced before a flush or before the peer has read."""
        if self._bytes <= _BEHIND_BYTES and not self.is_behind:
            return False
        unread_bytes = self._hub.unread_bytes + self._turn.collected_bytes
        return self.is_over_high_water or unread_bytes > self._hub.limits.max_unread_bytes

    @property
    def is_over_high_water(self) -> bool:
        """Whether the peer leaves more than `high_water_bytes` unread."""
        waiting_bytes = self._bytes
        if self.is_behind and self._transport is not None:
            waiting_bytes += self._transport.get_write_buffer_size()
        return waiting_bytes > self._hub.limits.high_water_bytes

    @property
    def taken_bytes(self) -> int:
        """Bytes that the kernel has taken for the peer since the start."""
        return self.written_bytes - (self._transport.get_write_buffer_size() if self._transport else 0)

    def connection_made(self, transport: asyncio.WriteTransport) -> None:
        """Write to this transport from now on."""
        self._transport = transport
        transport.set_write_buffer_limits(high=min(_BEHIND_BYTES, self._hub.limits.high_water_bytes))

    def append(self, command: RemotingCommand) -> None:
        """Encode a command and keep it for the next flush."""
        size_bytes = append_command(self._parts, command)
        self._bytes += size_bytes
        self._turn.collect(size_bytes)

    def flush(self) -> None:
        """Write what is collected, in one go."""
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
        """Drop what is collected."""
        self._parts = []
        self._bytes = 0

    def fall_behind(self) -> None:
        """Note that the peer reads more slowly than this side writes."""
        self.is_behind = True
        self.count_unread()

    def catch_up(self) -> None:
        """Note that the peer has read most of what was written, or that the socket is gone."""
        self.is_behind = False
        self.count_unread()

    def count_unread(self) -> None:
        """Count what the peer has not read, here and in the hub's sum."""
        unread_bytes = 0
        if self.is_behind and self._transport is not None:
            unread_bytes = self._transport.get_write_buffer_size()
        self._hub.add_unread(unread_bytes - self.unread_bytes)
        self.unread_bytes = unread_bytes


def _coalesced(parts: list[Buffer]) -> list[Buffer]:
    """Join small neighbours and leave large parts where they are."""
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
