"""DRAIN_BROKER: starts, shows and cancels a drain that needs no further request."""

from __future__ import annotations

from pathlib import Path

import orjson

from actors.broker.core.drain import QUIET_MS
from actors.wire.admin_headers import DrainBrokerHeader
from actors.wire.codes import RayMQRequestCode, ResponseCode
from tests.actors.broker.brokers import Peer, settings_of, with_broker
from tests.conftest import ClockAtRest

CODE = RayMQRequestCode.DRAIN_BROKER


def test_drain_is_started_shown_and_cancelled(tmp_path: Path, clock: ClockAtRest) -> None:
    async def story(peer: Peer) -> None:
        async def state(step: str) -> str:
            response = await peer.ask(CODE, DrainBrokerHeader(step).to_ext())
            assert response.code == 0, response.remark
            progress = orjson.loads(response.body)
            assert progress["groups"] == [
                {"group": "reads", "members": 1, "unread": 1, "topics": {"T": 1}},
            ]
            return str(progress["state"])

        await peer.send("T")
        await peer.heartbeat("c1", "reads", T="*")
        assert await state("look") == "active"
        assert await state("start") == "draining"
        peer.broker.drain.sweep()  # sees the message
        clock.advance(QUIET_MS)
        peer.broker.drain.sweep()
        assert await state("look") == "closed"
        assert (await peer.send("T")).code == ResponseCode.NO_PERMISSION
        assert await state("cancel") == "active"
        assert (await peer.send("T")).code == 0

    with_broker(story, settings_of(tmp_path), clock)


def test_unknown_step_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        refused = await peer.ask(CODE, DrainBrokerHeader("stop").to_ext())
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert refused.remark == "'stop' is not a step of a drain: use look, start, cancel"
        assert peer.broker.drain.state == "active"

    with_broker(story, settings_of(tmp_path))
