"""Assignment strategies: RocketMQ's AllocateMessageQueueStrategy classes.

A strategy assigns the queues of a topic to the members of a group. All strategies sort their input (queues by
topic, broker and id; clients by id) and assign no queue to a client that is not in the list.
"""

import hashlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol

from store.message.message_queue import MessageQueue

VIRTUAL_NODES: Final = 10
_HASH_BYTES: Final = 4

Room = Callable[[str], str]


class AllocateMessageQueueStrategy(Protocol):
    """A strategy that assigns queues to the members of a group."""

    @property
    def name(self) -> str:
        """RocketMQ's name of the strategy."""

    def allocate(
        self, client_id: str, queues: Iterable[MessageQueue], client_ids: Collection[str]
    ) -> list[MessageQueue]:
        """Return the queues that are assigned to `client_id`."""


class AllocateMessageQueueAveragely:
    """Assign consecutive queues to each client.

    If the numbers do not divide evenly, the first clients get one more.
    """

    name = "AVG"

    def allocate(
        self, client_id: str, queues: Iterable[MessageQueue], client_ids: Collection[str]
    ) -> list[MessageQueue]:
        """Return the queues that are assigned to `client_id`."""
        if client_id not in client_ids:
            return []
        ordered, clients = sorted(queues), sorted(client_ids)
        index = clients.index(client_id)
        size, rest = divmod(len(ordered), len(clients))
        start = index * size + min(index, rest)
        return ordered[start : start + size + (1 if index < rest else 0)]


class AllocateMessageQueueAveragelyByCircle:
    """Assign the queues to the clients round-robin."""

    name = "AVG_BY_CIRCLE"

    def allocate(
        self, client_id: str, queues: Iterable[MessageQueue], client_ids: Collection[str]
    ) -> list[MessageQueue]:
        """Return the queues that are assigned to `client_id`."""
        if client_id not in client_ids:
            return []
        clients = sorted(client_ids)
        return sorted(queues)[clients.index(client_id) :: len(clients)]


class AllocateMessageQueueConsistentHash:
    """Assign each queue to the next client on a hash ring, on which each client has several virtual nodes.

    Few queues move when a client joins or leaves.
    """

    name = "CONSISTENT_HASH"

    def __init__(self, virtual_nodes: int = VIRTUAL_NODES) -> None:
        self._virtual_nodes = virtual_nodes

    def allocate(
        self, client_id: str, queues: Iterable[MessageQueue], client_ids: Collection[str]
    ) -> list[MessageQueue]:
        """Return the queues that are assigned to `client_id`."""
        if client_id not in client_ids:
            return []
        ring = {
            _ring_hash(f"{client}-{replica}"): client
            for client in sorted(client_ids)
            for replica in range(self._virtual_nodes)
        }
        places = sorted(ring)
        return [
            queue
            for queue in sorted(queues)
            if ring[places[bisect_left(places, _ring_hash(str(queue))) % len(places)]] == client_id
        ]


def _ring_hash(text: str) -> int:
    # MD5 because RocketMQ's clients use it; it protects no secret.
    digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:_HASH_BYTES], "big")


class AllocateMessageQueueByMachineRoom:
    """Assign only the queues of brokers named `room@name` in the given rooms.

    Each client gets consecutive queues.
    """

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Collection[str]) -> None:
        self._rooms = frozenset(rooms)

    def allocate(
        self, client_id: str, queues: Iterable[MessageQueue], client_ids: Collection[str]
    ) -> list[MessageQueue]:
        """Return the queues that are assigned to `client_id`."""
        if client_id not in client_ids:
            return []
        ours = [queue for queue in sorted(queues) if self._is_ours(queue)]
        clients = sorted(client_ids)
        index = clients.index(client_id)
        size, rest = divmod(len(ours), len(clients))
        share = ours[size * index : size * (index + 1)]
        if index < rest:
            share.append(ours[index + size * len(clients)])
        return share

    def _is_ours(self, queue: MessageQueue) -> bool:
        room, at, name = queue.broker_name.partition("@")
        return bool(at) and "@" not in name and room in self._rooms


def room_before_dash(name: str) -> str:
    """Return the machine room of a broker or client named `room-rest`."""
    return name.partition("-")[0]


