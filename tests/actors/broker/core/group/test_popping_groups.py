"""The groups that pop: the oldest is forgotten, not all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from actors.broker.core.group import popping_groups
from actors.broker.core.group.popping_groups import PoppingGroups
from tests.actors.broker.brokers import settings_of
from tests.conftest import ClockAtRest


def test_oldest_popping_group_is_forgotten_over_the_limit(
    tmp_path: Path, clock: ClockAtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(popping_groups, "POPPED", replace(popping_groups.POPPED, limit=2))
    popping = PoppingGroups(settings_of(tmp_path), clock)
    for group in ("g0", "g1", "g0", "g2"):
        popping.popped("T", group)
    with structlog.testing.capture_logs():
        for group in ("g0", "g1", "g2"):
            popping.check_pull("T", group)
    assert popping.mixed == 2  # g1 popped before the others
    assert [use.read() for use in popping.bounds()] == [2]
