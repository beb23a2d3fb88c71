"""Kept responses to pulls at the ends of queues."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from actors.broker.core.reading import queue_ends
from actors.broker.core.reading.queue_ends import EndResponses
from tests.actors.broker.brokers import Peer, settings_of, with_broker


def test_response_made_first_is_dropped_over_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_ends, "RESPONSES", replace(queue_ends.RESPONSES, limit=2))

    async def story(peer: Peer) -> None:
        await peer.send("T")
        ends = EndResponses(peer.store)
        first, second, third = (ends.response("T", 0, offset) for offset in (1, 2, 3))
        assert [each.read() for each in ends.bounds()] == [2]
        assert ends.response("T", 0, 3) is third
        assert ends.response("T", 0, 2) is second
        assert ends.response("T", 0, 1) is not first

    with_broker(story, settings_of(tmp_path))
