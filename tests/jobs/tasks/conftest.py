"""A cluster of two brokers that the tests of task queues share, each with queues of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.client.conftest import Cluster, cluster, clusters, group
from tests.jobs.tasks.processors import Processors

__all__ = ["cluster", "clusters", "group"]


@pytest.fixture
def processors(cluster: Cluster) -> Iterator[Processors]:
    """Yield the processors of a queue that no other test uses."""
    made = Processors(cluster.address)
    yield made
    made.stop()
