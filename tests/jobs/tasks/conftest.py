"""A cluster of two brokers that the tests of task queues share, each with queues of its own."""

from __future__ import annotations

from tests.cluster.client.conftest import cluster, clusters, group

__all__ = ["cluster", "clusters", "group"]
