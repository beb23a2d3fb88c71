"""The task queue of Ray Serve: `@task_consumer` over RayMQ."""

from jobs.tasks.serve.adapter_config import RayMQAdapterConfig
from jobs.tasks.serve.autoscaling_policy import RayMQQueueAutoscalingPolicy
from jobs.tasks.serve.task_processor import RayMQTaskProcessor

__all__ = ["RayMQAdapterConfig", "RayMQQueueAutoscalingPolicy", "RayMQTaskProcessor"]
