"""TableSpec: all that is declared about one replicated table of a broker.

    master  ──copy──→ slave                                 (`replication.metadata_sync`)
    leader  ──entries──→ log of the group ──→ followers     (`replication.raft.meta_log`)

`replication.table_specs` lists the tables of every broker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from store.common.clock import Clock

if TYPE_CHECKING:  # they have the specs
    from actors.broker.core.parts import BrokerParts

Apply = Callable[[Any], Awaitable[None] | bool | None]
"""Applies a copied table; False: not now, after a later copy."""


class Entries(Protocol):
    """The entries of one table as JSON values, by name. A value equals itself after it was logged."""

    def all(self) -> dict[str, Any]:
        """Return all entries by name."""

    def get(self, name: str) -> Any:
        """Return the value of an entry; None if it does not exist."""

    def put(self, name: str, value: Any) -> None:
        """Create or replace an entry; with None, remove it. Raises ValueError if the value is invalid."""

    def version(self) -> object:
        """Return a value that differs after each change."""


@dataclass(frozen=True, slots=True)
class TableCopy:
    """How a slave gets a table of its master."""

    code: int
    """The request of the table."""
    decode: Callable[[bytes, Clock], Any]
    """Decodes the response; called in a thread."""
    apply: Callable[[BrokerParts], Apply | None]
    """Returns the function that applies the table to a slave; None if the slave does not use it."""
    version: Callable[[BrokerParts], int] | None = None
    """Returns a number that increases with each change: then slaves copy the table at once."""
    follows_log: bool = False
    """True if it refers to the log: it waits until the slave has confirmed what the master had."""


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One replicated table."""

    name: str
    """The kind of its entries in the log of a Raft group."""
    entries: Callable[[BrokerParts], Entries | None] | None = None
    """Returns the entries that a Raft group logs; None if the broker does not use them."""
    copy: TableCopy | None = None
    is_definition: bool = False
    """True if a change is logged at once, before the message that needs it.

    Else once per second, or with the response of the request that made it (`RequestRow.changes`).
    """
    of_topics: bool = False
    """True if the names begin with that of a topic (`topic@group`), with which they are deleted."""
    is_acked: bool = False
    """True if changes are logged once per turn with the acks that made them (`HeldAcks`)."""
    is_leaders: bool = False
    """True if only the leader has the entries: other replicas put none into their table."""
