"""What the tests and benchmarks need of either side, RocketMQ or RayMQ, to say the same things about both."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self


class Served(Protocol):
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


class Peer(Served, Protocol):
    """One whose broker may be taken down."""

    def restart_broker(self, *, killed: bool) -> None:
        """Take the broker down, by SIGKILL when `killed`, and bring it back on the same store and port."""
