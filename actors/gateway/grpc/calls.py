"""Calls: one gRPC call, and the table of methods that a server has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from google.protobuf.message import Message

from actors.gateway.grpc.decoder import Decoder, decode
from actors.gateway.grpc.fields import SHORT_BYTES
from actors.gateway.grpc.gzip_data import declared_size, inflate
from actors.gateway.grpc.intake import COPIES, Intake, wake
from actors.gateway.grpc.messages import encode_frame
from actors.gateway.grpc.status import CallFailed, StatusCode
from actors.memory_account import Share
from store.common.clock import NS_PER_MS

HIGH_WATER_BYTES: Final = 64 * 1024
"""`Call.send` waits while more bytes of its stream are unsent."""
WAITING_MESSAGES_MAX: Final = 64
"""Messages of a stream that its handler has not received yet."""
CALL_BYTES: Final = 4096
"""Size of a call without its responses, and with a short request."""
_FREE_FIELDS: Final = 64
_FIELD_BYTES: Final = 96
"""Size of a field of a decoded request."""
_HEADER_BYTES: Final = 192
"""Size of one header with its name, and without its value."""


T = TypeVar("T")


class Output(Protocol):
    """The connection of a call."""

    def write(self, call: Call, data: bytes) -> None:
        """Send data of the call's stream as far as the peer's windows allow, and keep the rest."""


class Call:
    """One call from its headers to its status. A handler receives requests and sends responses."""

    __slots__ = (
        "_decoder", "_loop", "_output", "_sender", "_share", "_short_bytes", "crowding_ns", "deadline",
        "has_headers",
        "intake", "kept_bytes", "metadata", "method", "peer", "since_ns", "stream_id", "task",
        "trailers", "unsent", "waits_since_ns",
    )  # fmt: skip

    def __init__(
        self,
        method: Method,
        metadata: Mapping[str, str],
        peer: str,
        stream_id: int,
        output: Output,
        intake: Intake,
        decoder: Decoder,
        share: Share,
        since_ns: int,
        *,
        is_counted: bool,
    ) -> None:
        """Create the call; `is_counted` is False for the first open calls of a connection."""
        self.method = method
        self.metadata = metadata
        self.peer = peer
        self.stream_id = stream_id
        self.intake = intake
        self.since_ns = since_ns  # when bytes of a request arrived last (monotonic)
        self.waits_since_ns = since_ns  # when the incomplete request, or the unread responses, began
        self.crowding_ns = 0  # since when its incomplete request takes room for which others wait
        self.kept_bytes = 0
        self.task: asyncio.Task[None] | None = None
        self.deadline: asyncio.TimerHandle | None = None
        self.unsent = bytearray()
        self.has_headers = False
        self.trailers: list[tuple[bytes, bytes]] | None = None  # set when the call has its status
        self._output = output
        self._decoder = decoder
        self._share = share
        self._loop = asyncio.get_running_loop()
        self._sender: asyncio.Future[None] | None = None
        self._short_bytes = 0 if is_counted else SHORT_BYTES
        if is_counted:
            self.keep(CALL_BYTES + sum(map(len, metadata.values())) + _HEADER_BYTES * len(metadata))

    @property
    def size_bytes(self) -> int:
        """Size of everything that the call makes this process keep."""
        return self.kept_bytes + self.intake.size_bytes + len(self.unsent)

    def is_overdue(self, now_ns: int, timeout_ms: int, crowded_timeout_ms: int | None) -> bool:
        """Return True if a request is incomplete for too long; for less long while others wait for room."""
        intake = self.intake
        if intake.is_handling or not (intake.incomplete_bytes or (not intake and not self.method.is_stream)):
            return False
        if intake.has_place and crowded_timeout_ms is not None:
            self.crowding_ns = self.crowding_ns or now_ns
            return now_ns - self.crowding_ns > crowded_timeout_ms * NS_PER_MS
        self.crowding_ns = 0
        return now_ns - self.since_ns >= timeout_ms * NS_PER_MS

    @property
    def waits_for_peer(self) -> bool:
        """True if the rest of a request is missing, a request waits, or the peer does not read a response."""
        return not self.intake.is_handling or bool(self.unsent)

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the client's deadline; None without a deadline."""
        return None if self.deadline is None else max(0.0, self.deadline.when() - self._loop.time())

    async def receive(self) -> Any:
        """Return the next request, or None after the last one. Raises CallFailed if it cannot be decoded."""
        kind, packed = self.method.request_type, self.intake.next_free()
        if packed is None:
            if not await self.intake.arrival():
                return None
            async with self._decoder.turn if not self.intake.has_place else nullcontext():
                message, fields = await self._decoder.decode(kind, await self.intake.next())
        elif len(packed.data) <= self._short_bytes and not packed.is_gzip:
            return decode(kind, packed.data)
        else:
            message, fields = await self._decoder.decode(kind, packed)
        if fields > _FREE_FIELDS and not self.method.is_stream:
            self.keep(fields * _FIELD_BYTES)
        return message

    async def request(self) -> Any:
        """Return the only request. Raises CallFailed if it is missing or cannot be decoded."""
        request = await self.receive()
        if request is None:
            raise CallFailed(StatusCode.INVALID_ARGUMENT, "the call ended without a request")
        return request

    async def inflate(self, parts: Sequence[bytes]) -> list[bytes]:
        """Return the content of gzip data within a request. Raises GzipInvalid."""
        size_bytes = sum(map(declared_size, parts))
        await self.intake.take(COPIES * size_bytes)
        return await self._decoder.run(size_bytes, lambda: [inflate(part) for part in parts])

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run work that takes long in the thread of the decoder."""
        return await self._decoder.run_long(work)

    def keep(self, size_bytes: int) -> None:
        """Count memory that the handler keeps until the call ends; negative if it needs it no more."""
        if self.trailers is None:
            self.kept_bytes += size_bytes
            self._share.add(size_bytes)

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
        if not self.intake.incomplete_bytes:
            self.waits_since_ns = now_ns
        self.intake.arrived(data)
        limit = WAITING_MESSAGES_MAX if self.method.is_stream else 1
        if len(self.intake) > limit:
            raise CallFailed(
                StatusCode.RESOURCE_EXHAUSTED, f"more than {limit} requests of this call are waiting"
            )

    def sent(self) -> None:
        """Continue a `send` that waits for the peer."""
        if self._sender is not None and len(self.unsent) <= HIGH_WATER_BYTES:
            wake(self._sender)

    def close(self) -> None:
        """Stop the timer, the handler and a `send`: the call has its status or its stream was reset.

        Nothing refers to the task afterwards: what its frames hold is freed when it has ended, not by the
        garbage collector, which runs rarely.
        """
        wake(self._sender)
        self.intake.close()
        if self.kept_bytes:
            self._share.add(-self.kept_bytes)
            self.kept_bytes = 0
        if self.deadline is not None:
            self.deadline.cancel()
        task, self.task = self.task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()


Serve = Callable[[Call], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Method:
    """One method of a service: its request type and the coroutine that serves a call."""

    request_type: type[Message]
    serve: Serve
    is_stream: bool = False
    """Whether the client may send several requests, or the server several responses, for a long time."""
