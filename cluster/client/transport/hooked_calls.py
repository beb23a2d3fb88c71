"""HookedRemotingClient: a RemotingClient with CallHooks (see `cluster.client.hooks`)."""

from __future__ import annotations

from collections.abc import Sequence

from actors.transport.calls import Callback
from actors.transport.client import RemotingClient
from actors.transport.clients.proofs import RequestSigner
from actors.transport.limits import RemotingLimits
from actors.transport.table import RequestTable
from actors.transport.tls.contexts import ClientTls
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import RemotingError
from cluster.client.hooks import CallHook, call_hooks
from store.common.clock import Clock


class HookedRemotingClient(RemotingClient):
    """RemotingClient that calls the hooks before and after each request."""

    def __init__(
        self,
        clock: Clock,
        table: RequestTable | None,
        limits: RemotingLimits,
        hooks: Sequence[CallHook],
        tls: ClientTls | None = None,
        signer: RequestSigner | None = None,
    ) -> None:
        super().__init__(clock, table, limits, tls=tls, signer=signer)
        self._hooks = hooks

    def invoke_callback(
        self, address: str, command: RemotingCommand, timeout_ms: int, callback: Callback
    ) -> None:
        """Call the hooks before the request and after its outcome, then pass the outcome to `callback`."""

        def on_response(response: RemotingCommand | RemotingError) -> None:
            after_call(self._hooks, address, command, response)
            callback(response)

        before_call(self._hooks, address, command)
        super().invoke_callback(address, command, timeout_ms, on_response)

    def oneway(self, address: str, command: RemotingCommand) -> None:
        """Call the hooks before and after `command` is sent. There is no response."""
        before_call(self._hooks, address, command)
        super().oneway(address, command)
        after_call(self._hooks, address, command, None)


def before_call(hooks: Sequence[CallHook], address: str, command: RemotingCommand) -> None:
    """Call `before_call` of each hook. An exception of a hook is raised to the caller."""
    for hook in hooks:
        hook.before_call(address, command)


def after_call(
    hooks: Sequence[CallHook],
    address: str,
    command: RemotingCommand,
    response: RemotingCommand | RemotingError | None,
) -> None:
    """Call `after_call` of each hook. An exception of a hook is logged."""
    call_hooks([hook.after_call for hook in hooks], address, command, response)
