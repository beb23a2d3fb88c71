"""Store bindings: which node holds the store of an elastic broker. Kept in Ray's key-value store.

Ray may restart an elastic broker on any node with a free slot. The binding prevents that it starts there with
an empty store and hides the messages of its first store: a bound broker starts only if it finds its store, on
the same node, on another node that mounts the same disk, or after the binding was released.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import orjson

from actors.host import ray_port
from store.common.logs import get_logger
from store.ownership.identity import read_name
from store.store_errors import StoreError

PREFIX = "store:"

_log = get_logger(__name__)


class StoreElsewhere(StoreError):
    """The store of an elastic broker is on another node. The message names both nodes and the remedy."""


@dataclass(frozen=True)
class StoreBinding:
    """Place of an elastic broker's store.

    Attributes:
        node_ip: Address of the node.
        store: Directory of the store.
        is_released: True if the broker may start with an empty store: it was drained, or a user decided so.
        unread: Messages that each offline group had not read when the broker was drained, by group.
    """

    node_ip: str
    store: str
    is_released: bool = False
    unread: dict[str, int] | None = None

    @property
    def is_in_use(self) -> bool:
        """Return True if the broker was not removed or released: its store may have unread messages."""
        return not self.is_released and self.unread is None

    def encode(self) -> bytes:
        """Return the binding as JSON."""
        return orjson.dumps(asdict(self))

    @classmethod
    def decode(cls, data: bytes) -> StoreBinding:
        """Return the binding that `encode` encoded. Raises ValueError or TypeError for damaged data."""
        return cls(**orjson.loads(data))


def find(namespace: str, actor: str) -> StoreBinding | None:
    """Return the binding of an elastic broker; None if it has never had a store."""
    found = ray_port.recall(namespace, PREFIX + actor)
    return None if found is None else StoreBinding.decode(found)


def find_all(namespace: str) -> dict[str, StoreBinding]:
    """Return the bindings of all elastic brokers of a namespace, by actor name."""
    names = [key.removeprefix(PREFIX) for key in ray_port.recalled_keys(namespace, PREFIX)]
    return {name: binding for name in names if (binding := find(namespace, name)) is not None}


def save(namespace: str, actor: str, binding: StoreBinding) -> None:
    """Save the binding of an elastic broker."""
    ray_port.remember(namespace, PREFIX + actor, binding.encode())


def release(namespace: str, actor: str) -> bool:
    """Permit a broker to start with an empty store on another node. Return False if it has no binding."""
    binding = find(namespace, actor)
    if binding is None:
        return False
    save(namespace, actor, replace(binding, is_released=True))
    return True


def record_removal(namespace: str, actor: str, unread: Mapping[str, int]) -> None:
    """Record that a broker was drained and removed, and what offline groups have not read, by group.

    Without unread messages its binding is released.
    """
    binding = find(namespace, actor)
    if binding is not None:
        save(namespace, actor, replace(binding, is_released=not unread, unread=dict(unread) or None))


def bind(namespace: str, actor: str, node_ip: str, store: Path) -> None:
    """Bind a starting broker to this node before it opens or creates its store.

    Raises StoreElsewhere if it is bound to another place and its store is not found here.
    """
    found = find(namespace, actor)
    binding = StoreBinding(node_ip, str(store))
    if not may_start(found, has_store=read_name(store) is not None):
        assert found is not None
        raise StoreElsewhere(
            f"the store of {actor} is {found.store} on node {found.node_ip}, but Ray started the broker on "
            f"node {node_ip}: start node {found.node_ip} again and repeat `raymq up`, or give up its "
            f"messages with `raymq autoscale release {actor.removesuffix('-0')}`"
        )
    if binding != found:
        save(namespace, actor, binding)
        _log.info("store_bound", actor=actor, node=node_ip, store=str(store))


def may_start(binding: StoreBinding | None, *, has_store: bool) -> bool:
    """Return True if a broker with this binding may start where it has, or has not, found a store."""
    return has_store or binding is None or binding.is_released
