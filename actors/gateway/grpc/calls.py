"""Calls: one gRPC call, and the table of methods that a server has."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from google.protobuf.message import Message

from actors.gateway.grpc.decoder import Decoder
from actors.gateway.grpc.gzip_data import declared_size, inflate
from actors.gateway.grpc.messages import MessageReader, Packed, encode_frame
from actors.gateway.grpc.status import CallFailed, StatusCode

HIGH_WATER_BYTES: Final = 64 * 1024
"""`Call.send` waits while more bytes of its stream are unsent."""
WAITING_MESSAGES_MAX: Final = 64
"""Messages of a stream that its handler has not received yet."""


class Output(Protocol):
    """The connection of a call."""

    def write(self, call: Call, data: bytes) -> None:
        """Send data of the call's stream as far as the peer's windows allow, and keep the rest."""
        ...


class Call:
    """One call from its headers to its status. A handler receives requests and sends responses."""

    __slots__ = (
        "_decoder", "_is_ended", "_loop", "_output", "_receiver", "_requests", "_sender", "deadline",
        "has_headers", "metadata", "method", "peer", "reader", "since_ns", "stream_id", "task",
        "trailers", "unsent",
    )  # fmt: skip

    def __init__(
        self,
        method: Method,
        metadata: Mapping[str, str],
        peer: str,
        stream_id: int,
        output: Output,
        reader: MessageReader,
        decoder: Decoder,
        since_ns: int,
    ) -> None:
        self.method = method
        self.metadata = metadata
        self.peer = peer
        self.stream_id = stream_id
        self.reader = reader
        self.since_ns = since_ns  # when bytes of the request arrived last (monotonic)
        self.task: asyncio.Task[None] | None = None
        self.deadline: asyncio.TimerHandle | None = None
        self.unsent = bytearray()
        self.has_headers = False
        self.trailers: list[tuple[bytes, bytes]] | None = None  # set when the call has its status
        self._decoder = decoder
        self._output = output
        self._loop = asyncio.get_running_loop()
        self._requests: deque[Packed] = deque()
        self._is_ended = False
        self._receiver: asyncio.Future[None] | None = None
        self._sender: asyncio.Future[None] | None = None

    @property
    def is_ended(self) -> bool:
        """True if the client sends no further request."""
        return self._is_ended

    @property
    def has_request(self) -> bool:
        """True if a request is complete, or was received by the handler of a stream."""
        return bool(self._requests) or self.method.is_stream

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the client's deadline; None without a deadline."""
        return None if self.deadline is None else max(0.0, self.deadline.when() - self._loop.time())

    async def receive(self) -> Any:
        """Return the next request, or None after the last one. Raises CallFailed if it cannot be decoded."""
        while not self._requests:
            if self._is_ended:
                return None
            self._receiver = self._loop.create_future()
            await self._receiver
        return await self._decoder.decode(self.method.request_type, self._requests.popleft())

    async def request(self) -> Any:
        """Return the only request. Raises CallFailed if it is missing or cannot be decoded."""
        request = await self.receive()
        if request is None:
            raise CallFailed(StatusCode.INVALID_ARGUMENT, "the call ended without a request")
        return request

    async def inflate(self, data: bytes) -> bytes:
        """Return the content of gzip data within a request. Raises GzipInvalid."""
        return await self._decoder.run(declared_size(data), lambda: inflate(data))

    async def send(self, message: Message) -> None:
        """Send one response; wait while the peer has much to read."""
        self._output.write(self, encode_frame(message.SerializeToString()))
        while len(self.unsent) > HIGH_WATER_BYTES and self.trailers is None:
            self._sender = self._loop.create_future()
            await self._sender

    # ---- for the connection --------------------

    def arrived(self, data: bytes, now_ns: int) -> None:
        """Add received data. Raises CallFailed if it is invalid or exceeds a limit."""
        self.since_ns = now_ns
        self._requests += self.reader.feed(data)
        limit = WAITING_MESSAGES_MAX if self.method.is_stream else 1
        if len(self._requests) > limit:
            raise CallFailed(
                StatusCode.RESOURCE_EXHAUSTED, f"more than {limit} requests of this call are waiting"
            )
        if self._requests:
            _wake(self._receiver)

    def end_input(self) -> None:
        """Note that the client sends no further request."""
        self._is_ended = True
        _wake(self._receiver)

    def sent(self) -> None:
        """Continue a `send` that waits for the peer."""
        if len(self.unsent) <= HIGH_WATER_BYTES:
            _wake(self._sender)

    def close(self) -> None:
        """Stop the timer, the handler and a `send`: the call has its status or its stream was reset."""
        _wake(self._sender)
        if self.deadline is not None:
            self.deadline.cancel()
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


Serve = Callable[[Call], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Method:
    """One method of a service: its request type and the coroutine that serves a call."""

    request_type: type[Message]
    serve: Serve
    is_stream: bool = False
    """Whether the client may send several requests, or the server several responses, for a long time."""
