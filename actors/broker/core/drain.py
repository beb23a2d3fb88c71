"""BrokerDrain: drains a broker before it is stopped.

    ACTIVE ──start()──> DRAINING ──close()──> CLOSED
      ^──────── cancel(), or the lease expires ──┘
    ACTIVE ──hold()───> DRAINING ──QUIET_MS without a send──> CLOSED ──cancel()──> ACTIVE

DRAINING  the broker is registered as not writable; sends are still accepted, because producers refresh their
          routes only every 30 s
CLOSED    sends are refused with a code that makes producers use another broker; consumers still read

A command that drains the broker repeats `start` or `close`, which renews the lease of the drain. If it does
not for `LEASE_MS`, it has probably died: the drain is cancelled and the broker becomes writable again. A
drain begun with `hold` has no lease: it lasts until it is cancelled or the broker restarts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from actors.broker.core.group.clients import Clients
from actors.broker.core.group.group_progress import GroupProgress
from actors.broker.core.loop.reads import Reads
from actors.broker.core.metadata.tables import BrokerTables
from actors.broker.core.metadata.topics import SCHEDULE_TOPIC
from actors.broker.core.stats import BrokerStats
from actors.transport.connection import Connection
from actors.wire.bodies.routes import PERM_READ
from store.common.clock import NS_PER_MS, Clock
from store.common.logs import get_logger
from store.message_store import MessageStore

_log = get_logger(__name__)

LEASE_MS = 30_000
QUIET_MS = 3_000
"""Time without a send after which a drain begun with `hold` refuses sends."""
QUEUES_PER_TURN = 256
"""`progress` lets other requests run after this many queues."""


class DrainState(StrEnum):
    """The state of a drain."""

    ACTIVE = "active"
    DRAINING = "draining"
    CLOSED = "closed"


@dataclass(slots=True)
class UnreadMessages:
    """The unread messages of one group on this broker; `members` is 0 for a group that is offline."""

    group: str
    members: int
    unread: int = 0
    topics: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a JSON object."""
        return {"group": self.group, "members": self.members, "unread": self.unread, "topics": self.topics}


class BrokerDrain:
    """Drains one broker, and counts the messages that consumer groups have not read yet."""

    def __init__(
        self,
        store: MessageStore,
        reads: Reads,
        tables: BrokerTables,
        clients: Clients[Connection],
        progress: GroupProgress,
        stats: BrokerStats,
        clock: Clock,
    ) -> None:
        self.state = DrainState.ACTIVE
        self._store = store
        self._reads = reads
        self._topics = tables.topics
        self._offsets = tables.offsets
        self._clients = clients
        self._progress = progress
        self._stats = stats
        self._clock = clock
        self._begin_ns = clock.monotonic_ns()
        self._renewed_ns = 0
        self._is_held = False
        self._messages_in = 0
        self._quiet_since_ns = 0

    @property
    def is_held(self) -> bool:
        """True during a drain that `hold` has begun."""
        return self._is_held

    def start(self) -> None:
        """Start the drain: register the broker as not writable."""
        self._renewed_ns = self._clock.monotonic_ns()
        if self.state is DrainState.ACTIVE:
            self._become(DrainState.DRAINING)
            self._topics.advertise(is_writable=False)

    def close(self) -> None:
        """Refuse sends from now on; starts the drain if it has not been started."""
        self.start()
        self._become(DrainState.CLOSED)
        self._topics.is_closed_to_senders = True

    def hold(self) -> None:
        """Start a drain without a lease, which refuses sends when none has arrived for `QUIET_MS`."""
        self._is_held = True
        self._quiet_since_ns = self._clock.monotonic_ns()
        self.start()

    def cancel(self) -> None:
        """Cancel the drain: register the broker as writable and accept sends."""
        self._is_held = False
        if self.state is not DrainState.ACTIVE:
            self._become(DrainState.ACTIVE)
            self._topics.is_closed_to_senders = False
            self._topics.advertise(is_writable=True)

    def sweep(self) -> None:
        """Cancel a drain whose lease has expired, close a held one; to be called a few times per second."""
        now_ns = self._clock.monotonic_ns()
        if self._is_held:
            self._close_when_quiet(now_ns)
        elif self.state is not DrainState.ACTIVE and now_ns - self._renewed_ns > LEASE_MS * NS_PER_MS:
            _log.warning("drain_lease_expired", lease_ms=LEASE_MS)
            self.cancel()

    def _close_when_quiet(self, now_ns: int) -> None:
        messages_in = self._stats.put_total.messages
        if messages_in != self._messages_in:
            self._messages_in, self._quiet_since_ns = messages_in, now_ns
        elif self.state is DrainState.DRAINING and now_ns - self._quiet_since_ns >= QUIET_MS * NS_PER_MS:
            self.close()

    async def progress(self) -> dict[str, Any]:
        """Return the progress of the drain.

        Returns:
            state, up_s (age of this process), messages_in, producers (connected), and groups: for each online
            group, and each offline group with unread messages, the fields of `UnreadMessages`.
        """
        await self._reads.caught_up()  # acknowledged messages count before they are dispatched
        found = [await self._unread(*each) for each in self._progress.topics_by_group().items()]
        groups = [each for each in found if each.members or each.unread]
        producers = sum(len(list(self._clients.producers(name))) for name in self._clients.producer_groups())
        return {
            "state": str(self.state),
            "up_s": (self._clock.monotonic_ns() - self._begin_ns) / 1e9,
            "messages_in": self._stats.put_total.messages,
            "producers": producers,
            "groups": [each.to_json() for each in groups],
        }

    def _become(self, state: DrainState) -> None:
        _log.info("drain_state_changed", state=str(state), previous=str(self.state))
        self.state = state

    async def _unread(self, name: str, topics: Iterable[str]) -> UnreadMessages:
        online = self._clients.group(name)
        found = UnreadMessages(name, 0 if online is None else len(online.members))
        if self._progress.keeps_offsets(name):
            for topic in topics:
                await self._count(found, topic)
        return found

    async def _count(self, progress: UnreadMessages, topic: str) -> None:
        known = self._topics.find(topic)
        if known is None or not known.perm & PERM_READ or topic == SCHEDULE_TOPIC:
            return
        unread = 0
        for queue_id in range(known.read_queue_nums):
            begin = self._progress.begin(progress.group, topic, queue_id)
            if begin is None and progress.members:  # it may be about to read the whole queue
                begin = self._store.min_offset(topic, queue_id)
            unread += self._offsets.claimed[topic, progress.group, queue_id]
            if begin is not None:
                unread += max(self._store.max_offset(topic, queue_id) - begin, 0)
            if queue_id % QUEUES_PER_TURN == QUEUES_PER_TURN - 1:
                await asyncio.sleep(0)
        if unread:
            progress.topics[topic] = unread
            progress.unread += unread
        await asyncio.sleep(0)
