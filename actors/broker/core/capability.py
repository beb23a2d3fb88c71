"""Feature and Capability: how a feature adds handlers, steps, sinks and services to the broker.

    Feature ──sinks──> MessageStore.open
       └─────build(parts)──> Capability: rows, steps, observers, interceptors, services, figures

The store is opened before the other parts of the broker exist, because they read it. So the sinks of a
feature exist before its Capability. `actors.broker.features.built_in` lists the features of every broker;
`BrokerService(features=…)` adds more.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from actors.bounds import Keeper
from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.feature_table import FeatureTable
from actors.broker.core.loop.log_history import PastPositions
from actors.broker.core.loop.turn import TurnStep
from actors.broker.core.parts import BrokerParts
from actors.broker.core.role import RoleService
from actors.broker.core.sending.interceptors import SendInterceptor
from actors.broker.core.sending.plain_sends import LiteOffsets
from actors.host.figures import Figure
from actors.transport.chain import Step
from actors.transport.request import Observer, RequestRow
from store.commitlog.positions import Callback, ConfirmPolicy
from store.common.clock import Clock
from store.dispatch.sink import DispatchSink
from store.message_store import MessageStore

OpenStore = Callable[[ConfirmPolicy], MessageStore]


@dataclass(frozen=True, slots=True)
class Capability:
    """What one feature adds to a broker, in the order in which a request meets it."""

    rows: Sequence[RequestRow] = ()
    """The requests that the feature handles; each code has one handler."""
    steps: Sequence[Step] = ()
    """Run for every request, after access control and admission."""
    observers: Sequence[Observer] = ()
    """Called with every response."""
    steps_skip_sends: bool = False
    """True if sends need no step and no observer of this feature while the store's gate for them is open.

    Then the broker handles plain sends without calling them (`actors.broker.core.sending.plain_sends`); a
    feature can close the gate (`store.writing.send_gate`). If False, steps and observers are called for all
    sends, and `compiled_turn` has no effect.
    """
    interceptors: Sequence[SendInterceptor] = ()
    """Called for each message before its append."""
    lite: LiteOffsets | None = None
    """Assigns the offsets of lite messages that take the compiled path of sends; one feature has it."""
    turn_steps: Sequence[TurnStep] = ()
    """Run at the end of each turn, behind the steps that they name. Then no turn is skipped (`Turn`)."""
    services: Sequence[RoleService] = ()
    """Started and stopped with the broker's role; the broker registers after the last one has started."""
    leave: Callable[[], Awaitable[None]] | None = None
    """Awaited when the broker is being stopped, while it still serves all requests."""
    forget_topic: Callable[[str, Callback], object] | None = None
    """Removes the queues of a deleted topic instead of the store, when its records are dispatched."""
    past: PastPositions | None = None
    """Finds the positions that consumers have from another past of the log; one feature has it."""
    is_elected: bool = False
    """True if the replicas of the broker elect their master.

    It starts as a slave, and a former master stays in the routes until the next one has registered.
    """
    figures: Sequence[Figure] = ()
    """Shown with those of the broker. No other figure has the same name."""
    keepers: Sequence[Keeper] = ()
    """The objects of the feature whose state peers can fill; the uses of their bounds are shown."""

    @property
    def needs_all_sends(self) -> bool:
        """True if a step or observer must be called for every send."""
        return not self.steps_skip_sends and bool(self.steps or self.observers)


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of one broker."""

    build: Callable[[BrokerParts], Capability]
    """Creates the objects of the feature, once, before the broker accepts connections."""
    sinks: Callable[[Path, BrokerSettings], Sequence[DispatchSink]] = lambda root, settings: ()
    """Returns the sinks, which receive every record of the store at `root`, from its recovery on."""
    tables: Sequence[FeatureTable] = ()
    """The replicated tables of the feature; they are loaded before `build` is called."""
    open_store: Callable[[BrokerSettings, Clock, random.Random, OpenStore], MessageStore] | None = None
    """Opens the store with the confirm policy of the feature; one feature has it."""
