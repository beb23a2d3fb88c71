"""Common interface of a running RocketMQ and a running RayMQ, for tests and benchmarks of both."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self


class Started(Protocol):
    """Processes that a `with` block starts, and stops at its end or if the start fails."""

    def start(self) -> Self: ...

    def stop(self) -> None: ...

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Deployment(Started, Protocol):
    """A nameserver and one broker."""

    @property
    def nameserver_address(self) -> str: ...

    @property
    def broker_address(self) -> str: ...

    @property
    def broker_pid(self) -> int: ...


class Peer(Deployment, Protocol):
    """A deployment whose broker can be restarted."""

    def restart_broker(self, *, killed: bool) -> None:
        """Restart the broker on the same store and port; stop it by SIGKILL if `killed`."""
