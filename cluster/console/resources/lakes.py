"""Resources of lakes: the tables of topics."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cluster.client import Admin
from cluster.console.rights import Rights
from cluster.console.routes import route
from cluster.control.lake_rows import LakeRow

FindLakes = Callable[[], Sequence[LakeRow]]


class LakeResources:
    """The tables of topics."""

    def __init__(self, find: FindLakes | None, rights: Rights) -> None:
        self._find = find
        self._rights = rights

    @route("GET", "/lakes", "lake status")
    def lakes(self, admin: Admin) -> Sequence[LakeRow] | None:
        """Return the tables, as the lakes report them; null outside of Ray. Raises ClientError, ApiError."""
        self._rights.check_sees_cluster(admin)
        return None if self._find is None else self._find()
