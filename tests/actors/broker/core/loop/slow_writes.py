"""SlowWrites: a fake disk that blocks the thread that writes consume-queue units."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Self

import pytest

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.loop import end_of_turn
from actors.wire.codes import ResponseCode
from store.kernels import unit_files
from tests.actors.broker.brokers import Peer, settings_of
from tests.eventually import LIMIT_S, eventually_async

QUEUES = 20
"""Number of queues whose units are written by a thread, if their files are new or not open."""


class SlowWrites:
    """Blocks the writes of consume-queue units until `resume`; the broker dispatches only for readers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._blocked, self._gate = threading.Event(), threading.Event()
        write_units = unit_files.write_units

        def wait_then_write(*arguments: object) -> int:
            # After `resume`, the few units that an earlier step has left may be written on the loop.
            assert self._gate.is_set() or threading.current_thread() is not threading.main_thread()
            self._blocked.set()
            assert self._gate.wait(LIMIT_S)
            return int(write_units(*arguments))

        monkeypatch.setattr(unit_files, "write_units", wait_then_write)
        dispatch_for_readers_only(monkeypatch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.resume()  # also after a failed test, so that the store can be closed

    def resume(self) -> None:
        self._gate.set()

    async def until_blocked(self) -> None:
        await eventually_async(self._blocked.is_set)


def dispatch_for_readers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make turns dispatch only messages that a reader waits for, except for the first turn with messages."""
    monkeypatch.setattr(end_of_turn, "DISPATCH_LATER_NS", 10**15)


async def send_to_all(peer: Peer, body: bytes, topic: str = "T", properties: str = "") -> None:
    header = {"default_topic_queue_nums": QUEUES}
    sends = (peer.send(topic, body, queue_id, properties, **header) for queue_id in range(QUEUES))
    assert {response.code for response in await asyncio.gather(*sends)} == {ResponseCode.SUCCESS}


def settings(root: Path, **others: object) -> BrokerSettings:
    """Return settings without the timer: its rounds also read, and then few units are written on the loop."""
    given = {"default_topic_queues": QUEUES, "timer_wheel_enable": False, **others}
    return settings_of(root, {"max_open_files": 4}, **given)
