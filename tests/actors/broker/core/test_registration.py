"""Registration at a nameserver: changed topics are registered alone, and all after any other event."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import orjson
import pytest

from actors.broker.core.metadata.tables import BrokerTables
from actors.broker.core.registration import CHANGED_TOPICS_MAX
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import build_nameserver
from actors.wire.codes import RequestCode
from actors.wire.headers import CreateTopicHeader, DeleteTopicHeader
from store.common.clock import SystemClock
from tests.actors.broker.brokers import A_DAY_MS, Peer, registered_broker, run
from tests.eventually import eventually_async

Names = Collection[str] | None


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[Names]:
    """Return a list of the topics of each registration; None stands for all topics."""
    names: list[Names] = []
    register_body = BrokerTables.register_body

    def body(tables: BrokerTables, topics: Names) -> Any:
        names.append(topics)
        return register_body(tables, topics)

    monkeypatch.setattr(BrokerTables, "register_body", body)
    return names


async def create(peer: Peer, *topics: str) -> None:
    configs = [{"topicName": topic, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for topic in topics]
    body = orjson.dumps({"topicConfigList": configs})
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)).code == 0


def test_new_topic_is_registered_without_the_other_topics(tmp_path: Path, registered: list[Names]) -> None:
    async def story() -> None:
        async with registered_broker(tmp_path, register_interval_ms=A_DAY_MS) as (nameserver, peer):
            assert registered == [None]
            await create(peer, "T", "U")
            header = CreateTopicHeader("T", read_queue_nums=3, write_queue_nums=3, perm=6)
            await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())
            assert registered == [None, {"T", "U"}, {"T"}]
            routes = nameserver.routes
            found = {name: routes.route(name) for name in ("T", "U", "TBW102")}
            queues = {name: route.queue_datas[0].read_queue_nums for name, route in found.items() if route}
            assert queues == {"T": 3, "U": 1, "TBW102": 8}
            # The request is handled in slices, so a first registration may have a part of the topics.
            await create(peer, *(f"many-{number}" for number in range(4 * CHANGED_TOPICS_MAX)))
            assert None in registered[3:]
            before = len(registered)
            delete = DeleteTopicHeader("T").to_ext()
            assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, delete)).code == 0
            await eventually_async(lambda: len(registered) > before)
            assert registered.pop() is None

    run(story)


def test_restarted_nameserver_gets_all_topics_before_a_changed_one(
    tmp_path: Path, registered: list[Names]
) -> None:
    async def story() -> None:
        async with registered_broker(tmp_path, register_interval_ms=A_DAY_MS) as (first, peer):
            await create(peer, "T")
            await first.stop()
            port = first.server.port
            second = build_nameserver(NameserverSettings.model_validate({"listen_port": port}), SystemClock())
            await second.start()
            await create(peer, "U")

            routes = second.routes
            await eventually_async(lambda: routes.route("T") is not None and routes.route("U") is not None)
            assert registered[2] is None
            await second.stop()

    run(story)
