"""Replica of a Raft group in a storm: `python -m tests.faults.raft.replica SETTINGS_JSON JUMP_MS`.

It prints READY, and serves until SIGTERM. Its wall clock jumps by JUMP_MS forward at each SIGUSR1, and back
at each SIGUSR2.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from typing import Any

import uvloop

from actors.broker.broker_settings import BrokerSettings
from actors.broker.service import BrokerService
from store.common.clock import SystemClock
from store.common.logs import log_to_handler
from tests.faults.node import serve


class JumpingClock(SystemClock):
    """System clock whose wall time jumps at signals."""

    __slots__ = ("_ahead_ms",)

    def __init__(self, jump_ms: int) -> None:
        self._ahead_ms = 0
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self._jump, jump_ms)
        loop.add_signal_handler(signal.SIGUSR2, self._jump, -jump_ms)

    def wall_ms(self) -> int:
        return super().wall_ms() + self._ahead_ms

    def _jump(self, ms: int) -> None:
        self._ahead_ms += ms


def replica(give_up: Callable[[str], None]) -> list[Any]:
    """Return the broker, which is to call `give_up` when it fails for good."""
    settings = BrokerSettings.model_validate_json(sys.argv[1])
    return [BrokerService(settings, JumpingClock(int(sys.argv[2])), give_up)]


if __name__ == "__main__":
    log_to_handler(logging.StreamHandler(sys.stderr))
    uvloop.run(serve(replica))
