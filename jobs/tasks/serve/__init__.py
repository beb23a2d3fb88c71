"""The task queue of Ray Serve: `@task_consumer` over RayMQ."""
