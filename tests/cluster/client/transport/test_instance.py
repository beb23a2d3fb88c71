"""An exception in a periodic task of a client is logged, and the task runs again."""

from __future__ import annotations

import asyncio

import structlog

from actors.wire.bodies.groups import HeartbeatData
from cluster.client.config import ClientConfig
from cluster.client.transport.instance import ClientInstance
from tests.eventually import eventually_async


def test_heartbeats_continue_after_an_exception() -> None:
    beats = 0

    def heartbeat() -> HeartbeatData:
        nonlocal beats
        beats += 1
        if beats == 1:
            raise ZeroDivisionError
        return HeartbeatData("client")

    async def scenario() -> None:
        instance = ClientInstance(ClientConfig("127.0.0.1:1", heartbeat_ms=1))
        instance.start_heartbeats(heartbeat, list)
        await eventually_async(lambda: beats > 2)
        await instance.close()
        assert instance.supervisor.failures == 1

    with structlog.testing.capture_logs() as logs:
        asyncio.run(scenario())
    (line,) = [line for line in logs if line["event"] == "background_task_failed"]
    assert (line["task"], line["exc_info"]) == ("heartbeat", True)
