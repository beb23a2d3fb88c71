"""`read_dataset` with `lake`: history and the log in one dataset."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jobs import read_dataset
from tests.jobs.conftest import ClusterThread
from tests.jobs.lake.history_topic import TOPIC, HistoryTopic

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_data")]


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HistoryTopic]:
    running = ClusterThread(tmp_path_factory.mktemp("stores"))
    try:
        yield HistoryTopic(running.cluster.nameserver_address, tmp_path_factory.mktemp("lake"))
    finally:
        running.stop()


def test_dataset_has_history_and_tail_with_one_schema(topic: HistoryTopic) -> None:
    log = read_dataset(TOPIC, nameservers=topic.nameservers)
    lake = read_dataset(
        TOPIC,
        nameservers=topic.nameservers,
        lake="with_tail",
        warehouse=topic.warehouse,
        override_num_blocks=5,
    )
    assert lake.schema().base_schema.equals(log.schema().base_schema)
    assert lake.count() == 400
    found, expected = (
        sorted(tuple(row[name] for name in ("brokerName", "queueId", "queueOffset", "body")) for row in rows)
        for rows in (lake.take_all(), log.take_all())
    )
    assert found == expected
    only = read_dataset(
        TOPIC, lake="only", warehouse=topic.warehouse, columns=["body"], where="tags = 'tag-2'"
    )
    assert sorted(int(row["body"]) for row in only.take_all()) == list(range(2, 300, 3))
