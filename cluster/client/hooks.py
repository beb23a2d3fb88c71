"""Hooks: user code that runs before and after a send, a call of the listener, or a request.

    SendHook      RocketMQ SendMessageHook      called once for each send, also if it is retried
    ConsumeHook   RocketMQ ConsumeMessageHook   called once for each call of the listener
    CallHook      RocketMQ RPCHook              called for every request to a broker or nameserver

If a hook raises, the error is logged and otherwise ignored. Only an error in `before_call` fails the request,
because the hook may be needed to sign it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import RemotingError
from cluster.client.results import SendResult, TableReceipt
from store.common.logs import get_logger
from store.message.message import Message, MessageExt
from store.message.message_queue import MessageQueue

_log = get_logger(__name__)


@dataclass(slots=True, eq=False)
class SendContext:
    """One send, as its hooks see it.

    Attributes:
        group: The producer group.
        topic: The topic.
        messages: The messages; empty for a table. `before_send` may change them, for example to add a trace
            id to the properties.
        rows: Number of rows of a table.
        is_oneway: True for a one-way send.
        result: The result of a successful send; None before the send and after a one-way send.
        error: The error of a failed send.
        notes: Values that `before_send` passes to `after_send`.
    """

    group: str
    topic: str
    messages: Sequence[Message] = ()
    rows: int = 0
    is_oneway: bool = False
    result: SendResult | TableReceipt | None = None
    error: BaseException | None = None
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class ConsumeContext:
    """One call of the listener, as its hooks see it.

    Attributes:
        group: The consumer group.
        queue: The queue of the messages.
        messages: The messages that the listener gets.
        is_success: None before the call; after it True if the messages are consumed.
        error: The exception of the listener.
        notes: Values that `before_consume` passes to `after_consume`.
    """

    group: str
    queue: MessageQueue
    messages: Sequence[MessageExt]
    is_success: bool | None = None
    error: BaseException | None = None
    notes: dict[str, Any] = field(default_factory=dict)


class SendHook(Protocol):
    """Hook for sends. It runs in the caller's thread or on the client's event loop and must not block."""

    def before_send(self, context: SendContext, /) -> None:
        """Handle a send before its messages are validated and encoded."""

    def after_send(self, context: SendContext, /) -> None:
        """Handle a send that succeeded or failed."""


class ConsumeHook(Protocol):
    """Hook for calls of the listener. It runs in the thread of the listener."""

    def before_consume(self, context: ConsumeContext, /) -> None:
        """Handle messages before the listener is called with them."""

    def after_consume(self, context: ConsumeContext, /) -> None:
        """Handle messages after the listener returned or raised."""


class CallHook(Protocol):
    """Called before and after each request of a client. Several threads may call it; it must not block."""

    def before_call(self, address: str, command: RemotingCommand, /) -> None:
        """Handle `command` before it is sent to `address` (`host:port`). It may add fields to its `ext`.

        An exception fails the request.
        """

    def after_call(
        self, address: str, command: RemotingCommand, response: RemotingCommand | RemotingError | None, /
    ) -> None:
        """Handle the `response` to `command`: a response of any code, an error, or None if it was one-way."""


def call_hooks(hooks: Sequence[Callable[..., None]], *arguments: object) -> None:
    """Call each hook with `arguments`. An exception is logged, and the remaining hooks are still called.

    SystemExit is caught too: in a listener's thread or on the event loop `sys.exit()` would not end the
    program, but the thread or the loop of all clients.
    """
    for hook in hooks:
        try:
            hook(*arguments)
        except (Exception, SystemExit):  # noqa: BLE001 - logged
            _log.exception("hook_failed", hook=getattr(hook, "__qualname__", repr(hook)))
