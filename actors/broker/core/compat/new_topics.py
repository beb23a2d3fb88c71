"""NewTopics: topics that a send created and that nameservers may not know yet.

A RocketMQ broker registers a new topic at all nameservers before it responds to the send that created the
topic, because the client requests the topic's route next. This broker delays the response likewise.
"""

from __future__ import annotations

from functools import partial

from actors.broker.core.registration import WhenRegistered


class NewTopics:
    """The names of new topics that some nameserver has not received yet; usually this set is empty."""

    __slots__ = ("names", "when_registered")

    def __init__(self, when_registered: WhenRegistered) -> None:
        self.names: set[str] = set()
        self.when_registered = when_registered

    def add(self, topic: str) -> None:
        """Add a topic; it is removed when all nameservers have received it."""
        self.names.add(topic)
        self.when_registered(partial(self.names.discard, topic))
