"""HookedRemotingClient: a RemotingClient with CallHooks (see `cluster.client.hooks`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from actors.remoting.calls import Callback
from actors.remoting.client import RemotingClient
from actors.remoting.command import RemotingCommand
from actors.remoting.limits import RemotingLimits
from actors.remoting.remoting_errors import RemotingError
from actors.remoting.table import RequestTable
from actors.remoting.tls.contexts import ClientTls
from cluster.client.config import ClientConfig
from cluster.client.hooks import CallHook, call_hooks
from store.clock import Clock


class HookedRemotingClient(RemotingClient):
    """RemotingClient that calls the hooks before and after each request."""

    def __init__(
        self,
        clock: Clock,
        table: RequestTable | None,
        limits: RemotingLimits,
        hooks: Sequence[CallHook],
        tls: ClientTls | None = None,
    ) -> None:
        super().__init__(clock, table, limits, tls=tls)
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


class SigningHook:
    """CallHook that signs each request as one user."""

    def __init__(self, sign: Callable[[RemotingCommand], None]) -> None:
        self._sign = sign

    def before_call(self, address: str, command: RemotingCommand) -> None:
        """Sign the request."""
        self._sign(command)

    def after_call(
        self, address: str, command: RemotingCommand, response: RemotingCommand | RemotingError | None
    ) -> None:
        """Do nothing."""


def hooks_of(config: ClientConfig) -> Sequence[CallHook]:
    """Return the hooks of a client. The hook that signs is the last: others may add fields.

    Raises ConfigInvalid if the credentials of the client are invalid.
    """
    sign = config.request_signer()
    return config.call_hooks if sign is None else (*config.call_hooks, SigningHook(sign))


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
