"""Nameservers: sends requests to the nameservers of a cluster, with failover.

Nameservers do not exchange data and may disagree: a restarted nameserver knows only the brokers that have
registered since. A route is therefore missing only if no nameserver has it (`request_others`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from actors.remoting.client import RemotingClient
from actors.remoting.command import RemotingCommand
from actors.remoting.remoting_errors import RemotingError
from cluster.client.errors import NameserverUnreachable

Command = Callable[[], RemotingCommand]


class Nameservers:
    """The nameservers of one cluster. `addresses` is called for each request, as the list may change."""

    def __init__(
        self, remoting: RemotingClient, addresses: Callable[[], Sequence[str]], timeout_ms: int
    ) -> None:
        self._remoting = remoting
        self._addresses = addresses
        self._timeout_ms = timeout_ms
        self._last = ""

    async def ask(self, command: Command) -> RemotingCommand:
        """Try the nameservers, the last successful one first, and return the first response of any code.

        `command` builds a new request for each attempt. Raises NameserverUnreachable if none responds.
        """
        addresses = sorted(self._addresses(), key=lambda address: address != self._last)
        failures = []
        for address in addresses:
            answer = await self._ask(address, command)
            if not isinstance(answer, RemotingError):
                self._last = address
                return answer
            failures.append(answer)
        raise _none_answered(failures)

    async def request_others(self, command: Command) -> list[RemotingCommand]:
        """Send a request to all nameservers except that of the last `ask`. Return the responses."""
        others = [address for address in self._addresses() if address != self._last]
        answers = await asyncio.gather(*(self._ask(address, command) for address in others))
        return [answer for answer in answers if not isinstance(answer, RemotingError)]

    async def request_all(self, command: Command) -> list[RemotingCommand]:
        """Send a request to all nameservers and return the responses.

        Raises NameserverUnreachable if no nameserver responds.
        """
        answers = await asyncio.gather(*(self._ask(address, command) for address in self._addresses()))
        given = [answer for answer in answers if not isinstance(answer, RemotingError)]
        if not given:
            raise _none_answered([answer for answer in answers if isinstance(answer, RemotingError)])
        return given

    async def _ask(self, address: str, command: Command) -> RemotingCommand | RemotingError:
        try:
            return await self._remoting.invoke(address, command(), self._timeout_ms)
        except RemotingError as error:
            return error


def _none_answered(failures: Sequence[RemotingError]) -> NameserverUnreachable:
    reasons = "; ".join(map(str, failures))
    return NameserverUnreachable(
        f"no nameserver responded ({reasons}): is the cluster running, and is the address correct?"
    )
