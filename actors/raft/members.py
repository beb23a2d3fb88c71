"""Members: the replicas of a group, and the rules of a membership change.

A voter counts for majorities. A learner gets the log but counts for nothing, until it has caught up and is
promoted. Two configurations that differ by one voter have no disjoint majorities, so voters change one at a
time; replacing a voter takes two changes.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Member(NamedTuple):
    """A replica together with the id of its store.

    A replica that lost its disk has another store id. It is a new member, because it no longer has what the
    old one acknowledged.
    """

    replica: int
    store_id: str

    def __str__(self) -> str:
        return f"replica {self.replica} (store {self.store_id})"


class Members(NamedTuple):
    """The configuration of a group."""

    voters: tuple[Member, ...] = ()
    learners: tuple[Member, ...] = ()
    addresses: tuple[tuple[str, str], ...] = ()
    """Store id and address, `host:port`, of the members whose addresses the leader knew."""

    @property
    def majority(self) -> int:
        """The number of voters that decides."""
        return len(self.voters) // 2 + 1

    @property
    def everyone(self) -> tuple[Member, ...]:
        """Voters and learners."""
        return self.voters + self.learners

    def address_of(self, member: Member) -> str:
        """Return the address of a member; empty if it is not known."""
        return dict(self.addresses).get(member.store_id, "")

    def with_addresses(self, addresses: Mapping[Member, str]) -> "Members":
        """Return the configuration with other addresses; the known ones of other members are kept."""
        found = {each.store_id: addresses.get(each) or self.address_of(each) for each in self.everyone}
        known = tuple((store_id, address) for store_id, address in found.items() if address)
        return self._replace(addresses=known)

    def with_learner(self, member: Member) -> "Members":
        """Return the configuration with one more learner."""
        return self._replace(learners=(*self.learners, member))

    def with_voter(self, member: Member) -> "Members":
        """Return the configuration with a learner promoted to voter."""
        learners = tuple(each for each in self.learners if each != member)
        return self._replace(voters=(*self.voters, member), learners=learners)

    def without(self, member: Member) -> "Members":
        """Return the configuration without a voter or learner."""
        return Members(
            tuple(each for each in self.voters if each != member),
            tuple(each for each in self.learners if each != member),
            tuple(each for each in self.addresses if each[0] != member.store_id),
        )


class NotAllowed(Exception):
    """The group cannot do now what the operator or client requested; the text names the reason."""


def check_change(old: Members, new: Members) -> None:
    """Raise NotAllowed if `new` is not one step away from `old`."""
    if len(set(new.everyone)) != len(new.everyone):
        raise NotAllowed("a member is listed twice")
    if not new.voters:
        raise NotAllowed("the last voter cannot be removed: the group would have no log")
    replicas = [each.replica for each in new.voters]
    if len(set(replicas)) != len(replicas):
        raise NotAllowed("two voters have one replica number: remove the old store first")
    added = [each for each in new.voters if each not in old.voters]
    removed = [each for each in old.voters if each not in new.voters]
    if len(added) + len(removed) > 1:
        raise NotAllowed(f"{len(added) + len(removed)} voters change at once: change one at a time")
    for each in added:
        if each not in old.learners:
            raise NotAllowed(f"{each} is not a learner: add it as a learner first, so that it can catch up")


def next_change(members: Members, remove: Member | None, add: Member | None) -> Members | None:
    """Return the next configuration on the way to a group with `add` and without `remove`; None at the goal.

    A voter of the same replica number is removed before its successor is promoted: its store is gone, so it
    only raises the number of votes that a majority needs.
    """
    if add is not None and add not in members.everyone:
        return members.with_learner(add)
    is_successor = remove is not None and add is not None and remove.replica == add.replica
    if is_successor and remove in members.everyone:
        return members.without(remove)
    if add is not None and add not in members.voters:
        return members.with_voter(add)
    if remove is not None and remove in members.everyone:
        return members.without(remove)
    return None
