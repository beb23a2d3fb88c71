"""Views of the dead letters of consumer groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cluster.views.messages import message_json

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
