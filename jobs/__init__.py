"""Read queues with Spark: `read_queue` and Spark sessions.

Imported lazily, because pyspark is slow to load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs.read import read_queue
    from jobs.session import local_session, raydp_session
    from jobs.stream.read_stream import read_stream

__all__ = ["local_session", "raydp_session", "read_queue", "read_stream"]

_MODULES = {"read_queue": "jobs.read", "local_session": "jobs.session", "raydp_session": "jobs.session"}
_MODULES["read_stream"] = "jobs.stream.read_stream"


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'jobs' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)
