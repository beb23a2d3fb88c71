"""The periodic tasks of a client: an exception in one is logged, and the task runs again."""

from __future__ import annotations

import asyncio

import structlog

from actors.remoting.bodies.groups import HeartbeatData
from cluster.client.config import ClientConfig
from cluster.client.transport.instance import ClientInstance
from tests.eventually import eventually_async


def test_heartbeats_go_on_after_one_that_failed() -> None:
    beats = 0

    def heartbeat() -> HeartbeatData:
        nonlocal beats
        beats += 1
        if beats == 1:
            raise ZeroDivisionError
        return HeartbeatData("client")

    async def story() -> None:
        instance = ClientInstance(ClientConfig("127.0.0.1:1", heartbeat_ms=1))
        instance.start_heartbeats(heartbeat, list)
        await eventually_async(lambda: beats > 2)
        await instance.close()
        assert instance.supervisor.failures == 1

    with structlog.testing.capture_logs() as logs:
        asyncio.run(story())
    (line,) = [line for line in logs if line["event"] == "background_task_failed"]
    assert (line["task"], line["exc_info"]) == ("heartbeat", True)
