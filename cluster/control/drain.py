"""State machine of a drain: when to stop writes to a broker and when to stop the broker. Its store is kept.

    1. The broker is registered as not writable. Sends that still arrive are accepted.
    2. When no send has arrived for QUIET_S, the broker refuses sends; producers use other brokers.
    3. When all groups that have members have read all messages, the broker is stopped.

`Drain` only decides, from the progress that the broker reports; `cluster.control.draining` acts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from cluster.counted import counted

QUIET_S = 3.0
"""Seconds without a send after which the broker starts to refuse sends."""

HEARTBEAT_S = 31.0
"""Seconds after which the broker knows all of its clients, as they send a heartbeat every 30 s."""

SHOWN = 3
"""Number of groups that a progress line names."""


class DrainStep(StrEnum):
    """Next step of a drain."""

    WAIT = "wait"
    CLOSE = "close"
    STOP = "stop"
    GIVE_UP = "give up"


@dataclass(frozen=True)
class GroupLag:
    """Number of messages that a group has not read on the broker, and number of its online members."""

    group: str
    members: int
    unread: int

    def __str__(self) -> str:
        return f"{self.group}: {self.unread:,}"


@dataclass(frozen=True)
class DrainProgress:
    """Progress of a drain, as reported by the broker.

    Attributes:
        up_s: Seconds since the broker started to serve.
        messages_in: Number of messages that it has received since then.
        producers: Number of connected producers.
        groups: The consumer groups, online or not.
        state: "active", "draining", or "closed" if the broker refuses sends.
    """

    up_s: float
    messages_in: int
    producers: int
    groups: Sequence[GroupLag]
    state: str = "active"

    @classmethod
    def of(cls, progress: Mapping[str, Any]) -> Self:
        """Build it from the response of the broker (`actors.broker.core.drain`)."""
        groups = [GroupLag(each["group"], each["members"], each["unread"]) for each in progress["groups"]]
        return cls(
            progress["up_s"], progress["messages_in"], progress["producers"], groups, progress["state"]
        )

    @property
    def is_complete(self) -> bool:
        """Return True if every client has had time to send the broker a heartbeat."""
        return self.up_s >= HEARTBEAT_S

    @property
    def reading(self) -> list[GroupLag]:
        """Return the groups with online members and unread messages, the largest lag first."""
        return sorted((g for g in self.groups if g.members and g.unread), key=lambda g: -g.unread)

    @property
    def absent(self) -> list[GroupLag]:
        """Return the groups with unread messages but no members. `raymq drain` does not wait for them."""
        return sorted((g for g in self.groups if not g.members and g.unread), key=lambda g: -g.unread)

    @property
    def unread(self) -> list[GroupLag]:
        """Return the groups with unread messages, those with members first."""
        return [*self.reading, *self.absent]

    @property
    def is_drained(self) -> bool:
        """Return True if the broker refuses sends, and all groups with members have read its messages."""
        return self.state == "closed" and self.is_complete and not self.reading

    def remaining(self, *, is_closed: bool, offline: Sequence[GroupLag] = ()) -> str:
        """Return what a drain waits for. `offline`: groups without members that it waits for too."""
        if not is_closed:
            return (
                f"{counted(self.producers, 'producer')} still sending; they refresh their routes every 30 s"
            )
        if not self.is_complete:
            return f"it started {self.up_s:.0f} s ago, and clients send heartbeats every 30 s"
        left = [*self.reading, *offline]
        more = f" and {counted(len(left) - SHOWN, 'more group')}" if len(left) > SHOWN else ""
        return f"unread messages of {', '.join(map(str, left[:SHOWN]))}{more}"

    def summary(self, broker: str) -> str:
        """Return a sentence about the drain of `broker` that `raymq broker drain` has begun, or not yet."""
        if self.state == "active":
            return f"{broker} is not being drained"
        if self.is_drained:
            return f"{broker} is drained: `raymq drain {broker}` stops it and keeps its store"
        return f"{broker} is being drained and waits: {self.remaining(is_closed=self.state == 'closed')}"

    def preview(self, broker: str, step: str) -> str:
        """Return what the step "start" or "cancel" of a drain would do to `broker`."""
        if step == "cancel":
            return f"{broker} would be writable again"
        left = sum(group.unread for group in self.reading)
        return (
            f"{broker} would be not writable, refuse sends once other brokers have its "
            f"{counted(self.producers, 'producer')}, and be drained when its groups have read "
            f"{counted(left, 'message')}; it keeps running"
        )


@dataclass
class Drain:
    """State of one drain. The caller passes the time, in monotonic seconds.

    Attributes:
        begin_s: Time at which the drain began.
        timeout_s: Maximum duration.
        is_closed: True once the broker is to refuse sends.
        waits_for_offline_groups: Do not stop the broker while groups without members have unread messages.
    """

    begin_s: float
    timeout_s: float
    is_closed: bool = False
    waits_for_offline_groups: bool = False
    _messages_in: int = -1
    _quiet_since_s: float = 0.0

    def step(self, progress: DrainProgress, now_s: float) -> DrainStep:
        """Return the next step after `progress` was received at `now_s`."""
        if progress.messages_in != self._messages_in:
            self._messages_in = progress.messages_in
            self._quiet_since_s = now_s
        if self.is_closed and progress.is_complete and not (progress.reading or self._offline(progress)):
            return DrainStep.STOP
        if now_s - self.begin_s > self.timeout_s:
            return DrainStep.GIVE_UP
        is_unused = progress.is_complete and not progress.producers
        if not self.is_closed and (is_unused or now_s - self._quiet_since_s >= QUIET_S):
            self.is_closed = True
            return DrainStep.CLOSE
        return DrainStep.WAIT

    def remaining(self, progress: DrainProgress) -> str:
        """Return one line that says what the drain is waiting for."""
        return progress.remaining(is_closed=self.is_closed, offline=self._offline(progress))

    def _offline(self, progress: DrainProgress) -> list[GroupLag]:
        return progress.absent if self.waits_for_offline_groups else []
