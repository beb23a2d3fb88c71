"""RayEngine: Ray tasks write the files of a round."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobs.job_errors import LakeUnavailable
from jobs.lake.lake_table import LakeState
from jobs.lake.round import write_round
from jobs.lake.write_rows import WriteTask, WrittenRows
from jobs.lake_service import engines
from jobs.lake_service.engines import RayEngine
from jobs.reading.describe import describe_topic
from jobs.reading.splits import NO_STORE
from tests.jobs.conftest import MESSAGES, TOPIC, Orders
from tests.jobs.lake.lake_files import catalog_of, table_of

if TYPE_CHECKING:
    from ray import ObjectRef

pytestmark = [pytest.mark.ray, pytest.mark.slow]


class Misplaced(RayEngine):
    """An engine whose tasks cannot write to their directory."""

    def run(self, tasks: Sequence[WriteTask]) -> list[WrittenRows]:
        return super().run(
            [replace(each, target=replace(each.target, location="file:///proc/lake")) for each in tasks]
        )


@pytest.fixture
def cancelled(ray_data: None, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the tasks that are cancelled. Ray aborts the process if one of them ends at that moment."""
    import ray

    found: list[object] = []
    cancel = ray.cancel

    def noted(task: ObjectRef[Any]) -> None:
        found.append(task)
        cancel(task)

    monkeypatch.setattr(ray, "cancel", noted)
    return found


def test_ray_tasks_write_the_files_of_a_round(
    cancelled: list[object], orders: Orders, tmp_path: Path
) -> None:
    table = table_of(catalog_of(tmp_path))
    with pytest.raises(LakeUnavailable, match="the file file:///proc/lake"):
        write_round(table, lambda: describe_topic(orders.nameservers, TOPIC), Misplaced())
    result = write_round(table, lambda: describe_topic(orders.nameservers, TOPIC), RayEngine())
    assert result.rows == MESSAGES + 1
    assert table.iceberg.scan().to_arrow().num_rows == MESSAGES + 1
    assert cancelled == []


class Waiting(RayEngine):
    """An engine whose tasks wait for a broker that does not respond."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address

    def run(self, tasks: Sequence[WriteTask]) -> list[WrittenRows]:
        location = replace(NO_STORE, address=self._address)
        split = replace(tasks[0].splits[0], location=location)
        return super().run([replace(tasks[0], splits=(split,))])


def test_tasks_of_a_round_that_take_too_long_are_cancelled(
    cancelled: list[object], orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(catalog_of(tmp_path))
    monkeypatch.setattr(engines, "TASKS_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        with pytest.raises(LakeUnavailable, match=r"took longer than 0\.1 s"):
            write_round(table, lambda: describe_topic(orders.nameservers, TOPIC), Waiting(f"{host}:{port}"))
    assert cancelled
    assert table.state() == LakeState()
