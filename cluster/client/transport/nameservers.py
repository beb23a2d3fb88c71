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

    async def request(self, command: Command) -> RemotingCommand:
        """Try the nameservers, the last successful one first, and return the first response of any code.

        `command` builds a new request for each attempt. Raises NameserverUnreachable if none responds.
        """
        addresses = sorted(self._addresses(), key=lambda address: address != self._last)
        failures = []
        for address in addresses:
            response = await self._try(address, command)
            if not isinstance(response, RemotingError):
                self._last = address
                return response
            failures.append(response)
        raise _unreachable(failures)

    async def request_others(self, command: Command) -> list[RemotingCommand]:
        """Send a request to all nameservers except the one used last. Return the responses."""
        others = [address for address in self._addresses() if address != self._last]
        responses = await asyncio.gather(*(self._try(address, command) for address in others))
        return [response for response in responses if not isinstance(response, RemotingError)]

    async def request_all(self, command: Command) -> list[RemotingCommand]:
        """Send a request to all nameservers and return the responses.

        Raises NameserverUnreachable if no nameserver responds.
        """
        responses = await asyncio.gather(*(self._try(address, command) for address in self._addresses()))
        given = [response for response in responses if not isinstance(response, RemotingError)]
        if not given:
            raise _unreachable([response for response in responses if isinstance(response, RemotingError)])
        return given

    async def _try(self, address: str, command: Command) -> RemotingCommand | RemotingError:
        try:
            return await self._remoting.invoke(address, command(), self._timeout_ms)
        except RemotingError as error:
            return error


def _unreachable(failures: Sequence[RemotingError]) -> NameserverUnreachable:
    reasons = "; ".join(map(str, failures))
    return NameserverUnreachable(
        f"no nameserver responded ({reasons}): is the cluster running, and is the address correct?"
    )
