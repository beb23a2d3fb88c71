"""A port that is ours before anyone may connect to it.

The address of a broker stands in every record it writes, so it must be known before the store is opened;
clients must not connect before that. A socket that is bound, but does not listen, keeps the port meanwhile:
with SO_REUSEADDR on both a second socket may bind it and listen, and no other process gets it in between by
asking for port 0.
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
        """Bind `port` of `host` (0: any that is free). Raises OSError when it is taken."""
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
    """The port to listen on; one that is taken is tried again until the start's time is up.

    Raises OSError, which names the setting, when it is.
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
