"""RESTART_BROKER: restarts a broker that Ray starts again, and no other one."""

from __future__ import annotations

import asyncio
from pathlib import Path

from actors.broker.service import BrokerService
from actors.wire.admin_headers import RestartBrokerHeader
from actors.wire.codes import RayMQRequestCode, ResponseCode
from store.common.clock import SystemClock
from tests.actors.broker.brokers import Peer, run, settings_of, with_broker
from tests.eventually import eventually_async

CODE = RayMQRequestCode.RESTART_BROKER


def test_broker_responds_before_it_restarts(tmp_path: Path) -> None:
    async def story() -> None:
        reasons: list[str] = []
        stopped: list[asyncio.Task[None]] = []

        def restart(reason: str) -> None:
            reasons.append(reason)
            stopped.append(asyncio.get_running_loop().create_task(broker.stop()))

        broker = BrokerService(settings_of(tmp_path), SystemClock(), restart=restart)
        await broker.start()
        peer = Peer(broker)
        assert (await peer.ask(CODE, RestartBrokerHeader(dry_run=True).to_ext())).code == 0
        assert (await peer.send("T", b"before")).code == 0
        assert (await peer.ask(CODE)).code == 0
        await eventually_async(lambda: bool(reasons))
        assert [reason.startswith("restart requested by 127.0.0.1:") for reason in reasons] == [True]
        await stopped[0]
        await peer.client.close()
        assert not (broker.settings.store_root / "abort").exists()  # the store was closed cleanly

    run(story)


def test_broker_that_nothing_would_start_again_refuses_a_restart(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        for dry_run in (True, False):
            refused = await peer.ask(CODE, RestartBrokerHeader(dry_run).to_ext())
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert "is not an actor of Ray, which would start it again" in (refused.remark or "")
        assert (await peer.send("T", b"after")).code == 0

    with_broker(story, settings_of(tmp_path))
