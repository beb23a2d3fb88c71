"""A turn ends with the steps of its list, in order; one that has only read requests skips them."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.broker.core.capability import Capability, Feature
from actors.broker.core.loop.flusher import Flusher
from actors.broker.core.loop.turn import Turn, TurnStep
from actors.transport.hub import Hub
from actors.transport.limits import RemotingLimits
from tests.actors.broker.brokers import Peer, settings_of, with_broker
from tests.conftest import ClockAtRest

STEPS = ("flush", "confirm", "dispatch")


def turn_of(ran: list[str], *, is_due: bool) -> Turn:
    steps = [TurnStep(name, lambda name=name: ran.append(name)) for name in STEPS]  # type: ignore[misc]
    return Turn(Hub(ClockAtRest(), RemotingLimits()), lambda: is_due, steps)


def test_step_of_a_feature_runs_behind_the_step_that_it_follows() -> None:
    ran: list[str] = []
    turn = turn_of(ran, is_due=True)
    turn.add(TurnStep("replicate", lambda: ran.append("replicate"), follows="flush"))
    turn.end()
    assert ran == turn.names == ["flush", "replicate", "confirm", "dispatch"]


def test_step_that_follows_an_unknown_one_is_refused() -> None:
    turn = turn_of([], is_due=True)
    with pytest.raises(ValueError, match=r"'x' follows 'fsync', which is not one of \['flush', 'confirm', "):
        turn.add(TurnStep("x", list, follows="fsync"))


def test_turn_that_is_not_due_runs_no_step_without_one_of_a_feature() -> None:
    ran: list[str] = []
    turn = turn_of(ran, is_due=False)
    turn.end()
    assert ran == []
    turn.add(TurnStep("replicate", list, follows="flush"))
    turn.end()
    assert ran == [*STEPS]


def test_stopped_turn_runs_no_step() -> None:
    ran: list[str] = []
    turn = turn_of(ran, is_due=True)
    turn.stop()
    turn.end()
    assert ran == []


@pytest.mark.parametrize("has_step", [False, True])
def test_turn_of_pulls_runs_the_steps_only_for_features(
    has_step: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushes = 0
    flush_if_idle = Flusher.flush_if_idle

    def flush(flusher: Flusher) -> None:
        nonlocal flushes
        flushes += 1
        flush_if_idle(flusher)

    monkeypatch.setattr(Flusher, "flush_if_idle", flush)
    step = TurnStep("mine", list, follows="admit")
    feature = Feature(lambda parts: Capability(turn_steps=(step,) if has_step else ()))

    async def story(peer: Peer) -> None:
        await peer.send("T")
        await peer.pull("T")  # dispatches the message
        before, turns = flushes, peer.loop.server.hub.turns
        for _ in range(100):
            await peer.pull("T")
        assert peer.loop.server.hub.turns - turns >= 100
        assert (flushes - before >= 100) is has_step
        before = flushes
        peer.loop.server.request_tick()
        await peer.pull("T")
        assert flushes > before

    with_broker(story, settings_of(tmp_path), features=[feature])
