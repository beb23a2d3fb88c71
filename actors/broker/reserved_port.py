"""ReservedPort: reserves the broker's port before the broker listens on it.

Every record holds the broker's address, so the port must be known before the store is opened, and clients
must not connect before that. A socket that is bound but does not listen reserves the port: with SO_REUSEADDR
a second socket can bind it and listen, and no other process gets it by binding port 0.
"""

from __future__ import annotations

import asyncio
import socket
from types import TracebackType
from typing import Self

from actors.broker.broker_settings import BrokerSettings
from store.clock import NS_PER_MS, Clock

TRY_AGAIN_MS = 200


class ReservedPort:
    """Holds `number` until the `with` block ends."""

    def __init__(self, host: str, port: int) -> None:
        """Bind `port` of `host`, any free one for 0. Raises OSError if it is in use."""
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self._socket = socket.socket(family, kind, protocol)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(address)
        except OSError:
            self._socket.close()
            raise
        self.number = int(self._socket.getsockname()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()


async def reserve_port(settings: BrokerSettings, clock: Clock) -> ReservedPort:
    """Reserve the port to listen on; one in use is retried until `start_timeout_ms` have passed.

    Raises:
        OSError: the port is still in use; the error names the setting.
    """
    deadline_ns = clock.monotonic_ns() + settings.start_timeout_ms * NS_PER_MS
    while True:
        try:
            return ReservedPort(settings.listen_host, settings.listen_port)
        except OSError as error:
            if clock.monotonic_ns() >= deadline_ns:
                raise OSError(
                    error.errno,
                    f"broker {settings.broker_name} could not get {settings.listen_host}:"
                    f"{settings.listen_port} in start_timeout_ms {settings.start_timeout_ms}: "
                    f"{error.strerror} "
                    "(set another listen_port, or end the process that has it)",
                ) from error
        await asyncio.sleep(TRY_AGAIN_MS / 1000)
