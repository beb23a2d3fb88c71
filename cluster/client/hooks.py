"""Where a program may look on, or lend a hand: before and after a send, a call of the listener, a request.

    send      SendHook      RocketMQ SendMessageHook      once a call, whatever it is tried on
    consume   ConsumeHook   RocketMQ ConsumeMessageHook   once a call of the listener
    call      CallHook      RocketMQ RPCHook              every request to a broker or nameserver

A hook that fails is logged and passed over, so that what only looks on can break nothing – but a failing
`before_call` fails its request: it may have had to sign it.
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
    empty for a table, which has `rows`. `result` or `error` is there after the send, neither after a one-way.

    `notes` is the hooks' own: what `before_send` puts in, `after_send` finds.
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
    """One call of the listener. `is_success` is None before, and says what came of it after."""

    group: str
    queue: MessageQueue
    messages: Sequence[MessageExt]
    is_success: bool | None = None
    error: BaseException | None = None
    notes: dict[str, Any] = field(default_factory=dict)


class SendHook(Protocol):
    """Looks on at sends. Both are called in the sender's thread or on the client's loop: do not block."""

    def before_send(self, context: SendContext, /) -> None:
        """A send begins; its messages are checked and encoded after this."""
        ...

    def after_send(self, context: SendContext, /) -> None:
        """It has succeeded or failed."""
        ...


class ConsumeHook(Protocol):
    """Looks on at the listener, in its thread."""

    def before_consume(self, context: ConsumeContext, /) -> None:
        """The listener is about to be called."""
        ...

    def after_consume(self, context: ConsumeContext, /) -> None:
        """It has returned or raised."""
        ...


class CallHook(Protocol):
    """Looks on at every request of a client. May be called from several threads at once: do not block."""

    def before_call(self, address: str, command: RemotingCommand, /) -> None:
        """`command` is about to be sent; its `ext` may be added to. What this raises fails the request."""
        ...

    def after_call(
        self, address: str, command: RemotingCommand, answer: RemotingCommand | RemotingError | None, /
    ) -> None:
        """The answer has come, whatever its code, or an error instead; None: a one-way wants none."""
        ...


def call_hooks(hooks: Sequence[Callable[..., None]], *arguments: object) -> None:
    """Call each hook; one that fails is logged, and the others are called all the same. `sys.exit` is such a
    failure: it would end a listener's thread, or the loop of all clients, and no program.
    """
    for hook in hooks:
        try:
            hook(*arguments)
        except (Exception, SystemExit):
            log.exception("hook_failed", hook=getattr(hook, "__qualname__", repr(hook)))
