"""Views of the dead letters of consumer groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cluster.views.messages import message_json
from cluster.views.offsets import parse_queue
from store.message.validate import DLQ_TOPIC_PREFIX

if TYPE_CHECKING:
    from cluster.client import Admin, MessageExt, MessageQueue

SEARCHED_MAX = 10_000
"""Maximum number of dead letters of each queue among which an id is searched."""


@dataclass(frozen=True, slots=True)
class DeadLetterCount:
    """The number of pending dead letters of a group."""

    group: str
    dead_letters: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a group failed to consume; `origin` is the topic from which it came."""

    message: MessageExt
    origin: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the message as JSON values, with its origin."""
        return message_json(self.message) | {"origin": self.origin}


def dead_letter_counts(admin: Admin) -> list[DeadLetterCount]:
    """Return the number of pending dead letters of each group. Raises `ClientError`."""
    return [DeadLetterCount(group, count) for group, count in admin.dead_letter_counts().items()]


def dead_letters(
    admin: Admin, group: str, max_messages: int, *, include_handled: bool = False
) -> list[DeadLetter]:
    """Return the oldest dead letters of a group, at most `max_messages` of each queue.

    `include_handled`: also those that were resent or purged. Raises `ClientError`.
    """
    found = admin.dead_letters(group, max_messages, include_handled=include_handled)
    return [_letter(each) for each in found]


@dataclass(frozen=True, slots=True)
class DeadLetterRows:
    """Dead letters, the newest first; of `total`. `before` continues with older ones; None at the end."""

    letters: Sequence[DeadLetter]
    total: int
    before: str | None


def dead_letter_page(
    admin: Admin, group: str, limit: int, before: str | None = None, *, include_handled: bool = False
) -> DeadLetterRows:
    """Return the newest dead letters of a group, at most `limit`, or those older than `before`.

    `before` is that of the page before: `broker:queue@offset` of each queue, separated by commas. Raises
    `ClientError`; ConfigInvalid if `before` is invalid.
    """
    topic = f"{DLQ_TOPIC_PREFIX}{group}"
    ends = None if before is None else dict(_place(each, topic) for each in before.split(","))
    page = admin.dead_letter_page(group, limit, before=ends, include_handled=include_handled)
    places = [f"{queue.broker_name}:{queue.queue_id}@{at}" for queue, at in (page.before or {}).items()]
    return DeadLetterRows(
        [_letter(each) for each in page.messages], page.total, ",".join(places) if places else None
    )


def _place(text: str, topic: str) -> tuple[MessageQueue, int]:
    # Imported here, because the command line imports views before it needs a client.
    from cluster.client.errors import ConfigInvalid

    queue, _, offset = text.rpartition("@")
    if not (offset.isascii() and offset.isdigit()):
        raise ConfigInvalid(f"{text[:80]!r} is not a place: give what the page before has returned")
    return parse_queue(queue, topic), int(offset)


def dead_letter_at(admin: Admin, queue: MessageQueue, offset: int) -> list[DeadLetter]:
    """Return the dead letter at an offset of a queue, or an empty list. Raises `ClientError`."""
    return [_letter(each) for each in admin.messages_at(queue, offset)]


def dead_letters_with_id(admin: Admin, group: str, identifier: str) -> list[DeadLetter]:
    """Return the dead letters with this message id, of the broker or of the producer, also handled ones.

    Raises `ClientError`.
    """
    letters = dead_letters(admin, group, SEARCHED_MAX, include_handled=True)
    return [each for each in letters if identifier in (each.message.offset_msg_id, each.message.uniq_key)]


def _letter(message: MessageExt) -> DeadLetter:
    return DeadLetter(message, message.properties.get("RETRY_TOPIC"))
