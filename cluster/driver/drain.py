"""Draining a broker: producers leave, groups read to its end, and then it is taken down. Its store stays.

    leave   the routes say that it cannot be written; late sends are still taken
    close   when none came for a while: sends are refused, and go elsewhere
    down    when the groups that have members have read everything

`Drain` decides from what the broker tells; `cluster.driver.draining` acts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

QUIET_S = 3.0
"""How long no send must have come before they are refused."""

HEARTBEAT_S = 31.0
"""Clients tell a broker of themselves every 30 s: one that was just started does not know who needs it."""

SHOWN = 3


class Step(StrEnum):
    """What is to be done next."""

    WAIT = "wait"
    CLOSE = "close"
    DOWN = "down"
    GIVE_UP = "give up"


@dataclass(frozen=True)
class GroupLag:
    """What one group has yet to read on the broker; `members` 0: nobody is there to read it."""

    group: str
    members: int
    unread: int

    def __str__(self) -> str:
        return f"{self.group}: {self.unread:,}"


@dataclass(frozen=True)
class Seen:
    """What the broker told at one moment."""

    up_s: float
    messages_in: int
    producers: int
    groups: Sequence[GroupLag]

    @classmethod
    def of(cls, progress: Mapping[str, Any]) -> Self:
        """From the broker's own words (`actors.broker.drain`)."""
        groups = [GroupLag(each["group"], each["members"], each["unread"]) for each in progress["groups"]]
        return cls(progress["up_s"], progress["messages_in"], progress["producers"], groups)

    @property
    def is_complete(self) -> bool:
        """Whether every client has had the time to tell the broker of itself."""
        return self.up_s >= HEARTBEAT_S

    @property
    def reading(self) -> list[GroupLag]:
        """The groups with members that have yet to read, the farthest behind first."""
        return sorted((g for g in self.groups if g.members and g.unread), key=lambda g: -g.unread)

    @property
    def absent(self) -> list[GroupLag]:
        """The groups that have yet to read, but nobody is there to do it: they go on when it is back."""
        return sorted((g for g in self.groups if not g.members and g.unread), key=lambda g: -g.unread)


@dataclass
class Drain:
    """One drain; times are monotonic seconds, given by the caller."""

    begin_s: float
    timeout_s: float
    is_closed: bool = False
    _messages_in: int = -1
    _quiet_since_s: float = 0.0

    def step(self, seen: Seen, now_s: float) -> Step:
        """What follows from what was seen."""
        if seen.messages_in != self._messages_in:
            self._messages_in = seen.messages_in
            self._quiet_since_s = now_s
        if self.is_closed and seen.is_complete and not seen.reading:
            return Step.DOWN
        if now_s - self.begin_s > self.timeout_s:
            return Step.GIVE_UP
        is_unused = seen.is_complete and not seen.producers
        if not self.is_closed and (is_unused or now_s - self._quiet_since_s >= QUIET_S):
            self.is_closed = True
            return Step.CLOSE
        return Step.WAIT

    def remaining(self, seen: Seen) -> str:
        """Why it takes so long, in one line."""
        if not self.is_closed:
            return f"{seen.producers} producers, which look at the routes every 30 s, still send"
        if not seen.is_complete:
            return f"it serves for {seen.up_s:.0f} s only, and clients tell of themselves every 30 s"
        left = seen.reading
        more = f" and {len(left) - SHOWN} more groups" if len(left) > SHOWN else ""
        return f"unread messages of {', '.join(map(str, left[:SHOWN]))}{more}"
