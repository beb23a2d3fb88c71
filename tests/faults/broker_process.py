"""Runs one broker until its process is killed: `python -m tests.faults.broker_process SETTINGS_JSON`."""

from __future__ import annotations

import asyncio
import sys

import uvloop

from actors.broker.broker_settings import BrokerSettings
from actors.broker.service import BrokerService
from store.common.clock import SystemClock


async def main() -> None:
    await BrokerService(BrokerSettings.model_validate_json(sys.argv[1]), SystemClock()).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
