"""MemberAddresses: where a replica reaches the other members of its group.

The address in this replica's own settings wins, then the one in the group's configuration, then the one that
the member gave with its last message: a replica that joins knows the leader only from its message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from actors.raft.members import Member, Members


class MemberAddresses:
    """The addresses, `host:port`, that one replica knows."""

    def __init__(self, own: Mapping[Member, str], members: Callable[[], Members]) -> None:
        """Create the addresses.

        Args:
            own: The addresses in the setting `raft_members`.
            members: Returns the configuration of the group in force.
        """
        self._own = own
        self._members = members
        self._received: dict[Member, str] = {}

    def of(self, member: Member) -> str:
        """Return the address of a member; empty if it is not known."""
        return self._own.get(member) or self._members().address_of(member) or self._received.get(member, "")

    def receive(self, member: Member, address: str) -> None:
        """Record the address that an accepted message of `member` gave."""
        if address and member not in self._members().everyone:
            self._received = {member: address}  # at most one: the leader of a group that this replica joins
        elif address and not self.of(member):
            self._received[member] = address

    def of_each(self, members: Members) -> Mapping[Member, str]:
        """Return the known addresses of these members, for a group record."""
        return {each: self.of(each) for each in members.everyone}
