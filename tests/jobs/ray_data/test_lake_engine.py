"""RayEngine: Ray tasks write the files of a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.job_errors import LakeUnavailable
from jobs.lake.round import write_round
from jobs.lake.write_rows import WriteTask, WrittenRows
from jobs.lake_service.engines import RayEngine
from jobs.reading.describe import describe_topic
from tests.jobs.conftest import MESSAGES, TOPIC, Orders
from tests.jobs.lake.lake_files import catalog_of, table_of

pytestmark = [pytest.mark.ray, pytest.mark.slow]


class Misplaced(RayEngine):
    """An engine whose tasks cannot write to their directory."""

    def run(self, tasks: Sequence[WriteTask]) -> list[WrittenRows]:
        return super().run([replace(each, data_location="file:///proc/lake") for each in tasks])


def test_ray_tasks_write_the_files_of_a_round(ray_data: None, orders: Orders, tmp_path: Path) -> None:
    table = table_of(catalog_of(tmp_path))
    with pytest.raises(LakeUnavailable, match="the file file:///proc/lake"):
        write_round(table, lambda: describe_topic(orders.nameservers, TOPIC), Misplaced())
    result = write_round(table, lambda: describe_topic(orders.nameservers, TOPIC), RayEngine())
    assert result.rows == MESSAGES + 1
    assert table.iceberg.scan().to_arrow().num_rows == MESSAGES + 1
