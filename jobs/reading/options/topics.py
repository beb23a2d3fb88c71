"""Topics: the topics of one read, given by name or by a pattern."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from actors.broker.core.metadata.internal_topics import is_internal
from actors.broker.core.metadata.topics import reply_topic
from cluster.client import Admin
from jobs.job_errors import OptionInvalid

LABEL_CHARACTERS_MAX = 120


def user_topics(admin: Admin) -> list[str]:
    """Return the topics from which patterns select. Raises `cluster.client.ClientError`."""
    info = admin.cluster_info()
    # as RocketMQ, a topic for each broker, and two for each cluster
    registered = {*info.brokers, *info.clusters, *map(reply_topic, info.clusters)}
    return [name for name in admin.topics() if name not in registered and not is_internal(name)]


@dataclass(frozen=True)
class TopicNames:
    """The topics that a read returns: those in `names`, or all whose full name matches `pattern`."""

    names: tuple[str, ...] = ()
    pattern: str = ""

    def find(self, admin: Admin) -> tuple[str, ...]:
        """Return the names of the topics. A pattern selects among the topics that exist now.

        System topics, retry topics and dead-letter topics are only read by name. Raises `OptionInvalid` if
        no topic matches the pattern, and `cluster.client.ClientError`.
        """
        if not self.pattern:
            return self.names
        candidates = user_topics(admin)
        found = tuple(name for name in candidates if re.fullmatch(self.pattern, name))
        if not found:
            raise OptionInvalid(
                f"no topic matches the pattern {self.pattern!r} in full; the cluster has {len(candidates)}"
                f" topics: {', '.join(candidates[:10])}"
            )
        return found

    @property
    def label(self) -> str:
        """A name for these topics in file names and metrics: that of the topic if there is only one."""
        text = str(self)
        is_short = not self.pattern and len(text) <= LABEL_CHARACTERS_MAX
        return text if is_short else f"topics-{zlib.crc32(text.encode()):08x}"

    def __str__(self) -> str:
        return f"topics that match {self.pattern}" if self.pattern else "+".join(self.names)


def parse_topics(
    topic: str | None,
    topics: Sequence[str] | None = None,
    pattern: str | None = None,
    option_names: tuple[str, str] = ("topics", "topicPattern"),
) -> TopicNames:
    """Return the topics that the arguments of a read give: one topic, a list, or a regular expression.

    `option_names` are the names of the last two arguments in error messages. Raises `OptionInvalid`.
    """
    list_option, pattern_option = option_names
    if sum(each is not None for each in (topic, topics, pattern)) != 1:
        raise OptionInvalid(
            f"topic={topic!r}, {list_option}={topics!r} and {pattern_option}={pattern!r}: give one of them"
        )
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionInvalid(
                f"{pattern_option}={pattern!r} is not a valid regular expression: {error}"
            ) from error
        if not pattern:
            raise OptionInvalid(f"{pattern_option} is empty: use '.*' for all topics")
        return TopicNames(pattern=pattern)
    names = (topic,) if topics is None else topics
    if isinstance(names, str) or not names or not all(isinstance(each, str) and each for each in names):
        given = f"topic={topic!r}" if topics is None else f"{list_option}={topics!r}"
        raise OptionInvalid(f"{given} is invalid: give the name of a topic, or a list of names")
    return TopicNames(tuple(sorted({str(each) for each in names})))
