"""Send hooks at their place: around each call of a producer."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.client.config import ProducerConfig
from cluster.client.hooks import SendContext, call_hooks
from cluster.client.producer.sender import Outcome
from cluster.client.results import SendResult, TableReceipt
from store.message.message import Message


class SendHooks:
    """The send hooks of one producer. False when there are none."""

    def __init__(self, config: ProducerConfig) -> None:
        self._group = config.group
        self._before = [hook.before_send for hook in config.send_hooks]
        self._after = [hook.after_send for hook in config.send_hooks]

    def __bool__(self) -> bool:
        return bool(self._before)

    def before(self, messages: Sequence[Message], *, is_oneway: bool = False) -> SendContext:
        """A send begins: hooks may change its messages, which are copies of the caller's."""
        own = [with_own_properties(message) for message in messages]
        topic = own[0].topic if own else ""
        context = SendContext(self._group, topic, own, is_oneway=is_oneway)
        call_hooks(self._before, context)
        return context

    def before_table(self, topic: str, rows: int) -> SendContext:
        """A table's send begins."""
        context = SendContext(self._group, topic, rows=rows)
        call_hooks(self._before, context)
        return context

    def after(
        self,
        context: SendContext,
        result: SendResult | TableReceipt | None = None,
        error: BaseException | None = None,
    ) -> None:
        """The send has ended."""
        context.result, context.error = result, error
        call_hooks(self._after, context)


def with_own_properties(message: Message) -> Message:
    """The same message with properties of its own."""
    return Message(message.topic, message.body, properties=message.properties, flag=message.flag)


class HookedOutcome:
    """A send's outcome that hooks hear of first."""

    __slots__ = ("_context", "_hooks", "_inner")

    def __init__(self, inner: Outcome, hooks: SendHooks, context: SendContext) -> None:
        self._inner = inner
        self._hooks = hooks
        self._context = context

    def resolve(self, value: SendResult, /) -> None:
        """Take the result."""
        self._hooks.after(self._context, value)
        self._inner.resolve(value)

    def reject(self, error: BaseException, /) -> None:
        """Take the error."""
        self._hooks.after(self._context, None, error)
        self._inner.reject(error)
