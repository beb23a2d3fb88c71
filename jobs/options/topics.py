"""Topics: the topics of one read, given by name."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.client import Admin
from jobs.job_errors import OptionInvalid


@dataclass(frozen=True)
class Topics:
    """The topics that a read returns, by name."""

    names: tuple[str, ...]

    def find(self, admin: Admin) -> tuple[str, ...]:
        """Return the names of the topics."""
        return self.names

    def __str__(self) -> str:
        return "+".join(self.names)


def parse_topics(topic: str | None) -> Topics:
    """Return the topics that the arguments of a read give. Raises `OptionInvalid`."""
    if not isinstance(topic, str) or not topic:
        raise OptionInvalid(f"topic={topic!r} is invalid: give the name of a topic")
    return Topics((topic,))