class AllocateMachineRoomNearby:
    """Assign the queues of a machine room to the clients in that room.

    Queues of rooms without clients are assigned to all clients.
    """

    def __init__(
        self,
        inner: AllocateMessageQueueStrategy,
        room_of_broker: Room = room_before_dash,
        room_of_client: Room = room_before_dash,
    ) -> None:
        self._inner = inner
        self._room_of_broker = room_of_broker
        self._room_of_client = room_of_client

    @property
    def name(self) -> str:
        """RocketMQ's name of the strategy, with the name of the strategy used within a room."""
        return f"MACHINE_ROOM_NEARBY-{self._inner.name}"

    def allocate(
        self, client_id: str, queues: Iterable[MessageQueue], client_ids: Collection[str]
    ) -> list[MessageQueue]:
        """Return the queues that are assigned to `client_id`."""
        if client_id not in client_ids:
            return []
        queues_of: dict[str, list[MessageQueue]] = defaultdict(list)
        clients_in: dict[str, list[str]] = defaultdict(list)
        for queue in sorted(queues):
            queues_of[self._room_of_broker(queue.broker_name)].append(queue)
        for client in sorted(client_ids):
            clients_in[self._room_of_client(client)].append(client)
        own_room = self._room_of_client(client_id)
        share = self._inner.allocate(client_id, queues_of.pop(own_room, ()), clients_in[own_room])
        for room in sorted(queues_of):
            if room not in clients_in:
                share += self._inner.allocate(client_id, queues_of[room], client_ids)
        return share


class AllocateMessageQueueByConfig:
    """Assign a fixed list of queues to every client."""

    name = "CONFIG"

    def __init__(self, queues: Sequence[MessageQueue]) -> None:
        self._queues = list(queues)

    def allocate(
        self, client_id: str, queues: Iterable[MessageQueue], client_ids: Collection[str]
    ) -> list[MessageQueue]:
        """Return the configured queues, for any client."""
        return list(self._queues)


def make_strategy(text: str) -> AllocateMessageQueueStrategy:
    """Return the strategy with this name. Raises ValueError if the name is unknown.

    Names: `averagely`, `averagely_by_circle`, `consistent_hash`, `machine_room:ROOM,ROOM`,
    `machine_room_nearby[:INNER]`, `config:TOPIC/BROKER/ID,TOPIC/BROKER/ID`.
    """
    name, _, argument = text.partition(":")
    name = name.lower()
    if name in _PLAIN and not argument:
        return _PLAIN[name]
    if name == "machine_room" and argument:
        return AllocateMessageQueueByMachineRoom([room.strip() for room in argument.split(",")])
    if name == "machine_room_nearby":
        return AllocateMachineRoomNearby(make_strategy(argument or "averagely"))
    if name == "config" and argument:
        return AllocateMessageQueueByConfig([_queue(part) for part in argument.split(",")])
    raise ValueError(
        f"unknown strategy {text!r}: use averagely, averagely_by_circle, consistent_hash, "
        f"machine_room:ROOM,…, machine_room_nearby[:INNER] or config:TOPIC/BROKER/ID,…"
    )


def _queue(text: str) -> MessageQueue:
    parts = text.strip().split("/")
    if len(parts) != 3 or not all(parts) or not parts[2].isdecimal():
        raise ValueError(
            f"{text.strip()!r} is not a valid queue: use TOPIC/BROKER/ID, such as orders/broker-a/0"
        )
    return MessageQueue(parts[0], parts[1], int(parts[2]))


_PLAIN: Final[Mapping[str, AllocateMessageQueueStrategy]] = {
    "averagely": AllocateMessageQueueAveragely(),
    "avg": AllocateMessageQueueAveragely(),
    "averagely_by_circle": AllocateMessageQueueAveragelyByCircle(),
    "avg_by_circle": AllocateMessageQueueAveragelyByCircle(),
    "consistent_hash": AllocateMessageQueueConsistentHash(),
}


def assign_queues(
    strategy: AllocateMessageQueueStrategy, queues: Collection[MessageQueue], client_ids: Collection[str]
) -> dict[MessageQueue, str]:
    """Return the client to which each queue is assigned.

    A queue that the strategy assigns to several clients goes to the first of them.
    """
    owner_of: dict[MessageQueue, str] = {}
    for client_id in sorted(client_ids):
        for queue in strategy.allocate(client_id, queues, client_ids):
            if queue in queues:
                owner_of.setdefault(queue, client_id)
    return owner_of
