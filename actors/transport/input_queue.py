"""InputQueue: decodes the requests of one connection and schedules their handling.

    bytes received
      │
      ├─ only costly requests, by their header prefixes ──► ASIDE
      ├─ the turn's time is used up ──────────────────────► NEW
      └─ otherwise ──► READING: responses and cheap requests are handled immediately; costly requests are
                       queued, and handled one at a time, round-robin with other connections

`ReadState` says what the connection waits for, and `read_states.NEXT` is the table of all changes.

While a connection waits its socket is not read and undecoded bytes are kept. A costly request that is
long or has a body is handled immediately, because keeping it could take as much memory as a whole frame. All
that is kept counts in the account of memory of the process; while that is full, a connection is not read that
has requests in work or responses unread.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from actors.memory_account import Share
from actors.transport.hub import Hub
from actors.transport.output_buffer import OutputBuffer
from actors.transport.read_states import NEXT, SOCKET_READ, ReadEvent, ReadState
from actors.wire.codes import FLAG_RESPONSE
from actors.wire.command import RemotingCommand
from actors.wire.frame import CodeMarks, FrameReader
from actors.wire.remoting_errors import ProtocolError
from store.common.clock import NS_PER_MS

# Buffer size offered when the turn's time or the memory is used up: most of what is sent stays in the kernel.
_LATE_READ_BYTES: Final = 16 * 1024
# Costly requests are set aside undecoded only up to this many bytes.
_ASIDE_BYTES: Final = 16 * 1024
_COSTLY_BYTES: Final = 4 * 1024
"""Longer costly requests are handled immediately."""
_COUNTED_BYTES: Final = 1024
"""Less than this is not counted in the account of memory."""
_COUNTED_REQUESTS: Final = 16
"""Waiting costly requests are counted in steps of this number."""
# Number of requests of one connection between two checks of the clock.
_REQUESTS_PER_CLOCK_CHECK: Final = 4
# After a frame that `take` left, this many requests are decoded before frames are offered again.
_DECODED_AFTER_REFUSAL: Final = 8
# Time after which an incomplete frame gives way to others.
_STALLED_NS: Final = 1_000_000_000


class RequestCodes(Protocol):
    """The codes of requests that are not decoded and handled one by one as they arrive."""

    @property
    def costly_codes(self) -> CodeMarks:
        """Codes of requests that wait for the end of a turn."""

    @property
    def taken_codes(self) -> CodeMarks:
        """Codes of requests whose undecoded frames may be handled together."""


class InputQueue:
    """Decodes the frames of one connection and handles them in the order that `Scheduler` decides."""

    def __init__(
        self,
        hub: Hub,
        output: OutputBuffer,
        codes: RequestCodes,
        handle_request: Callable[[RemotingCommand], None],
        take: Callable[[bytearray, int, int], int],
        take_response: Callable[[RemotingCommand], None],
        refuse: Callable[[ProtocolError], None],
    ) -> None:
        """Create an empty queue.

        Args:
            hub: Hub of the connection.
            output: Output buffer of the connection; the socket is not read while it is full.
            codes: Codes of requests that wait for the end of a turn, and of those that `take` handles.
            handle_request: Called with each request.
            take: Handles undecoded frames (see `FrameReader.take_frames`).
            take_response: Called with each response.
            refuse: Called if the bytes are not valid frames; must close the connection.
        """
        self._hub = hub
        self._scheduler = hub.scheduler
        self._output = output
        self._costly_codes = codes.costly_codes
        self._taken_codes = codes.taken_codes
        self._take = take
        self._untaken = 0  # requests to decode before frames are offered to `take` again
        self._handle_request = handle_request
        self._take_response = take_response
        self._refuse = refuse
        self._transport: asyncio.ReadTransport | None = None
        self._reader = FrameReader(hub.memory, self)
        self._share: Share | None = None
        self._since_ns = 0  # since when an incomplete frame has counted
        self._waiting: deque[RemotingCommand | Callable[[], None]] = (
            deque()
        )  # costly requests and `add_costly` work
        self._state = ReadState.READING
        self._is_costly_queued = False  # in `hub.enqueue`
        self._kept = (0, 0)  # counted bytes of what is kept, and of that what does not wait for more bytes

    @property
    def arriving_frame(self) -> int | None:
        """Sequence number of the partly received frame.

        None between frames and while the connection waits.
        """
        is_partial = self._state is ReadState.READING and self._reader.has_partial
        return self._reader.frames if is_partial else None

    @property
    def received_bytes(self) -> int:
        """Number of bytes received since the connection was opened."""
        return self._reader.received_bytes

    def connection_made(self, transport: asyncio.ReadTransport, share: Share) -> None:
        """Set the transport whose reading is paused and resumed, and the share that counts what is kept."""
        self._transport = transport
        self._share = share

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next bytes of the socket."""
        room = self._reader.get_buffer()
        is_late = self._scheduler.is_over or not (self._reader.reserved_bytes or self._hub.account.is_low)
        return room[:_LATE_READ_BYTES] if is_late else room

    def received(self, count: int) -> None:
        """Process `count` bytes that have been written into the buffer."""
        if self._state is not ReadState.READING:
            self._on(ReadEvent.BYTES)
            if self._state is ReadState.STOPPED:
                return
        reader = self._reader
        reader.received(count)
        is_first = self._hub.begin_turn()
        self._hub.busy_poll.note_received(is_alone=is_first and not reader.has_several)
        if reader.unread_bytes <= _ASIDE_BYTES and reader.has_only(self._costly_codes):
            reader.set_aside()
            self._on(ReadEvent.ONLY_COSTLY)
        elif not is_first and self._scheduler.is_spent():
            reader.set_aside()
            self._on(ReadEvent.LATE)
        else:
            self._read()
        self._count_kept()

    def add_costly(self, work: Callable[[], None]) -> None:
        """Queue `work` among the costly requests of the connection; it runs when the output is not full."""
        self._waiting.append(work)
        self._enqueue()

    def resume(self) -> None:
        """Schedule the work that waited for the output, after a flush or when the peer has caught up."""
        if self._state is not ReadState.READING:
            self._on(ReadEvent.FLUSHED)
        if self._waiting or self._state is ReadState.ASIDE:
            self._enqueue()

    def stop(self) -> None:
        """Discard all further input; costly requests that were already received are still handled."""
        reader = self._reader
        reader.resume()
        if reader.unread_bytes <= _ASIDE_BYTES and reader.has_only(self._costly_codes):
            try:
                while (command := reader.next_command()) is not None:
                    if command.flag & FLAG_RESPONSE:
                        self._take_response(command)
                    else:
                        self._waiting.append(command)
            except ProtocolError as error:
                self._refuse(error)
        self._on(ReadEvent.STOP)
        self._drop_input()
        if self._waiting:
            self._enqueue()

    def hold(self) -> None:
        """Handle no request and do not read the socket until `release`."""
        self._on(ReadEvent.HOLD)

    def release(self) -> None:
        """Continue after `hold`."""
        self._on(ReadEvent.RELEASE)
        if self._waiting:
            self._enqueue()

    def close(self) -> None:
        """Drop all requests and release the buffer of an incomplete frame."""
        self._on(ReadEvent.STOP)
        self._waiting.clear()
        self._drop_input()
        if self._share is not None:
            self._share.stop_waiting()

    # ---- for the reader --------------------

    def reserve(self, size_bytes: int) -> bool:
        """Return True if there is room for a long frame; otherwise it waits, and the socket is not read."""
        self._since_ns = self._scheduler.now_ns()
        return self._share is None or self._share.take(size_bytes, self._has_room)

    def place_age_ms(self, now_ns: int) -> int:
        """Return how long ago an incomplete long frame got its place; 0 without one."""
        return (now_ns - self._since_ns) // NS_PER_MS if self._reader.reserved_bytes else 0

    def give(self, size_bytes: int) -> None:
        """Release the place of a frame that is complete or dropped."""
        if self._share is not None:
            self._share.give(size_bytes)

    def _has_room(self) -> None:
        self._since_ns = self._scheduler.now_ns()
        self._reader.take_place()
        self._on(ReadEvent.ROOM)

    def _has_memory(self) -> None:
        self._on(ReadEvent.ROOM)

    def push_out(self, is_over: bool) -> bool:
        """Close the connection if its frame is incomplete and counts; return False if it has none."""
        reader, stalled_ns = self._reader, self._scheduler.now_ns() - _STALLED_NS
        size_bytes = reader.reserved_bytes or (self.arriving_frame is not None and reader.kept_bytes)
        if size_bytes < _COUNTED_BYTES or (not is_over and self._since_ns > stalled_ns):
            return False
        self._refuse(
            ProtocolError(
                f"a frame of {size_bytes:,} bytes is incomplete, and others need its place: "
                "send fewer and smaller frames at a time",
                "more traffic than this process can receive",
            )
        )
        return True

    # ---- internal --------------------

    def _on(self, event: ReadEvent) -> None:
        """Change the state; begin or end to read the socket, and queue the connection for its turn."""
        before, after = self._state, NEXT[self._state, event]
        if after is before:
            return
        self._state = after
        if self._transport is not None and (before in SOCKET_READ) != (after in SOCKET_READ):
            if after in SOCKET_READ:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()
        if after is ReadState.ASIDE:
            self._enqueue()
        elif after is ReadState.NEW or after is ReadState.OLD:
            self._hub.read_later(self._take_turn, is_new=after is ReadState.NEW)

    def _take_turn(self) -> None:
        """Decode the kept bytes, unless something has stopped it since it was queued."""
        self._on(ReadEvent.TURN)
        if self._state is not ReadState.DECODING:
            return
        obstacle = self._obstacle()
        if obstacle is not None:
            self._on(obstacle)
            return
        self._reader.resume()
        self._read()
        self._count_kept()

    def _obstacle(self) -> ReadEvent | None:
        """Return what stops the connection for longer than a turn, if anything does."""
        if self._reader.waits_for_bytes:
            return ReadEvent.ROOM_OVER
        if self._output.is_full:
            return ReadEvent.OUTPUT_OVER
        return ReadEvent.COSTLY_OVER if self._has_many_waiting else None

    def _serve_costly(self) -> None:
        """Handle one costly request, or decode a few of those that were set aside."""
        self._is_costly_queued = False
        if self._output.is_full or self._state is ReadState.HELD:
            return  # `resume` or `release` schedules the rest
        if self._waiting:
            work = self._waiting.popleft()
            if isinstance(work, RemotingCommand):
                self._handle_request(work)
            else:
                work()
            if self._state is ReadState.MANY_WAITING and not self._has_many_waiting:
                self._on(ReadEvent.HALF_SERVED)
            if self._waiting or self._state is ReadState.ASIDE:
                self._enqueue()
        elif self._state is ReadState.ASIDE:
            self._on(ReadEvent.SERVE)
            self._reader.resume()
            self._read(requests_max=_REQUESTS_PER_CLOCK_CHECK)
        self._count_kept()

    def _drop_input(self) -> None:
        self._reader.close()
        if self._share is not None:
            self._share.withdraw(self._has_room)
            self._count_kept()

    def _count_kept(self) -> None:
        """Count the kept bytes and the waiting requests in the account of memory, if there are many."""
        share, kept_bytes, requests = self._share, self._reader.kept_bytes, len(self._waiting)
        if kept_bytes < _COUNTED_BYTES:
            if requests < _COUNTED_REQUESTS and not self._kept[0]:
                return
            kept_bytes = 0
        if share is None:
            return
        kept_bytes += requests // _COUNTED_REQUESTS * _COUNTED_REQUESTS * _COSTLY_BYTES
        is_incomplete = self.arriving_frame is not None
        kept = kept_bytes, 0 if is_incomplete else kept_bytes
        if kept == self._kept:
            return
        before, self._kept = self._kept, kept
        if not before[0]:
            self._since_ns = self._scheduler.now_ns()
        share.count_input(kept[0] - before[0], kept[1] - before[1])
        if is_incomplete:
            share.keep_limit()

    @property
    def waiting(self) -> int:
        """Number of costly requests that wait to be handled."""
        return len(self._waiting)

    @property
    def _has_many_waiting(self) -> bool:
        return 2 * len(self._waiting) > self._hub.limits.costly_requests_max

    def _read(self, requests_max: int = 0) -> None:
        """Decode and handle requests until none is left or something stops it.

        With `requests_max`, decode at most that many of the requests that were set aside.
        """
        reader, scheduler, state = self._reader, self._scheduler, self._state
        count, began_ns, has_cheap, is_all = 0, scheduler.now_ns(), False, False
        try:
            while True:
                if self._takes_frames():
                    has_cheap = True
                    if reader.unread_bytes and (scheduler.is_spent() or self._output.is_full):
                        reader.set_aside()
                        break
                command = reader.next_command()
                if command is None:
                    is_all = True
                    break
                if command.flag & FLAG_RESPONSE:
                    self._take_response(command)
                elif (
                    command.code in self._costly_codes
                    and not command.body
                    and reader.frame_bytes <= _COSTLY_BYTES
                ):
                    self._waiting.append(command)
                else:
                    has_cheap = True
                    self._handle_request(command)
                count += 1
                if (
                    (not count % _REQUESTS_PER_CLOCK_CHECK and (requests_max or scheduler.is_spent()))
                    or self._output.is_full
                    or self._state is not state
                    or len(self._waiting) >= self._hub.limits.costly_requests_max
                ):
                    reader.set_aside()
                    break
        except ProtocolError as error:
            self._refuse(error)
        if has_cheap:
            scheduler.took_cheap(began_ns)
        if self._waiting:
            self._enqueue()
        if self._state is state:  # no request has held or closed the connection
            self._end_reading(is_all=is_all, is_part=bool(requests_max))

    def _end_reading(self, *, is_all: bool, is_part: bool) -> None:
        """Change to the state that says why no more is decoded; `is_part` if no more was wanted."""
        reader, share = self._reader, self._share
        if is_part and not is_all and reader.has_partial:
            self._on(ReadEvent.ONLY_COSTLY)
        elif reader.waits_for_bytes or (
            share is not None and not reader.reserved_bytes and share.is_read_later(self._has_memory)
        ):
            self._on(ReadEvent.ROOM_OVER)
        elif not (is_all or is_part):
            self._on(self._obstacle() or ReadEvent.TIME_OVER)
        elif self._state is ReadState.DECODING:
            self._on(ReadEvent.ALL_READ)

    def _takes_frames(self) -> bool:
        """Offer the undecoded frames to `take`; return True if it handled some of them."""
        if self._untaken:
            self._untaken -= 1
            return False
        reader = self._reader
        if not reader.may_take(self._taken_codes):
            return False
        if reader.take_frames(self._take):
            return True
        self._untaken = _DECODED_AFTER_REFUSAL
        return False

    def _enqueue(self) -> None:
        if not self._is_costly_queued:
            self._is_costly_queued = True
            self._hub.enqueue(self._serve_costly)
