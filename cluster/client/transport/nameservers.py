"""Nameservers: send each request to the nameserver that responded last, then to the others.

Nameservers do not talk to each other and may disagree: one that was restarted knows only brokers that have
registered since. A route counts as missing only if no nameserver has it (`request_others`).
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
    """The nameservers of one cluster. `addresses` is called each time, so that the list may change."""

    def __init__(
        self, remoting: RemotingClient, addresses: Callable[[], Sequence[str]], timeout_ms: int
    ) -> None:
        self._remoting = remoting
        self._addresses = addresses
        self._timeout_ms = timeout_ms
        self._last = ""

    async def ask(self, command: Command) -> RemotingCommand:
        """Return the first response, whatever its code; `command` makes a new request for each attempt.

        Raises NameserverUnreachable if none responds.
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
        """Return the responses of all but the one that responded to the last `ask`; empty if none does."""
        others = [address for address in self._addresses() if address != self._last]
        answers = await asyncio.gather(*(self._ask(address, command) for address in others))
        return [answer for answer in answers if not isinstance(answer, RemotingError)]

    async def request_all(self, command: Command) -> list[RemotingCommand]:
        """Return the responses of all that respond, at least one. Raises NameserverUnreachable."""
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
        f"no nameserver answered ({reasons}): is the cluster up, and the address right?"
    )
