"""Copies of the store bindings in the cluster's home directory, so that they outlive Ray."""

from __future__ import annotations

from actors.host import store_binding
from actors.host.store_binding import StoreBinding
from cluster.control.kept_records import KeptRecords

_REMEDY = (
    "restore it from a backup, or delete it: without it and without the record in Ray, the broker may start "
    "with an empty store on another node than the one that holds its messages"
)
exchange = KeptRecords(store_binding.PREFIX, "elastic", StoreBinding.decode, _REMEDY).exchange


def in_use(namespace: str) -> list[str]:
    """Return the elastic brokers that were not removed. They do not run if the head was lost."""
    return [actor for actor, binding in store_binding.find_all(namespace).items() if binding.is_in_use]
