"""Fixtures of all broker tests."""

from __future__ import annotations

import pytest

from actors.broker import build
from actors.broker.core import registration
from actors.broker.core.group import rebalancer_link
from tests.actors.broker.brokers import TIMEOUT_MS


@pytest.fixture(autouse=True)
def long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time-outs of a broker that are not settings, so that none expires on a slow machine."""
    for module, name in (
        (registration, "REGISTER_TIMEOUT_MS"),
        (registration, "SETTLE_TIMEOUT_MS"),
        (build, "ROUTE_TIMEOUT_MS"),
        (rebalancer_link, "MEMBERS_TIMEOUT_MS"),
    ):
        monkeypatch.setattr(module, name, TIMEOUT_MS)
