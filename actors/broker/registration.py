"""Registration: tells every nameserver which topics this broker serves, every 30 s and whenever they change.

Nameservers do not talk to each other, so each gets the whole of it. One that does not answer is tried again
at the next turn; the others are not held up by it. Changes that come together go out together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from actors.remoting.client import RemotingClient
from actors.remoting.codes import RequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.errors import RemotingError

_log = structlog.get_logger(__name__)

REGISTER_TIMEOUT_MS = 6000
UNREGISTER_TIMEOUT_MS = 1000
GATHER_MS = 10


class Registration:
    """Keeps one broker registered with all nameservers while it runs."""

    def __init__(
        self,
        client: RemotingClient,
        nameservers: Sequence[str],
        interval_ms: int,
        identity: Callable[[], dict[str, str]],
        body: Callable[[], bytes],
    ) -> None:
        """`identity` gives the header's fields (names and addresses), `body` the RegisterBrokerBody at this
        moment.
        """
        self._client = client
        self._nameservers = list(nameservers)
        self._interval_ms = interval_ms
        self._identity = identity
        self._body = body
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failing: set[str] = set()

    async def start(self) -> None:
        """Register once with all, then keep at it."""
        await self.register()
        self._task = asyncio.create_task(self._run(), name="registration")

    def changed(self) -> None:
        """Have the change registered soon."""
        self._changed.set()

    async def stop(self) -> None:
        """Stop, and take the broker out of the routes."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        command = RemotingCommand(RequestCode.UNREGISTER_BROKER, self._identity())
        await asyncio.gather(
            *(self._tell(address, command, UNREGISTER_TIMEOUT_MS) for address in self._nameservers)
        )

    async def register(self) -> None:
        """Register with all nameservers at once, now."""
        if not self._nameservers:
            return
        self._changed.clear()
        command = RemotingCommand(RequestCode.REGISTER_BROKER, self._identity(), self._body())
        await asyncio.gather(
            *(self._tell(address, command, REGISTER_TIMEOUT_MS) for address in self._nameservers)
        )

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._interval_ms / 1000):
                    await self._changed.wait()
                    await asyncio.sleep(GATHER_MS / 1000)  # changes that come together go out together
            except TimeoutError:
                pass
            await self.register()

    async def _tell(self, address: str, command: RemotingCommand, timeout_ms: int) -> None:
        own = RemotingCommand(command.code, dict(command.ext), command.body)
        try:
            answer = await self._client.invoke(address, own, timeout_ms)
            problem = None if answer.code == ResponseCode.SUCCESS else f"code {answer.code}: {answer.remark}"
        except RemotingError as error:
            problem = str(error)
        if problem is not None and address not in self._failing:
            self._failing.add(address)
            _log.warning("nameserver_refused_registration", nameserver=address, reason=problem)
        elif problem is None and address in self._failing:
            self._failing.discard(address)
            _log.info("nameserver_registered_again", nameserver=address)
