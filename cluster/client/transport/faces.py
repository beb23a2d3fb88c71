"""Base classes of the asyncio clients (AsyncFace) and of the blocking clients (BlockingFace).

Each client class exists twice. Signatures and docstrings are written once, in the asyncio class; the blocking
class copies them:

    class Admin(BlockingFace[aio.Admin]):
        end_offsets = blocking(aio.Admin.end_offsets)  # run it on the thread of the event loop and wait

    @documented_by(aio.Producer)  # copy the docstrings of methods that have none
    class Producer: ...

Type checkers and editors see the parameters of the asyncio method and the type of its result.
`help(Admin.end_offsets)` shows the signature and the docstring.
"""

from __future__ import annotations

import inspect
import os
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from cluster.client.errors import ClientClosed
from cluster.client.transport.instance import ClientInstance
from cluster.client.transport.loop_thread import LoopThread
from store.common.logs import get_logger

_log = get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
Face_co = TypeVar("Face_co", bound="Startable", covariant=True)
Class = TypeVar("Class", bound=type)


class Core(Protocol):
    """Implementation of an open client."""

    @property
    def instance(self) -> ClientInstance:
        """Return the ClientInstance, which belongs to the event loop that built the core."""

    async def close(self) -> None:
        """Close the client."""


CoreT = TypeVar("CoreT", bound=Core)


class AsyncFace(ABC, Generic[CoreT]):
    """Base class of the asyncio clients.

        new ──start, or first call──→ open ──close──→ closed (calls raise ClientClosed)

    A client belongs to the event loop that runs when it is opened.
    """

    def __init__(self, name: str, build: Callable[[], CoreT]) -> None:
        self._name = name
        self._build = build
        self._core: CoreT | None = None
        self._is_closed = False
        self._if_dropped: Callable[[], object] = do_nothing

    async def start(self) -> Self:
        """Open the client on the running event loop, as `async with` and the first call do too."""
        self._opened()
        return self

    @abstractmethod
    async def close(self) -> None:
        """Close the client; later calls raise ClientClosed."""

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def core(self) -> CoreT:
        """The core of the client, which this opens. To be used on the event loop of the client only."""
        return self._opened()

    def _opened(self) -> CoreT:
        if self._is_closed:
            raise ClientClosed(f"the {self._name} is closed: create a new one")
        if self._core is None:
            self._core = core = self._build()
            self._if_dropped = close_if_dropped(self, self._name, core)
        self._core.instance.check_loop()
        return self._core

    def _closing(self) -> CoreT | None:
        """Mark the client as closed. Return its core if the caller must close it, else None."""
        was_closed, self._is_closed = self._is_closed, True
        self._if_dropped()
        core = self._core
        return None if was_closed or core is None or core.instance.is_orphan else core


def close_if_dropped(client: object, name: str, core: Core) -> Callable[[], object]:
    """Close `core` with a warning when `client` is garbage-collected. Return the function to cancel that."""
    finalizer = weakref.finalize(client, _close_dropped, name, core, os.getpid())
    finalizer.atexit = False  # the process ends the connections
    return finalizer.detach


def _close_dropped(name: str, core: Core, pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked child: the client belongs to the parent
    _log.warning("client_not_closed", client=core.instance.client_id, remedy="use `with`, or call close()")
    warnings.warn(f"a {name} was dropped without close(): use `with`", ResourceWarning, stacklevel=2)
    core.instance.close_later(core.close)


def do_nothing() -> None:
    """Do nothing: the client is not open."""


class Startable(Protocol):
    """An asyncio client."""

    async def start(self) -> Self:
        """Open the client and return it."""


class BlockingFace(ABC, Generic[Face_co]):
    """Base class of the blocking clients: runs the methods of an asyncio client on LoopThread.shared()."""

    def __init__(self, face: Face_co) -> None:
        self._face = face
        self._thread = LoopThread.shared()

    def start(self) -> Self:
        """Open the client and return it, as a `with` block and the first call do too."""
        self._thread.run(self._face.start())
        return self

    @abstractmethod
    def close(self) -> None:
        """Close the client; later calls raise ClientClosed."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ensure_open(self) -> None:
        """Open the client if a call must do that; called before each call of the asyncio client."""


def blocking(
    method: Callable[Concatenate[Face_co, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingFace[Face_co], P], T]:
    """Return a blocking version of the asyncio `method`, with the same signature and docstring."""

    @wraps(method)
    def call(self: BlockingFace[Face_co], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._ensure_open()
        return self._thread.run(method(self._face, *args, **kwargs))

    return call


def documented_by(face: type) -> Callable[[Class], Class]:
    """Class decorator: copy missing docstrings of public methods from the methods of `face`."""

    def document(twin: Class) -> Class:
        for name, method in vars(twin).items():
            if inspect.isfunction(method) and not name.startswith("_") and method.__doc__ is None:
                method.__doc__ = getattr(face, name).__doc__
        return twin

    return document
