"""The table of deliberate mistakes in consensus core, driver, files and log of a Raft group."""

from __future__ import annotations

from tests.mutation.mutant import STORE, Mutation
from tests.mutation.table_of_core import OF_CORE
from tests.mutation.table_of_owner import OF_OWNER

MUTATIONS = (*OF_CORE, *OF_OWNER)
__all__ = ["MUTATIONS", "STORE", "Mutation"]
