"""HookedRemotingClient: calls the call hooks around every request of a client."""

from __future__ import annotations

from collections.abc import Sequence

from actors.remoting.calls import Callback
from actors.remoting.client import RemotingClient
from actors.remoting.command import RemotingCommand
from actors.remoting.limits import RemotingLimits
from actors.remoting.remoting_errors import RemotingError
from actors.remoting.table import RequestTable
from cluster.client.hooks import CallHook, call_hooks
from store.clock import Clock


class HookedRemotingClient(RemotingClient):
    """A RemotingClient that calls hooks before and after each request."""

    def __init__(
        self, clock: Clock, table: RequestTable | None, limits: RemotingLimits, hooks: Sequence[CallHook]
    ) -> None:
        super().__init__(clock, table, limits)
        self._hooks = hooks

    def invoke_callback(
        self, address: str, command: RemotingCommand, timeout_ms: int, callback: Callback
    ) -> None:
        """Do what the base does, with the hooks before and after."""

        def answered(answer: RemotingCommand | RemotingError) -> None:
            after_call(self._hooks, address, command, answer)
            callback(answer)

        before_call(self._hooks, address, command)
        super().invoke_callback(address, command, timeout_ms, answered)

    def oneway(self, address: str, command: RemotingCommand) -> None:
        """Do what the base does, with the hooks before and after."""
        before_call(self._hooks, address, command)
        super().oneway(address, command)
        after_call(self._hooks, address, command, None)


def before_call(hooks: Sequence[CallHook], address: str, command: RemotingCommand) -> None:
    """Call the hooks before a request; raises what one of them raises."""
    for hook in hooks:
        hook.before_call(address, command)


def after_call(
    hooks: Sequence[CallHook],
    address: str,
    command: RemotingCommand,
    answer: RemotingCommand | RemotingError | None,
) -> None:
    """Call the hooks with the outcome of a request."""
    call_hooks([hook.after_call for hook in hooks], address, command, answer)
