"""Queues of tasks: for Ray Serve (`@task_consumer`), Celery and taskiq.

Ray Serve is imported with the first use of a name of `__all__`; Celery's and taskiq's modules are imported by
their own names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs.tasks.serve.adapter_config import RayMQAdapterConfig
    from jobs.tasks.serve.autoscaling_policy import RayMQQueueAutoscalingPolicy
    from jobs.tasks.serve.task_processor import RayMQTaskProcessor

__all__ = ["RayMQAdapterConfig", "RayMQQueueAutoscalingPolicy", "RayMQTaskProcessor"]

_MODULES = {
    "RayMQAdapterConfig": "jobs.tasks.serve.adapter_config",
    "RayMQQueueAutoscalingPolicy": "jobs.tasks.serve.autoscaling_policy",
    "RayMQTaskProcessor": "jobs.tasks.serve.task_processor",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'jobs.tasks' has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("jobs"):
            raise
        raise ModuleNotFoundError(
            f"jobs.tasks.{name} needs {error.name}: pip install 'raymq[serve]'", name=error.name
        ) from error
