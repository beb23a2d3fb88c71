"""Helpers: send timer messages, and wait for their delivery on a clock at rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from actors.broker.broker_settings import BrokerSettings
from actors.wire.command import RemotingCommand
from store.message.message import MessageExt
from tests.actors.broker.brokers import Peer, settings_of
from tests.actors.broker.features.transactions.transactions import every, settled
from tests.eventually import eventually_async

TIMER = "rmq_sys_wheel_timer"
START_MS = 1_700_000_000_000
"""The time of a new clock of the tests; a multiple of 1000."""


def timer_settings(root: Path, store: dict[str, Any] | None = None, **settings: Any) -> BrokerSettings:
    settings = {"timer_log_file_bytes": 1 << 16, "timer_flush_interval_ms": 1, **settings}
    return settings_of(root, store, **settings)


async def send_at(peer: Peer, deliver_ms: int, body: bytes = b"timer", **more: Any) -> RemotingCommand:
    """Send a message that is to be delivered at a time."""
    properties = f"TIMER_DELIVER_MS\x01{deliver_ms}\x02" + more.pop("properties", "")
    sent = await peer.send(more.pop("topic", "T"), body, properties=properties, **more)
    assert sent.code == 0, sent.remark
    return sent


def pending(peer: Peer) -> int:
    number = peer.broker.describe()["pending_timers"]
    assert isinstance(number, int)
    return number


async def rounds(peer: Peer) -> None:
    """Wait until the timer has done what it can do at the present time of the clock."""
    before = peer.broker.describe()["timer_rounds"]
    assert isinstance(before, int)
    # The first of two rounds may have begun before the clock was set.
    await eventually_async(lambda: peer.broker.describe()["timer_rounds"] >= before + 2)  # type: ignore[operator]
    await settled(peer)


async def bodies(peer: Peer, topic: str = "T") -> list[bytes]:
    return [message.body for message in await every(peer, topic)]


async def delivered(peer: Peer, topic: str = "T") -> list[MessageExt]:
    return await every(peer, topic)
