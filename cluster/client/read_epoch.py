"""ReadEpoch: the epoch of a log that a saved or a running position belongs to."""

from actors.wire.raymq_requests import FROM_OTHER, GROUP_EPOCH


class ReadEpoch:
    """The epoch of a broker's log in which a queue was read last (PULL_RECORDS, `history`).

    It is that of one replica: what was read from others since is not known to be in its epoch. The epochs of
    a Raft group are the same at all of its replicas.
    """

    __slots__ = ("address", "id")

    def __init__(self, address: str = "", epoch_id: str = "") -> None:
        """Create the object; by default the epoch is unknown."""
        self.address = address
        """The address of the replica that was read last; empty if it is unknown."""
        self.id = epoch_id
        """The id of the epoch; empty if it is unknown."""

    def at(self, address: str) -> str:
        """Return the id to name to the replica at this address; empty if it cannot know the epoch."""
        if address == self.address:
            return self.id
        return self.id + FROM_OTHER if self.id.endswith(GROUP_EPOCH) else ""

    def read(self, address: str, history: str | None) -> None:
        """Record a response from an address, with the id that it names."""
        if history is not None or address != self.address:
            self.id = history or ""
        self.address = address
