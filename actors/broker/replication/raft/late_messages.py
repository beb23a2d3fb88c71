"""LateMessages: messages between replicas that wait for what follows them soon, so that one carries both.

    leader     empty Records, which only confirm ──an append──→ dropped; the fetch gets the new records
    follower   FetchRequest of records' end ──their flush──→ sent with the position that the Ack would have

What does not follow within WAIT_MS is not waited for. For the nodes this is a network that delays messages,
loses a response, and delivers a fetch twice.
"""

from __future__ import annotations

from typing import Final

from actors.raft.members import Member
from actors.raft.messages import Ack, FetchRequest, Message, Records

WAIT_MS: Final = 5
"""A follower learns this much later what is confirmed if nothing is appended; its reads end there."""


class LateMessages:
    """The messages of one replica that wait, and the fetches that it may process again."""

    def __init__(self) -> None:
        self._fetches: dict[Member, FetchRequest] = {}
        """The last fetch of each follower."""
        self._waiting: dict[Member, Records | FetchRequest] = {}

    @property
    def has_waiting(self) -> bool:
        """True if a message waits."""
        return bool(self._waiting)

    def delays(self, to: Member, message: Message, *, is_flushed: bool) -> bool:
        """Return True if `message` waits; it then replaces the one to the same member.

        `is_flushed` says that this replica has flushed its whole log, so that no acknowledgement will follow.
        """
        if isinstance(message, Records):
            fetch = self._fetches.get(to)
            waits = fetch is not None and fetch.request_id == message.request_id
        else:
            waits = isinstance(message, FetchRequest) and not is_flushed
        if waits:
            self._waiting[to] = message  # type: ignore[assignment]
        elif isinstance(message, FetchRequest):
            self._waiting.pop(to, None)
        return waits

    def joined(self, to: Member, message: Message) -> Message:
        """Return what to send instead of `message`: for an Ack the fetch that waits, with its position."""
        waiting = self._waiting.get(to)
        if not isinstance(message, Ack) or not isinstance(waiting, FetchRequest):
            return message
        if waiting.term != message.term:
            return message
        del self._waiting[to]
        return waiting._replace(flushed=message.flushed)

    def fetched(self, fetch: FetchRequest) -> None:
        """Record the fetch that is processed next; it replaces an earlier one of the same follower."""
        self._fetches[fetch.sender] = fetch
        self._waiting.pop(fetch.sender, None)

    def take_fetches(self) -> list[FetchRequest]:
        """Drop the responses that wait, because the log has grown; return the fetches to process again."""
        waiting, self._waiting = self._waiting, {}
        return [self._fetches[to] for to, each in waiting.items() if isinstance(each, Records)]

    def take_due(self) -> dict[Member, Records | FetchRequest]:
        """Return the messages to send now, by receiver: what they waited for has not followed in time."""
        waiting, self._waiting = self._waiting, {}
        return waiting

    def clear(self) -> None:
        """Forget everything, because this replica leads no more, or takes no part any more."""
        self._fetches, self._waiting = {}, {}
