"""ReservedPort: reserves the broker's port before the broker listens on it.

Every record contains the broker's address, so the port must be known before the store is opened, but clients
must not connect until it is open. A socket that is bound but does not listen reserves the port: with
SO_REUSEADDR the broker's server can bind it too and listen, and the system does not assign it to another
process.
"""

from __future__ import annotations

import asyncio
import socket
from types import TracebackType
from typing import Self

from actors.broker.broker_settings import BrokerSettings
from store.common.clock import NS_PER_MS, Clock

RETRY_INTERVAL_MS = 200


class ReservedPort:
    """Reserves port `number` until the `with` block ends."""

    def __init__(self, host: str, port: int) -> None:
        """Bind `port` of `host`; 0 chooses a free port. Raises OSError if the port is in use."""
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
    """Reserve `listen_port`; if it is in use, retry for `start_timeout_ms`.

    Raises:
        OSError: the port is still in use.
    """
    deadline_ns = clock.monotonic_ns() + settings.start_timeout_ms * NS_PER_MS
    while True:
        try:
            return ReservedPort(settings.listen_host, settings.listen_port)
        except OSError as error:
            if clock.monotonic_ns() >= deadline_ns:
                raise OSError(
                    error.errno,
                    f"broker {settings.broker_name} could not bind {settings.listen_host}:"
                    f"{settings.listen_port} within start_timeout_ms {settings.start_timeout_ms}: "
                    f"{error.strerror} "
                    "(set another listen_port, or stop the process that uses it)",
                ) from error
        await asyncio.sleep(RETRY_INTERVAL_MS / 1000)
