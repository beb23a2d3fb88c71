"""What the faces of the clients share: how they open and close, their signatures and their docstrings.

The async faces are the one place of signatures and docstrings; the blocking faces get them from there.

    class Admin(BlockingFace[aio.Admin]):
        end_offsets = blocking(aio.Admin.end_offsets)     # runs it on the loop's thread and waits

    @documented_by(aio.Producer)                          # methods of its own, docstrings of the async face
    class Producer: ...

Type checkers and editors see the parameters of the async method and its result without the coroutine;
`help(Admin.end_offsets)` shows them with the docstring.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from cluster.client.errors import ClientClosed
from cluster.client.transport.instance import ClientInstance
from cluster.client.transport.loop_thread import LoopThread

P = ParamSpec("P")
T = TypeVar("T")
Face_co = TypeVar("Face_co", covariant=True)
Class = TypeVar("Class", bound=type)


class Core(Protocol):
    """What an open client runs on."""

    @property
    def instance(self) -> ClientInstance:
        """Return the connections, on the loop that ran when the core was built."""


CoreT = TypeVar("CoreT", bound=Core)


class AsyncFace(ABC, Generic[CoreT]):
    """Base of a class whose first call opens it, on the loop that runs then.

    new --start or first call--> open --close--> closed: calls raise ClientClosed
    """

    def __init__(self, name: str, build: Callable[[], CoreT]) -> None:
        self._name = name
        self._build = build
        self._core: CoreT | None = None
        self._is_closed = False

    async def start(self) -> Self:
        """Open the client on the running loop. `async with` and the first call do it too."""
        self._opened()
        return self

    @abstractmethod
    async def close(self) -> None:
        """Close the client."""

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _opened(self) -> CoreT:
        if self._is_closed:
            raise ClientClosed(f"the {self._name} is closed")
        if self._core is None:
            self._core = self._build()
        self._core.instance.check_loop()
        return self._core

    def _closing(self) -> CoreT | None:
        """Refuse later calls. Return the core if it is still to be closed in this process."""
        was_closed, self._is_closed = self._is_closed, True
        core = self._core
        return None if was_closed or core is None or core.instance.is_orphan else core


class BlockingFace(Generic[Face_co]):
    """Base of a class whose calls run those of an async face on the process's loop thread and wait."""

    def __init__(self, face: Face_co) -> None:
        self._face = face
        self._thread = LoopThread.shared()


def blocking(
    method: Callable[Concatenate[Face_co, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingFace[Face_co], P], T]:
    """Return the blocking twin of an async face's method, with its signature and docstring."""

    @wraps(method)
    def call(self: BlockingFace[Face_co], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.run(method(self._face, *args, **kwargs))

    return call


def documented_by(face: type) -> Callable[[Class], Class]:
    """Give each public method that has no docstring the one of the same method of `face`."""

    def document(twin: Class) -> Class:
        for name, method in vars(twin).items():
            if inspect.isfunction(method) and not name.startswith("_") and method.__doc__ is None:
                method.__doc__ = getattr(face, name).__doc__
        return twin

    return document
