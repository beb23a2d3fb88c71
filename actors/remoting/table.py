"""The declarative table of requests: code → handler, header type, resource, action, cost.

Access control, metrics, fast failure and the generated docs hang on these entries, not on the handlers.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from actors.remoting.frame import CodeMarks
from actors.remoting.request import COSTLY, Action, Cost, Handler, HeaderType, RequestEntry, Resource


class RequestRow(NamedTuple):
    """One row: what a capability declares of a request that it handles."""

    code: int
    handler: Handler
    header_type: HeaderType | None = None
    resource: Resource = Resource.NONE
    action: Action = Action.NONE
    cost: Cost = Cost.ADMIN


class RequestTable:
    """All requests that a process answers."""

    def __init__(self) -> None:
        self._entries: dict[int, RequestEntry] = {}
        self.costly_codes = CodeMarks()

    def add(
        self,
        code: int,
        handler: Handler,
        header_type: HeaderType | None = None,
        *,
        resource: Resource = Resource.NONE,
        action: Action = Action.NONE,
        cost: Cost = Cost.ADMIN,
    ) -> None:
        """Answer this code with this handler; a code stands in the table once. Raises ValueError."""
        if code in self._entries:
            raise ValueError(f"request code {code} is in the table already")
        self._entries[int(code)] = RequestEntry(code, handler, header_type, resource, action, cost)
        if cost in COSTLY:
            self.costly_codes.add(int(code))

    def add_rows(self, rows: Iterable[RequestRow]) -> None:
        """Add the rows of one capability. Raises ValueError as `add` does."""
        for row in rows:
            self.add(
                row.code,
                row.handler,
                row.header_type,
                resource=row.resource,
                action=row.action,
                cost=row.cost,
            )

    @property
    def entries(self) -> Mapping[int, RequestEntry]:
        """The rows by code."""
        return self._entries

    def __iter__(self) -> Iterator[RequestEntry]:
        return iter(self._entries.values())

    def __contains__(self, code: int) -> bool:
        return code in self._entries
