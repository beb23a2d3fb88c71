"""NewTopics: topics that a send created and that nameservers may not know yet.

RocketMQ registers a topic with all nameservers before it responds to the send that created it, and its
clients request the route next. So the response to such a send waits until the topic is registered.
"""

from __future__ import annotations

from functools import partial

from actors.broker.registration import WhenRegistered


class NewTopics:
    """The names of such topics; the set is empty nearly always."""

    __slots__ = ("names", "when_registered")

    def __init__(self, when_registered: WhenRegistered) -> None:
        self.names: set[str] = set()
        self.when_registered = when_registered

    def add(self, topic: str) -> None:
        """Note a topic until it is registered."""
        self.names.add(topic)
        self.when_registered(partial(self.names.discard, topic))
