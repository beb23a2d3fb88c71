"""Common interface of a running RocketMQ and a running RayMQ, for tests and benchmarks of both."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self


class Deployment(Protocol):
    """A nameserver and one broker, started on entry and stopped on exit."""

    @property
    def nameserver_address(self) -> str: ...

    @property
    def broker_address(self) -> str: ...

    @property
    def broker_pid(self) -> int: ...

    def start(self) -> Self: ...

    def stop(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Peer(Deployment, Protocol):
    """A deployment whose broker can be restarted."""

    def restart_broker(self, *, killed: bool) -> None:
        """Restart the broker on the same store and port; stop it by SIGKILL if `killed`."""
