"""Decoder: inflates and decodes requests within limits; long ones in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from actors.gateway.grpc.fields import FIELDS_MAX, count_fields
from actors.gateway.grpc.gzip_data import INLINE_BYTES, GzipInvalid, inflate
from actors.gateway.grpc.messages import Packed
from actors.gateway.grpc.status import CallFailed, StatusCode

T = TypeVar("T")


class Decoder:
    """Decodes the requests of all connections of one server."""

    def __init__(self) -> None:
        """Create the decoder; its thread starts with the first long request."""
        self._thread = ThreadPoolExecutor(1, "grpc-decoder")

    async def decode(self, kind: type[Message], packed: Packed) -> tuple[Any, int]:
        """Return the message and the number of its fields, as `decode` does; a long one from the thread."""
        return await self.run(packed.plain_bytes, lambda: decode(kind, packed))

    async def run(self, plain_bytes: int, work: Callable[[], T]) -> T:
        """Run work that inflates or decodes `plain_bytes`, in the thread if these are many."""
        return work() if plain_bytes <= INLINE_BYTES else await self.run_long(work)

    async def run_long(self, work: Callable[[], T]) -> T:
        """Run work in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        """Stop the thread after its present work."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def decode(kind: type[Message], packed: Packed, short_bytes: int = 0) -> tuple[Any, int]:
    """Return the message and the number of its fields, which is 0 for one of up to `short_bytes`.

    Raises CallFailed if it is not valid or has more than `FIELDS_MAX` fields.
    """
    try:
        plain = inflate(packed.data) if packed.is_gzip else packed.data
    except GzipInvalid as error:
        raise CallFailed(StatusCode.INTERNAL, f"the message is {error}") from None
    name, fields = kind.DESCRIPTOR.name, 0
    try:
        if len(plain) > short_bytes:
            fields = count_fields(plain, kind)
        if fields > FIELDS_MAX:
            raise CallFailed(
                StatusCode.RESOURCE_EXHAUSTED,
                f"the {name} has more than {FIELDS_MAX:,} fields: send several smaller requests",
            )
        return kind.FromString(plain), fields
    except (DecodeError, ValueError) as error:
        raise CallFailed(StatusCode.INVALID_ARGUMENT, f"the request is not a valid {name}: {error}") from None
