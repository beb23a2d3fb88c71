"""Processes: a Raft group whose replicas are processes of their own, to be killed and paused."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import orjson

from actors.transport.client import RemotingClient
from actors.transport.limits import RemotingLimits
from actors.wire.codes import RayMQRequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import RemotingError
from store.common.clock import SystemClock
from tests.actors.broker.replication.raft.groups import Group
from tests.eventually import TIME_SCALE, eventually_async

REPO = Path(__file__).parents[3]
TIMEOUT_MS = int(1_000 * TIME_SCALE)


class Processes(Group):
    """The replicas of a group as processes."""

    def __init__(self, root: Path, **store: Any) -> None:
        super().__init__(root, **store)
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._client = RemotingClient(SystemClock(), limits=RemotingLimits(connect_timeout_ms=TIMEOUT_MS))

    async def __aenter__(self) -> Self:
        try:
            return await super().__aenter__()
        except BaseException:  # no __aexit__ follows
            await self.close()
            raise

    async def start(self, replica: int) -> None:
        settings = self.settings[replica].model_dump_json()
        self._running[replica] = await asyncio.create_subprocess_exec(
            *self.command(replica), settings, cwd=REPO
        )
        await eventually_async(lambda: self.described(replica))

    def command(self, replica: int) -> list[str]:
        """Return the words of the command that runs a replica, without its settings."""
        return [sys.executable, "-m", "tests.faults.broker_process"]

    def address(self, replica: int) -> str:
        """Return the address of a replica."""
        return f"127.0.0.1:{self.settings[replica].listen_port}"

    async def stop(self, replica: int) -> None:
        await self.kill(replica)

    async def kill(self, replica: int) -> None:
        process = self._running.pop(replica)
        with suppress(ProcessLookupError):  # the test has killed it
            process.kill()
        await process.wait()

    def pid(self, replica: int) -> int:
        return self._running[replica].pid

    async def close(self) -> None:
        for replica in list(self._running):
            await self.kill(replica)
        await self._client.close()

    async def described(self, replica: int) -> dict[str, Any] | None:
        """Return the figures of a replica; None if it does not respond."""
        return await described(self._client, self.address(replica))

    async def leader(self, among: list[int]) -> int:
        """Wait until one of the replicas leads, and is registered."""

        async def leading() -> list[int]:
            found = [(each, await self.described(each)) for each in among]
            return [each for each, figures in found if figures and figures["role"] == "master"]

        return (await eventually_async(leading))[0]

    async def restart(self, replica: int) -> None:
        """Kill a replica, start it, and wait until it has the log of the others."""
        await self.kill(replica)
        await self.start(replica)
        await self.catch_up(replica)

    async def catch_up(self, replica: int) -> None:
        """Wait until a replica lacks at most a MiB of what the others have confirmed."""

        async def is_near() -> bool:
            found = {each: await self.described(each) for each in self._running}
            mine = found.get(replica)
            return mine is not None and all(
                each is not None and mine["written"] >= each["confirmed"] - (1 << 20)
                for each in found.values()
            )

        await eventually_async(is_near)

    async def await_level(self) -> int:
        """Wait until all replicas have the same log, and all of it is confirmed; return its end."""

        async def end() -> int:
            found = [await self.described(each) or {} for each in self._running]
            ends = {each.get(name, 0) for each in found for name in ("written", "confirmed")}
            return ends.pop() if len(ends) == 1 else 0

        return await eventually_async(end, "equal logs")


async def described(client: RemotingClient, address: str) -> dict[str, Any] | None:
    """Return the figures of a broker; None if it does not respond."""
    command = RemotingCommand(RayMQRequestCode.DESCRIBE_BROKER)
    try:
        response = await client.invoke(address, command, TIMEOUT_MS)
    except RemotingError:
        return None
    return orjson.loads(response.body) if response.code == ResponseCode.SUCCESS else None
