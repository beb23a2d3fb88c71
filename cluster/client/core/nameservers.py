"""Asking the nameservers: whichever answers, beginning with the one that answered last."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from actors.remoting.client import RemotingClient
from actors.remoting.command import RemotingCommand
from actors.remoting.errors import RemotingError
from cluster.client.errors import NameserverUnreachable


class Nameservers:
    """The nameservers of one cluster. `addresses` is asked each time, so that the list may change."""

    def __init__(
        self, remoting: RemotingClient, addresses: Callable[[], Sequence[str]], timeout_ms: int
    ) -> None:
        self._remoting = remoting
        self._addresses = addresses
        self._timeout_ms = timeout_ms
        self._last = ""

    async def ask(self, command: Callable[[], RemotingCommand]) -> RemotingCommand:
        """The first answer, whatever its code; `command` makes a fresh request for each try.

        Raises NameserverUnreachable when none answers.
        """
        addresses = sorted(self._addresses(), key=lambda address: address != self._last)
        failures = []
        for address in addresses:
            try:
                answer = await self._remoting.invoke(address, command(), self._timeout_ms)
            except RemotingError as error:
                failures.append(str(error))
            else:
                self._last = address
                return answer
        raise NameserverUnreachable(
            f"no nameserver answered ({'; '.join(failures)}): is the cluster up, and the address right?"
        )
