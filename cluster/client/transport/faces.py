"""How the blocking faces get signatures and docstrings from the async faces, where both are written once.

    class Admin(BlockingFace[aio.Admin]):
        end_offsets = blocking(aio.Admin.end_offsets)     # runs it on the loop's thread and waits

    @documented_by(aio.Producer)                          # methods of its own, docstrings of the async face
    class Producer: ...

Type checkers and editors see the parameters of the async method and its result without the coroutine;
`help(Admin.end_offsets)` shows them with the docstring.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from cluster.client.transport.loop_thread import LoopThread

P = ParamSpec("P")
T = TypeVar("T")
Face_co = TypeVar("Face_co", covariant=True)
Class = TypeVar("Class", bound=type)


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
