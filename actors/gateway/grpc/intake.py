"""Intake: the received requests of one call, and the memory that they take.

    data ──► MessageReader ──► waiting ── next ──► being handled
             (incomplete)

Bytes that wait are not given back to the windows of the connection, so a peer sends at most a window of
requests that wait. An incomplete request that is longer than that gets its place in the account of
memory first; any other one when it is taken, before it is inflated and decoded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from actors.gateway.grpc.messages import PREFIX, MessageReader, Packed
from actors.memory_account import Share

COPIES: Final = 2
"""Copies of a request while it is handled: the message, and the request to a broker."""


FREE_BYTES: Final = 16 * 1024


class Intake:
    """The requests of one call."""

    __slots__ = (
        "_acknowledge", "_free_bytes",
        "_granted",
        "_handled_bytes",
        "_held_bytes",
        "_is_closed",
        "_partial_bytes",
        "_partial_wanted_bytes",
        "_paused_bytes",
        "_reader",
        "_receiver",
        "_share",
        "_unacknowledged",
        "_waiting",
        "_waiting_bytes",
        "_wanted_bytes",
        "_window_bytes",
        "is_ended",
        "is_handling",
    )  # fmt: skip

    def __init__(
        self,
        reader: MessageReader,
        share: Share,
        acknowledge: Callable[[int], None],
        window_bytes: int,
        free_bytes: int,
    ) -> None:
        """Create an empty intake.

        Args:
            reader: splits the data of the call into messages.
            share: the connection's share of the account.
            acknowledge: gives bytes back to the windows.
            window_bytes: what the client may send before bytes are given back.
            free_bytes: size of what waits, or is handled, that does not count.
        """
        self.is_ended = False
        """True if the client sends no further request."""
        self.is_handling = False
        """True from `next` until the following `arrival`."""
        self._reader = reader
        self._share = share
        self._acknowledge = acknowledge
        self._window_bytes = window_bytes
        self._free_bytes = free_bytes
        self._waiting: deque[Packed] = deque()
        self._waiting_bytes = 0
        self._unacknowledged = 0
        self._held_bytes = 0  # of what waits or is incomplete, as counted in the account
        self._partial_bytes = 0  # granted for the incomplete request
        self._partial_wanted_bytes = 0  # to be granted for it
        self._handled_bytes = 0  # granted for the request that is handled
        self._wanted_bytes = 0  # to be granted for it
        self._paused_bytes = 0  # the part of it that does not count as granted while it waits for more
        self._granted: asyncio.Future[None] | None = None
        self._receiver: asyncio.Future[None] | None = None
        self._is_closed = False

    @property
    def size_bytes(self) -> int:
        """Size of the requests, with what was granted for them."""
        return self._held_bytes + self._partial_bytes + self._handled_bytes

    @property
    def incomplete_bytes(self) -> int:
        """Size of the received part of an incomplete request."""
        return self._reader.size_bytes

    @property
    def has_place(self) -> bool:
        """True if room was granted for an incomplete request."""
        return self._partial_bytes > 0

    def __len__(self) -> int:
        """Return the number of requests that wait."""
        return len(self._waiting)

    def arrived(self, data: bytes) -> None:
        """Add received data. Raises CallFailed if it is not valid."""
        self._unacknowledged += len(data)
        for packed in self._reader.feed(data):
            self._waiting.append(packed)
            self._waiting_bytes += len(packed.data)
        self._settle()
        if self._receiver is not None and self._waiting:
            wake(self._receiver)

    def end(self) -> None:
        """Note that the client sends no further request."""
        self.is_ended = True
        wake(self._receiver)

    async def arrival(self) -> bool:
        """Release the request that was handled; return True when another one waits, False without one."""
        self.is_handling = False
        if self._handled_bytes:
            self._share.give(self._handled_bytes)
            self._handled_bytes = 0
        while not self._waiting:
            if self.is_ended:
                return False
            self._receiver = asyncio.get_running_loop().create_future()
            await self._receiver
        return True

    async def next(self) -> Packed:
        """Return the request that waits, after `arrival`, when it has its place in the account."""
        plain_bytes = self._waiting[0].plain_bytes
        if plain_bytes > self._free_bytes:
            self._handled_bytes, self._partial_bytes = self._partial_bytes, 0
            await self.take(COPIES * plain_bytes - self._handled_bytes)
        return self._begin()

    def next_free(self) -> Packed | None:
        """Return the next request if it is there and does not count; None otherwise."""
        if self._handled_bytes or not self._waiting or self._waiting[0].plain_bytes > self._free_bytes:
            return None
        return self._begin()

    def _begin(self) -> Packed:
        packed = self._waiting.popleft()
        self._waiting_bytes -= len(packed.data)
        self.is_handling = True
        if self._held_bytes or not self.is_ended:
            self._settle()
        self._acknowledge_all_but(self._held_bytes)
        return packed

    async def take(self, size_bytes: int) -> None:
        """Wait until `size_bytes` more are granted for the request that is handled."""
        if size_bytes <= 0 or self._is_closed:
            return
        self._wanted_bytes = size_bytes
        if self._share.take(size_bytes, self._grant):
            self._grant()
            return
        was_handling, self.is_handling = self.is_handling, False
        granted = self._granted = asyncio.get_running_loop().create_future()
        self._paused_bytes = self._handled_bytes
        self._share.pause(self._paused_bytes)
        await granted
        self.is_handling = was_handling

    def close(self) -> None:
        """Release everything: the call has ended."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._wanted_bytes or self._partial_wanted_bytes:
            self._share.withdraw(self._grant)
            self._share.withdraw(self._grant_partial)
        if self._paused_bytes:
            self._resume()
        if self._partial_bytes or self._handled_bytes:
            self._share.give(self._partial_bytes + self._handled_bytes)
        if self._held_bytes:
            self._share.add(-self._held_bytes)
        self._held_bytes = self._partial_bytes = self._handled_bytes = 0
        self._waiting.clear()
        self._reader.clear()
        self._acknowledge_all_but(0)

    def _acknowledge_all_but(self, kept_bytes: int) -> None:
        size_bytes = self._unacknowledged - kept_bytes
        if size_bytes > 0:
            self._unacknowledged = kept_bytes
            self._acknowledge(size_bytes)

    def _grant(self) -> None:
        if self._is_closed:  # pushed out by its own request
            self._share.give(self._wanted_bytes)
            return
        if self._paused_bytes:
            self._resume()
        self._handled_bytes += self._wanted_bytes
        self._wanted_bytes = 0
        wake(self._granted)

    def _resume(self) -> None:
        self._share.resume(self._paused_bytes)
        self._paused_bytes = 0

    def _grant_partial(self) -> None:
        if self._is_closed:
            self._share.give(self._partial_wanted_bytes)
            return
        self._partial_bytes, self._partial_wanted_bytes = self._partial_wanted_bytes, 0
        self._settle()

    def _settle(self) -> None:
        """Count what waits or is incomplete; let an incomplete long request arrive if it has its place."""
        if self._is_closed:
            return
        held_bytes = self._waiting_bytes + self._reader.size_bytes
        if held_bytes <= self._free_bytes:
            held_bytes = 0
        change, self._held_bytes = held_bytes - self._held_bytes, held_bytes
        if self._partial_bytes and not self._waiting and self._unacknowledged >= self._window_bytes // 4:
            self._acknowledge_all_but(0)
        if change:
            self._share.add(change)  # may close this call
        if self._is_closed or self._waiting or self._partial_bytes or self._partial_wanted_bytes:
            return
        declared_bytes = self._reader.declared_bytes
        if declared_bytes + PREFIX.size > self._window_bytes:
            self._partial_wanted_bytes = COPIES * declared_bytes
            if self._share.take(self._partial_wanted_bytes, self._grant_partial):
                self._grant_partial()


def wake(future: asyncio.Future[None] | None) -> None:
    """Continue what waits for a future."""
    if future is not None and not future.done():
        future.set_result(None)
