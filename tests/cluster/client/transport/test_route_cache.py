"""RouteCache: routes of topics that the first send creates."""

from __future__ import annotations

import pytest

from actors.transport.clients.nameservers import Nameservers
from actors.wire.bodies.routes import BrokerData, QueueData
from cluster.client.errors import TopicNotFound
from cluster.client.transport.route_cache import AUTO_CREATE_TOPIC, RouteCache
from store.common.clock import SystemClock
from tests.actors.transport.clients.test_nameservers import FakeNameserver, with_nameservers

STICKY_MS = 120_000
TEMPLATE = QueueData("a", 8, 8, 7)
SLAVE, MASTER = {1: "a:2"}, {0: "a:1", 1: "a:2"}


def test_new_topic_finds_the_master_that_registers_after_its_slave() -> None:
    nameserver = FakeNameserver((TEMPLATE, BrokerData("C", "a", SLAVE)), topic=AUTO_CREATE_TOPIC)

    async def story(nameservers: Nameservers) -> None:
        routes = RouteCache(nameservers, SystemClock(), sticky_ms=STICKY_MS, auto_create_queues=4)
        assert (await routes.get("T")).writable == ()
        nameserver.brokers = [(TEMPLATE, BrokerData("C", "a", MASTER))]
        await routes.refresh("T")
        route = await routes.get("T")
        assert [queue.queue_id for queue in route.writable] == [0, 1, 2, 3]
        assert route.master("a") == "a:1"

        nameserver.brokers = []
        with pytest.raises(TopicNotFound, match="'T' does not exist"):
            await routes.refresh("T")
        assert await routes.get("T") == route, "its brokers restart"

    with_nameservers(story, nameserver)


def test_created_topic_keeps_the_queues_of_a_broker_that_restarts() -> None:
    nameserver = FakeNameserver((TEMPLATE, BrokerData("C", "a", MASTER)), topic=AUTO_CREATE_TOPIC)

    async def story(nameservers: Nameservers) -> None:
        routes = RouteCache(nameservers, SystemClock(), sticky_ms=STICKY_MS, auto_create_queues=4)
        await routes.get("T")
        nameserver.topic, nameserver.brokers = "T", [(QueueData("a", 2, 2, 6), BrokerData("C", "a", MASTER))]
        created = await routes.refresh("T")
        nameserver.topic = AUTO_CREATE_TOPIC
        assert (await routes.refresh("T")).keyed == created.keyed

    with_nameservers(story, nameserver)
