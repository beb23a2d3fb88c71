"""Fixtures of all tests of a broker."""

from __future__ import annotations

import pytest

from actors.broker import registration
from actors.broker.group import assignments, rebalancer_link
from tests.actors.broker.brokers import TIMEOUT_MS


@pytest.fixture(autouse=True)
def long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time-out of a broker expire that is no setting, however slow the machine."""
    for module, name in (
        (registration, "REGISTER_TIMEOUT_MS"),
        (registration, "SETTLE_TIMEOUT_MS"),
        (assignments, "ROUTE_TIMEOUT_MS"),
        (rebalancer_link, "MEMBERS_TIMEOUT_MS"),
    ):
        monkeypatch.setattr(module, name, TIMEOUT_MS)
