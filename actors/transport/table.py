"""RequestTable: declares handler, header type, targets and cost class of each request code.

Access control, metrics, load shedding and the generated docs read the rows, so handlers contain none of that.
"""

from collections.abc import Iterable, Iterator, Mapping

from actors.transport.request import COSTLY, Cost, Handler, HeaderType, RequestRow, Take
from actors.wire.frame import CodeMarks
from actors.wire.targets import Targets, no_targets


class RequestTable:
    """The requests that a process handles, by code."""

    def __init__(self, rows: Iterable[RequestRow] = ()) -> None:
        self._rows: dict[int, RequestRow] = {}
        self.costly_codes = CodeMarks()
        self.taken_codes = CodeMarks()
        self.take: Take | None = None
        self.add_rows(rows)

    def add(
        self,
        code: int,
        handler: Handler,
        header_type: HeaderType | None = None,
        *,
        targets: Targets = no_targets,
        cost: Cost = Cost.ADMIN,
    ) -> None:
        """Add one row. Raises ValueError if the table already has a row with this code."""
        self.add_rows((RequestRow(code, handler, header_type, targets, cost),))

    def add_rows(self, rows: Iterable[RequestRow]) -> None:
        """Add several rows. Raises ValueError if the table already has a row with one of the codes."""
        for row in rows:
            code = int(row.code)
            if code in self._rows:
                raise ValueError(
                    f"request code {code} is already registered: each code needs exactly one handler"
                )
            self._rows[code] = row
            if row.cost in COSTLY:
                self.costly_codes.add(code)
            if row.take is not None:
                self.taken_codes.add(code)
                self.take = row.take

    @property
    def rows(self) -> Mapping[int, RequestRow]:
        """The rows, by request code."""
        return self._rows

    def __iter__(self) -> Iterator[RequestRow]:
        return iter(self._rows.values())

    def __contains__(self, code: int) -> bool:
        return code in self._rows
