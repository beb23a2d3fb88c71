"""The sends and the index of lite topics as a feature of its own."""

from __future__ import annotations

from actors.broker.core.capability import Capability, Feature
from actors.broker.core.parts import BrokerParts
from actors.broker.core.role import Role, RoleService
from actors.broker.features.lite.lite_sends import LiteSends
from store.lite.lite_index import LiteIndex
from tests.actors.broker.brokers import Peer

OPENED: list[LiteIndex] = []


def lite_feature() -> Feature:
    def build(parts: BrokerParts) -> Capability:
        loop = parts.loop
        sends = LiteSends(loop.store, loop.reads, parts.tables.topics, OPENED[-1])
        service = RoleService("lite-sends", frozenset({Role.MASTER}), sends.start, sends.stop)
        return Capability(interceptors=(sends,), services=(service,))

    def sinks(root: object, settings: object) -> tuple[LiteIndex]:
        OPENED.append(LiteIndex(root))  # type: ignore[arg-type]
        return (OPENED[-1],)

    return Feature(build, sinks=sinks)


def index_of(peer: Peer) -> LiteIndex:
    """Return the index of the broker that was opened last."""
    peer.store.dispatch_now()
    return OPENED[-1]
