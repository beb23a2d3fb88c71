"""Hooks that a program may add before and after a send, a call of the listener, and a request.

    send      SendHook      RocketMQ SendMessageHook      once a call, however many attempts it takes
    consume   ConsumeHook   RocketMQ ConsumeMessageHook   once a call of the listener
    call      CallHook      RocketMQ RPCHook              every request to a broker or nameserver

A hook that raises is logged and otherwise ignored – except `before_call`, whose exception fails the request:
it may have had to sign it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from actors.remoting.command import RemotingCommand
from actors.remoting.remoting_errors import RemotingError
from cluster.client.results import SendResult, TableReceipt
from store.logs import get_logger
from store.message.message import Message, MessageExt
from store.message.message_queue import MessageQueue

log = get_logger(__name__)


@dataclass(slots=True, eq=False)
class SendContext:
    """One send. `messages` may be changed by `before_send` (a trace id among the properties, say); they are
    empty for a table, which has `rows`. `result` or `error` is set after the send, neither after a one-way.

    `notes` belongs to the hooks: `before_send` may pass values to `after_send`.
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
    """One call of the listener. `is_success` is None before the call, and its outcome after."""

    group: str
    queue: MessageQueue
    messages: Sequence[MessageExt]
    is_success: bool | None = None
    error: BaseException | None = None
    notes: dict[str, Any] = field(default_factory=dict)


class SendHook(Protocol):
    """Observes sends. Called in the sender's thread or on the client's loop: do not block."""

    def before_send(self, context: SendContext, /) -> None:
        """Called before the messages are checked and encoded."""
        ...

    def after_send(self, context: SendContext, /) -> None:
        """Called after the send succeeded or failed."""
        ...


class ConsumeHook(Protocol):
    """Observes the listener, in its thread."""

    def before_consume(self, context: ConsumeContext, /) -> None:
        """Called before the listener."""
        ...

    def after_consume(self, context: ConsumeContext, /) -> None:
        """Called after the listener returned or raised."""
        ...


class CallHook(Protocol):
    """Observes every request of a client. May be called from several threads at once: do not block."""

    def before_call(self, address: str, command: RemotingCommand, /) -> None:
        """Called before `command` is sent; may add to its `ext`. An exception fails the request."""
        ...

    def after_call(
        self, address: str, command: RemotingCommand, answer: RemotingCommand | RemotingError | None, /
    ) -> None:
        """Called with the response, whatever its code, or an error; None after a one-way request."""
        ...


def call_hooks(hooks: Sequence[Callable[..., None]], *arguments: object) -> None:
    """Call each hook; one that raises is logged, and the others are still called.

    `sys.exit` counts too: it would end a listener's thread or the loop of all clients, not the program.
    """
    for hook in hooks:
        try:
            hook(*arguments)
        except (Exception, SystemExit):
            log.exception("hook_failed", hook=getattr(hook, "__qualname__", repr(hook)))
