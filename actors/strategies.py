"""How the queues of a topic are shared out among the members of a group: RocketMQ's AllocateMessageQueue
strategies.

All sort their input – queues by topic, broker and id, clients by id – and give a client that is not in the
list nothing.
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
    """One way to share out."""

    @property
    def name(self) -> str:
        """RocketMQ's name for it."""
        ...

    def allocate(
        self, client_id: str, queues: Iterable[MessageQueue], client_ids: Collection[str]
    ) -> list[MessageQueue]:
        """The share of one client."""
        ...


class AllocateMessageQueueAveragely:
    """Neighbouring queues together; the first clients have one more where it does not come out even."""

    name = "AVG"

    def allocate(
        self, client_id: str, queues: Iterable[MessageQueue], client_ids: Collection[str]
    ) -> list[MessageQueue]:
        """The share of one client."""
        if client_id not in client_ids:
            return []
        ordered, clients = sorted(queues), sorted(client_ids)
        index = clients.index(client_id)
        size, rest = divmod(len(ordered), len(clients))
        start = index * size + min(index, rest)
        return ordered[start : start + size + (1 if index < rest else 0)]


class AllocateMessageQueueAveragelyByCircle:
    """Queues dealt out one by one, like cards."""

    name = "AVG_BY_CIRCLE"

    def allocate(
        self, client_id: str, queues: Iterable[MessageQueue], client_ids: Collection[str]
    ) -> list[MessageQueue]:
        """The share of one client."""
        if client_id not in client_ids:
            return []
        clients = sorted(client_ids)
        return sorted(queues)[clients.index(client_id) :: len(clients)]


class AllocateMessageQueueConsistentHash:
    """Clients stand on a ring several times; a queue belongs to the next one. Few queues move when one
    joins or leaves.
    """

    name = "CONSISTENT_HASH"

    def __init__(self, virtual_nodes: int = VIRTUAL_NODES) -> None:
        self._virtual_nodes = virtual_nodes

    def allocate(
        self, client_id: str, queues: Iterable[MessageQueue], client_ids: Collection[str]
    ) -> list[MessageQueue]:
        """The share of one client."""
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
    # MD5 because RocketMQ's clients place queues by it; nothing secret is at stake.
    digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:_HASH_BYTES], "big")


class AllocateMessageQueueByMachineRoom:
    """Only queues of brokers named `room@name` in the rooms that are given, averagely."""

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Collection[str]) -> None:
        self._rooms = frozenset(rooms)

    def allocate(
        self, client_id: str, queues: Iterable[MessageQueue], client_ids: Collection[str]
    ) -> list[MessageQueue]:
        """The share of one client."""
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
    """The room of a broker or client that is named `room-rest`."""
    return name.partition("-")[0]


class AllocateMachineRoomNearby:
    """A room's queues to the clients in that room; those of rooms without clients to all clients."""

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
        """RocketMQ's name for it, with that of the strategy within a room."""
        return f"MACHINE_ROOM_NEARBY-{self._inner.name}"

    def allocate(
        self, client_id: str, queues: Iterable[MessageQueue], client_ids: Collection[str]
    ) -> list[MessageQueue]:
        """The share of one client."""
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
    """A fixed list."""

    name = "CONFIG"

    def __init__(self, queues: Sequence[MessageQueue]) -> None:
        self._queues = list(queues)

    def allocate(
        self, client_id: str, queues: Iterable[MessageQueue], client_ids: Collection[str]
    ) -> list[MessageQueue]:
        """The list, whoever asks."""
        return list(self._queues)


def make_strategy(text: str) -> AllocateMessageQueueStrategy:
    """The strategy of this name, ours or RocketMQ's; raises ValueError where there is none.

    `averagely`, `averagely_by_circle`, `consistent_hash`, `machine_room:ROOM,ROOM`,
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
        f"no strategy is named {text!r}: averagely, averagely_by_circle, consistent_hash, "
        f"machine_room:ROOM,…, machine_room_nearby[:INNER] and config:TOPIC/BROKER/ID,… are"
    )


def _queue(text: str) -> MessageQueue:
    parts = text.strip().split("/")
    if len(parts) != 3 or not all(parts) or not parts[2].isdecimal():
        raise ValueError(f"{text.strip()!r} is no queue: TOPIC/BROKER/ID, such as orders/broker-a/0")
    return MessageQueue(parts[0], parts[1], int(parts[2]))


_PLAIN: Final[Mapping[str, AllocateMessageQueueStrategy]] = {
    "averagely": AllocateMessageQueueAveragely(),
    "avg": AllocateMessageQueueAveragely(),
    "averagely_by_circle": AllocateMessageQueueAveragelyByCircle(),
    "avg_by_circle": AllocateMessageQueueAveragelyByCircle(),
    "consistent_hash": AllocateMessageQueueConsistentHash(),
}


def share_out(
    strategy: AllocateMessageQueueStrategy, queues: Collection[MessageQueue], client_ids: Collection[str]
) -> dict[MessageQueue, str]:
    """Who is to have which queue; a queue that two would get is the first one's."""
    owner_of: dict[MessageQueue, str] = {}
    for client_id in sorted(client_ids):
        for queue in strategy.allocate(client_id, queues, client_ids):
            if queue in queues:
                owner_of.setdefault(queue, client_id)
    return owner_of
