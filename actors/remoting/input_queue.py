"""InputQueue: the requests of one connection between the socket and their handler.

    bytes received
      │
      ├─ only costly requests, as their first bytes show ──► set aside undecoded; decoded, a few at a time,
      │                                                      when the connection's turn for costly work comes
      ├─ the turn's time is used up ──► paused, new: read on in the next turn, before the old
      │
      └─ otherwise ──► decoded: responses and cheap requests are handled at once,
              │        costly requests wait; they are done one by one, in turn with other connections
              │
              ├─ the turn's time is used up ──► paused, old: read on in the next turn
              ├─ the output is full         ──► paused, until a flush or until the peer has read
              └─ too many costly waiting    ──► paused, until half of them are done

Paused means that the socket is not read and the rest of the bytes is kept. A costly request with a body is
handled at once: it may be as long as a frame and would have to be kept.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from actors.remoting.codes import FLAG_RESPONSE
from actors.remoting.command import RemotingCommand
from actors.remoting.frame import CodeMarks, FrameReader
from actors.remoting.hub import Hub
from actors.remoting.output_buffer import OutputBuffer
from actors.remoting.remoting_errors import ProtocolError

# When the turn's time is used up, leave almost all of what a peer sends in the kernel.
_LATE_READ_BYTES: Final = 16 * 1024
# Costly requests are set aside undecoded up to this size.
_ASIDE_BYTES: Final = 16 * 1024
# Requests of one connection between two looks at the clock.
_REQUESTS_A_LOOK: Final = 4


class InputQueue:
    """Reads the frames of one connection and hands them over in the order of `Turn`."""

    def __init__(
        self,
        hub: Hub,
        output: OutputBuffer,
        costly_codes: CodeMarks,
        handle_request: Callable[[RemotingCommand], None],
        take_response: Callable[[RemotingCommand], None],
        refuse: Callable[[ProtocolError], None],
    ) -> None:
        """Make an empty queue.

        Args:
            hub: of the connection.
            output: of the connection; nothing is read while it is full.
            costly_codes: codes of requests that wait for the end of a turn.
            handle_request: called with each request.
            take_response: called with each response.
            refuse: called if the bytes are no frames; should close the connection.
        """
        self._hub = hub
        self._turn = hub.turn
        self._output = output
        self._costly_codes = costly_codes
        self._handle_request = handle_request
        self._take_response = take_response
        self._refuse = refuse
        self._transport: asyncio.ReadTransport | None = None
        self._reader = FrameReader(hub.memory)
        self._waiting: deque[RemotingCommand | Callable[[], None]] = deque()  # costly
        self._is_set_aside = False
        self._is_paused = False
        self._is_queued = False  # to be read on
        self._is_in_line = False  # for costly work
        self._is_stopped = False

    @property
    def arriving_frame(self) -> int | None:
        """Number of the frame of which a part has arrived; None between frames and while this side has
        paused.
        """
        if self._reader.has_partial and not (self._is_paused or self._is_set_aside):
            return self._reader.frames
        return None

    @property
    def received_bytes(self) -> int:
        """Bytes that have been received since the start."""
        return self._reader.received_bytes

    def connection_made(self, transport: asyncio.ReadTransport) -> None:
        """Pause and resume this transport from now on."""
        self._transport = transport

    def get_buffer(self) -> memoryview:
        """Return the memory for the next bytes."""
        room = self._reader.get_buffer()
        return room[:_LATE_READ_BYTES] if self._turn.is_over else room

    def received(self, count: int) -> None:
        """Take `count` bytes that are in the buffer now."""
        if self._is_stopped:
            return
        reader = self._reader
        reader.received(count)
        is_first = self._hub.request_tick()
        if reader.unread_bytes <= _ASIDE_BYTES and reader.has_only(self._costly_codes):
            reader.set_aside()
            self._is_set_aside = True
            self._enqueue()
        elif not is_first and self._turn.is_spent():
            reader.set_aside()
            self._pause(is_new=True)
        else:
            self._is_set_aside = False
            self._read()

    def add_costly(self, work: Callable[[], None]) -> None:
        """Do this among the costly requests of the connection, when the output is not full."""
        self._waiting.append(work)
        self._enqueue()

    def resume(self) -> None:
        """Queue what waited for the output: it has been written, or the peer has caught up."""
        if self._is_paused and not self._has_many_waiting:
            self._read_later(is_new=False)
        if self._waiting or self._is_set_aside:
            self._enqueue()

    def stop(self) -> None:
        """Drop what the peer sends from now on; costly requests that have been received are still done.

        The socket is still read: closing it with bytes unread would reset it, and the peer could lose
        responses.
        """
        self._is_stopped = True

    def close(self) -> None:
        """Drop everything, and release the memory of an unfinished frame."""
        self._is_stopped = True
        self._waiting.clear()
        self._is_set_aside = False
        self._reader.close()

    def _read_on(self) -> None:
        """Read what is kept, unless the output is full or too many costly requests wait: then `resume` or
        `_serve_costly` queues the connection again.
        """
        self._is_queued = False
        if self._is_stopped or self._output.is_full or self._has_many_waiting:
            return
        self._is_paused = False
        self._reader.resume()
        self._read()
        if not self._is_paused and not self._is_stopped and self._transport is not None:
            self._transport.resume_reading()

    def _serve_costly(self) -> None:
        """Do one costly request, or decode a few of those that are set aside."""
        self._is_in_line = False
        if self._output.is_full:
            return  # `resume` queues the rest
        if self._waiting:
            work = self._waiting.popleft()
            if isinstance(work, RemotingCommand):
                self._handle_request(work)
            else:
                work()
            if self._is_paused and not self._has_many_waiting:
                self._read_later(is_new=False)
        elif self._is_set_aside:
            self._is_set_aside = False
            self._reader.resume()
            self._read(requests_max=_REQUESTS_A_LOOK)
        if self._waiting or self._is_set_aside:
            self._enqueue()

    @property
    def _has_many_waiting(self) -> bool:
        return 2 * len(self._waiting) > self._hub.limits.costly_requests_max

    def _read(self, requests_max: int = 0) -> None:
        """Hand over requests until none is left or the turn is over; at most `requests_max`, if given, of
        those set aside.
        """
        reader = self._reader
        turn = self._turn
        count, began_ns, has_cheap = 0, turn.now_ns(), False
        try:
            while (command := reader.next_command()) is not None:
                if command.flag & FLAG_RESPONSE:
                    self._take_response(command)
                elif command.code in self._costly_codes and not command.body:
                    self._waiting.append(command)
                else:
                    has_cheap = True
                    self._handle_request(command)
                count += 1
                if (
                    (not count % _REQUESTS_A_LOOK and (requests_max or turn.is_spent()))
                    or self._output.is_full
                    or self._is_stopped
                    or len(self._waiting) >= self._hub.limits.costly_requests_max
                ):
                    reader.set_aside()
                    if requests_max:
                        self._is_set_aside = reader.has_partial
                    else:
                        self._pause(is_new=False)
                    break
        except ProtocolError as error:
            self._refuse(error)
        if has_cheap:
            turn.took_cheap(began_ns)
        if self._waiting:
            self._enqueue()

    def _pause(self, *, is_new: bool) -> None:
        if not self._is_paused and self._transport is not None and not self._is_stopped:
            self._is_paused = True
            self._transport.pause_reading()
            self._read_later(is_new=is_new)

    def _read_later(self, *, is_new: bool) -> None:
        if not self._is_queued:
            self._is_queued = True
            self._hub.read_later(self._read_on, is_new=is_new)

    def _enqueue(self) -> None:
        if not self._is_in_line:
            self._is_in_line = True
            self._hub.enqueue(self._serve_costly)
