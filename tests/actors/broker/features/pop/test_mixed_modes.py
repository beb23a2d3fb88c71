"""Groups that pop and pull one topic are reported, and refused with `refuse_mixed_request_modes`."""

from __future__ import annotations

from pathlib import Path

from structlog.testing import capture_logs

from actors.broker.core.group.popping_groups import POPPING_MS
from actors.wire.codes import ResponseCode
from tests.actors.broker.brokers import Peer, settings_of, with_broker
from tests.actors.broker.features.pop.pops import pop, send
from tests.conftest import ClockAtRest


def test_pull_of_a_popping_group_is_reported_and_refused(tmp_path: Path) -> None:
    clock = ClockAtRest()

    async def story(peer: Peer) -> None:
        await send(peer, "0", "1")
        await send(peer, "other", topic="U")
        assert len(await pop(peer, group="CG", max_msg_nums=1)) == 1
        with capture_logs() as logs:
            assert (await peer.pull("T", 0)).code == 0
            assert (await peer.pull("T", 0)).code == 0
        (event,) = [each for each in logs if each["event"] == "mixed_request_modes"]
        assert (event["group"], event["topic"], event["refused"]) == ("CG", "T", False)
        assert peer.broker.describe()["mixed_request_modes"] == 1

        peer.broker.live.update({"refuse_mixed_request_modes": True})
        refused = await peer.pull("T", 0)
        assert refused.code == ResponseCode.NO_PERMISSION
        assert "pops topic 'T'" in (refused.remark or "")
        assert (await peer.pull_records("T", 0)).code == ResponseCode.NO_PERMISSION
        assert (await peer.pull("U", 0)).code == 0
        assert len(await pop(peer, group="CG")) == 1
        clock.advance(POPPING_MS + 1)
        assert (await peer.pull("T", 0)).code == 0

    with_broker(story, settings_of(tmp_path), clock)
