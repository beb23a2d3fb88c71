"""SendHooks: calls the send hooks around each send of a producer."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.client.config import ProducerConfig
from cluster.client.hooks import SendContext, call_hooks
from cluster.client.namespaces import Namespace
from cluster.client.producer.outbound import with_owned_body
from cluster.client.results import SendResult, TableReceipt
from store.message.message import Message


class SendHooks:
    """The send hooks of one producer."""

    def __init__(self, config: ProducerConfig) -> None:
        self._group = Namespace(config.namespace).unwrap(config.group)
        self._before = [hook.before_send for hook in config.send_hooks]
        self._after = [hook.after_send for hook in config.send_hooks]

    def before(self, messages: Sequence[Message], *, is_oneway: bool = False) -> SendContext | None:
        """Call the `before_send` hooks with copies of `messages`, which the hooks may change.

        Returns the context of the send, None if there are no hooks.
        """
        if not self._before:
            return None
        own = [with_own_properties(message) for message in messages]
        topic = own[0].topic if own else ""
        context = SendContext(self._group, topic, own, is_oneway=is_oneway)
        call_hooks(self._before, context)
        return context

    def before_table(self, topic: str, rows: int) -> SendContext | None:
        """Call the `before_send` hooks before a table of `rows` rows is sent.

        Returns the context of the send, None if there are no hooks.
        """
        if not self._before:
            return None
        context = SendContext(self._group, topic, rows=rows)
        call_hooks(self._before, context)
        return context

    def after(
        self,
        context: SendContext | None,
        result: SendResult | TableReceipt | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Call the `after_send` hooks with the outcome of the send, unless `context` is None."""
        if context is None:
            return
        context.result, context.error = result, error
        call_hooks(self._after, context)


def with_own_properties(message: Message) -> Message:
    """Return a copy of `message` whose properties can be changed without changing those of `message`."""
    message = with_owned_body(message)
    return Message(message.topic, message.body, properties=message.properties, flag=message.flag)
