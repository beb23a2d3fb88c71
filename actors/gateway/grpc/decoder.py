"""Decoder: inflates and decodes the requests of a connection within limits, without holding up others.

The connections take turns with what takes long:

    inflate       in the thread, if there is more than `INLINE_BYTES`
    count_fields  on the event loop in slices: in a thread it would hold the interpreter's lock for as long
    decode        at once: takes a millisecond for the fields that are allowed
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from actors.gateway.grpc.fields import FIELDS_MAX, SLICE_FIELDS, count_fields
from actors.gateway.grpc.gzip_data import INLINE_BYTES, GzipInvalid, inflate
from actors.gateway.grpc.messages import Packed
from actors.gateway.grpc.status import CallFailed, StatusCode

T = TypeVar("T")


class LongWork:
    """What takes long for the connections of one server: one request at a time."""

    def __init__(self) -> None:
        """Create it; the thread starts with the first long request."""
        self.thread = ThreadPoolExecutor(1, "grpc-decoder")
        self.counting = asyncio.Lock()

    def close(self) -> None:
        """Stop the thread after its present work."""
        self.thread.shutdown(wait=False, cancel_futures=True)


class Decoder:
    """Decodes the requests of one connection."""

    def __init__(self, long_work: LongWork) -> None:
        self.turn = asyncio.Lock()
        """Held while one request gets its place in the account and is decoded."""
        self._long_work = long_work
        self._in_thread = asyncio.Lock()

    async def decode(self, kind: type[Message], packed: Packed) -> tuple[Any, int]:
        """Return the message and the number of its fields.

        Raises CallFailed if it is not valid or has more than `FIELDS_MAX` fields.
        """
        plain = packed.data
        if packed.is_gzip:
            try:
                plain = await self.run(packed.plain_bytes, lambda: inflate(packed.data))
            except GzipInvalid as error:
                raise CallFailed(StatusCode.INTERNAL, f"the message is {error}") from None
        name = kind.DESCRIPTOR.name
        try:
            fields = await self._count(kind, plain)
        except ValueError as error:
            raise _invalid(kind, error) from None
        if fields > FIELDS_MAX:
            raise CallFailed(
                StatusCode.RESOURCE_EXHAUSTED,
                f"the {name} has more than {FIELDS_MAX:,} fields: send several smaller requests",
            )
        return decode(kind, plain), fields

    async def run(self, plain_bytes: int, work: Callable[[], T]) -> T:
        """Run work that inflates `plain_bytes`, in the thread if these are many."""
        return work() if plain_bytes <= INLINE_BYTES else await self.run_long(work)

    async def run_long(self, work: Callable[[], T]) -> T:
        """Run work in the thread."""
        async with self._in_thread:
            return await asyncio.get_running_loop().run_in_executor(self._long_work.thread, work)

    async def _count(self, kind: type[Message], plain: bytes) -> int:
        counts = count_fields(plain, kind)
        fields = next(counts)
        if fields >= SLICE_FIELDS:
            async with self._long_work.counting:
                for fields in counts:  # noqa: B007 - the last one is the result
                    await asyncio.sleep(0)
        return fields


def decode(kind: type[Message], plain: bytes) -> Any:
    """Return the message. Raises CallFailed if it is not valid."""
    try:
        return kind.FromString(plain)
    except (DecodeError, ValueError) as error:
        raise _invalid(kind, error) from None


def _invalid(kind: type[Message], error: Exception) -> CallFailed:
    return CallFailed(
        StatusCode.INVALID_ARGUMENT, f"the request is not a valid {kind.DESCRIPTOR.name}: {error}"
    )
