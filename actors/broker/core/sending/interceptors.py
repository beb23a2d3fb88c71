"""Send interceptors: steps between the checks of a message and its append.

    SEND_MESSAGE → checks → interceptors, in the order of their features → append

An interceptor changes the topic, queue or properties to store, or refuses the message. A topic that it
redirects to must exist (`Topics.ensure`). Batches and records encoded by clients do not pass interceptors:
like RocketMQ, the broker stores them unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from actors.wire.hot_headers import SendMessageHeader
from store.message.record import RecordDraft


@dataclass(slots=True)
class SendDraft:
    """One message before its append.

    The response to the sender has the queue of the request, even if an interceptor redirects the record; a
    field `queueId` in `response_fields` replaces it.
    """

    header: SendMessageHeader
    """The header that the client sent; must not be changed."""
    record: RecordDraft
    """The record to append. Its `properties` are set after the last interceptor."""
    properties: str
    """The properties to store, each as name, 0x01, value, 0x02. The broker adds its own ones later."""
    response_fields: Iterable[tuple[str, str]] = ()
    """Header fields, as (name, value), that interceptors add to the response."""
    appended: Callable[[], None] | None = None
    """Called after the append, which may fail."""


class SendInterceptor(Protocol):
    """A step before the append."""

    @property
    def property_names(self) -> Collection[str] | None:
        """Names of the properties of which a message must have one, or else `before_append` does nothing.

        None if it may change any message: then no message takes the compiled path (`plain_sends`), which
        messages to retry and dead-letter topics never take.
        """

    def before_append(self, draft: SendDraft) -> None:
        """Change the record and properties of the draft if needed. Raises Refused to refuse the message."""
