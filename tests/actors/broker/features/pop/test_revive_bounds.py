"""Check points and acks of an earlier process: how many are kept, and what happens above the limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from actors.broker.features.pop import revive_log
from tests.actors.broker.brokers import Peer, with_broker
from tests.actors.broker.features.pop.pops import Popped, ack, bodies, pop, send
from tests.actors.broker.features.pop.test_pop_restarts import nothing_to_pop, pop_settings, popped_again
from tests.conftest import ClockAtRest
from tests.eventually import eventually_async

CLAIMS = 20
"""More than twice as many as the revive topic has queues."""


@pytest.fixture(autouse=True)
def _low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revive_log, "PENDING", replace(revive_log.PENDING, limit=1))
    monkeypatch.setattr(revive_log, "ACKS", replace(revive_log.ACKS, limit=2))
    monkeypatch.setattr(revive_log, "READ_MESSAGES", 1)


def used(peer: Peer, bound: str) -> object:
    (figure,) = (each for each in peer.metrics.figures if each.name == "bound_used")
    return dict(figure.samples()).get((bound,))


def with_stored_claims(tmp_path: Path, clock: ClockAtRest) -> list[Popped]:
    """Return the messages that a broker has delivered before it was restarted, each in a claim of its own."""
    claimed: list[Popped] = []

    async def before(peer: Peer) -> None:
        await send(peer, *map(str, range(CLAIMS)))
        for _ in range(CLAIMS):
            claimed.extend(await pop(peer, max_msg_nums=1))

    with_broker(before, pop_settings(tmp_path), clock)
    clock.advance(1)
    return claimed


def test_stored_claims_over_the_limit_are_read_when_others_are_done(tmp_path: Path) -> None:
    clock = ClockAtRest()
    claimed = with_stored_claims(tmp_path, clock)

    async def after(peer: Peer) -> None:
        clock.advance(60_000)
        await eventually_async(lambda: used(peer, "pending_check_points") == 1)
        assert sorted(bodies(await popped_again(peer, clock, CLAIMS))) == sorted(bodies(claimed))
        await nothing_to_pop(peer, clock)

    with_broker(after, pop_settings(tmp_path), clock)


def test_oldest_acks_over_the_limit_arrive_through_the_revive_topic(tmp_path: Path) -> None:
    clock = ClockAtRest()
    claimed = with_stored_claims(tmp_path, clock)

    async def after(peer: Peer) -> None:
        for each in claimed:
            assert (await ack(peer, each)).code == 0
        assert used(peer, "early_acks") == 2
        clock.advance(60_000)
        await nothing_to_pop(peer, clock)

    with_broker(after, pop_settings(tmp_path), clock)
