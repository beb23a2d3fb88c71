"""Which tests stay together where several workers run them (`pytest -n 2`): those that share a cluster."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

COSTLY = {
    "tests/cluster/demo/": "ray",
    "tests/cluster/test_ray": "ray",
    "tests/cluster/test_several_nodes": "ray",
    "tests/compat/": "java",
}
"""How the ids of tests begin that share a Ray cluster, or one with Java's clients."""


def group_of(nodeid: str) -> str:
    """The group of a test: what it shares, or else its file."""
    for beginning, group in COSTLY.items():
        if nodeid.startswith(beginning):
            return group
    return nodeid.partition("::")[0]


class GroupScheduling(LoadScopeScheduling):
    """Gives a worker one group after the other, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
