"""InSyncReplicas: the confirm policy of a master with the setting `replication: sync`.

confirmed = the smaller of   confirmed by the setting `flush` on the master
                             acknowledged by `in_sync_replicas` - 1 slaves
"""

from __future__ import annotations

from collections.abc import Mapping

from store.commitlog.positions import CONFIRM_POLICIES, ConfirmPolicy, Positions

SYNC = "sync"
"""Value of the setting `replication`: an append is confirmed when slaves have it."""


class InSyncReplicas:
    """Confirms what the master has confirmed and enough slaves have received."""

    def __init__(self, local: ConfirmPolicy, count: int) -> None:
        """Create the policy.

        Args:
            local: decides what the master has.
            count: the replicas that must have a record, the master included; at least 2.
        """
        self._local = local
        self._slaves = count - 1

    def confirmed(self, positions: Positions, replicas: Mapping[int, int]) -> int:
        """Return the offset before which enough replicas have all records."""
        return min(self._local.confirmed(positions, replicas), self.replicated(replicas))

    def replicated(self, replicas: Mapping[int, int]) -> int:
        """Return the offset before which enough slaves have all records; 0 if too few are connected."""
        if len(replicas) < self._slaves:
            return 0
        return sorted(replicas.values(), reverse=True)[self._slaves - 1]


def confirm_policy(flush: str, replication: str, in_sync_replicas: int) -> ConfirmPolicy:
    """Return the confirm policy for the settings `flush`, `replication` and `in_sync_replicas`."""
    local = CONFIRM_POLICIES[flush]
    return InSyncReplicas(local, in_sync_replicas) if replication == SYNC else local
