"""Queues of tasks: for Ray Serve (`@task_consumer`), Celery and taskiq.

Ray Serve is imported with the first use of a name of `__all__`; Celery's and taskiq's modules are imported by
their own names.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs.tasks.serve import RayMQAdapterConfig, RayMQQueueAutoscalingPolicy, RayMQTaskProcessor

__all__ = ["RayMQAdapterConfig", "RayMQQueueAutoscalingPolicy", "RayMQTaskProcessor"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'jobs.tasks' has no attribute {name!r}")
    try:
        return getattr(import_module("jobs.tasks.serve"), name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"jobs.tasks.{name} needs {error.name}: pip install 'raymq[serve]'", name=error.name
        ) from error
