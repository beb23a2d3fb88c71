"""Ray Serve's own adapter of Celery, unchanged, with `raymq://` as its broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import serve
from ray._private import ray_constants
from ray.serve.schema import CeleryAdapterConfig, TaskProcessorConfig
from ray.serve.task_consumer import instantiate_adapter_from_config, task_consumer, task_handler

import jobs.tasks.kombu_transport  # noqa: F401 - makes raymq:// known without an installation
from tests.cluster.client.conftest import Cluster
from tests.eventually import LIMIT_S, eventually
from tests.jobs.tasks.celery_worker import installed_at

pytestmark = [pytest.mark.ray, pytest.mark.extended]


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run Ray Serve, in whose replicas raymq is installed."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray_constants, "RAY_ENABLE_UV_RUN_RUNTIME_ENV", False)
    environment = {"PYTHONPATH": installed_at(tmp_path)}
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": environment})
    try:
        yield
    finally:
        serve.shutdown()
        ray.shutdown()


def test_tasks_of_ray_serve_run_from_a_raymq_url(cluster: Cluster, tmp_path: Path, serving: None) -> None:
    results = tmp_path / "results"
    results.mkdir()
    config = TaskProcessorConfig(
        queue_name="thumbnails",
        adapter_config=CeleryAdapterConfig(
            broker_url=f"raymq://{cluster.address}/serve", backend_url=f"file://{results}"
        ),
        max_retries=1,
        failed_task_queue_name="failed",
        unprocessable_task_queue_name="unprocessable",
    )

    @serve.deployment(ray_actor_options={"num_cpus": 0.5})
    @task_consumer(task_processor_config=config)
    class Thumbnails:
        @task_handler(name="resize")
        def resize(self, name: str) -> str:
            if name == "broken":
                raise ValueError(name)
            return name.upper()

    serve.run(Thumbnails.bind())
    adapter: Any = instantiate_adapter_from_config(config)
    tasks = [adapter.enqueue_task_sync("resize", args=[f"cat-{number}"]) for number in range(10)]
    broken = adapter.enqueue_task_sync("resize", args=["broken"])
    for number, task in enumerate(tasks):
        eventually(
            lambda task=task: adapter.get_task_status_sync(task.id).status == "SUCCESS", within_s=LIMIT_S
        )
        assert adapter.get_task_status_sync(task.id).result == f"CAT-{number}"
    eventually(lambda: adapter.get_task_status_sync(broken.id).status == "FAILURE")
    assert [list(answer.values()) for answer in adapter.health_check_sync()] == [[{"ok": "pong"}]]
    with adapter._app.connection() as connection:  # noqa: SLF001 - Ray Serve has no way to read this queue
        eventually(
            lambda: connection.default_channel.queue_declare("failed", passive=True).message_count == 1
        )
