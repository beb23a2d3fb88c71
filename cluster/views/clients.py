"""Views of connected clients, and the state of one member of a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from store.message.json_text import parse_rocketmq_json
from store.message.validate import is_system_group

if TYPE_CHECKING:
    from cluster.client import Admin

GROUPS_MAX = 500
"""Consumer groups whose members are listed: each needs one request to each broker."""
MEMBERS_MAX = 50
"""Members whose queues are requested."""


@dataclass(frozen=True, slots=True)
class Client:
    """A connected client. `role` is "producer" or "consumer"."""

    client_id: str
    role: str
    group: str
    address: str
    language: str
    version: int


@dataclass(frozen=True, slots=True)
class Connected:
    """The connected clients; `groups_left_out` is the number of consumer groups that were not looked at."""

    clients: Sequence[Client]
    groups_left_out: int


@dataclass(frozen=True, slots=True)
class MemberState:
    """State of a member of a group.

    Attributes:
        queues: RocketMQ's ProcessQueueInfo of each queue that it holds, with topic, broker and queue id.
        properties: Its settings under RocketMQ's names.
        stack: The stacks of its threads; None if they were not requested or it does not send them.
    """

    group: str
    client_id: str
    queues: Sequence[Mapping[str, Any]]
    properties: Mapping[str, Any]
    stack: str | None


@dataclass(frozen=True, slots=True)
class QueueOwner:
    """A queue of a group, the member that holds it, and the generation of its last assignment.

    What is unknown is None: the owner if no member reports the queue, the generation with RocketMQ's brokers
    and for members that assign the queues among themselves.
    """

    topic: str
    broker: str
    queue: int
    owner: str | None
    generation: int | None


def queue_owners(admin: Admin, group: str) -> list[QueueOwner]:
    """Return the owners of the queues of a group, as they report them. Raises `ClientError`."""
    # Imported here, because the command line imports views before it needs a client.
    from cluster.client.errors import ClientError, NotSupported, PermissionDenied

    online = admin.group_connection(group)
    owners: dict[tuple[str, str, int], str] = {}
    for each in (online.connections if online else ())[:MEMBERS_MAX]:
        try:
            held = member_state(admin, group, each.client_id).queues
        except ClientError:  # it does not respond, or has just left
            continue
        for queue in held:
            if not queue.get("droped"):
                owners[str(queue["topic"]), str(queue["brokerName"]), int(queue["queueId"])] = each.client_id
    try:
        generations = {
            (queue.topic, queue.broker_name, queue.queue_id): number
            for queue, number in admin.queue_generations(group).items()
        }
    except (NotSupported, PermissionDenied):
        generations = {}
    found = sorted(owners.keys() | generations.keys())
    return [QueueOwner(*key, owners.get(key), generations.get(key)) for key in found]


def list_clients(admin: Admin) -> Connected:
    """Return producers, and the members of the first GROUPS_MAX consumer groups. Raises `ClientError`."""
    found = [
        Client(each.client_id, "producer", group, each.remote_ip.lstrip("/"), each.language, each.version)
        for group, producers in admin.all_producers().items()
        for each in producers
    ]
    groups = [group for group in admin.groups() if not is_system_group(group)]
    for group in groups[:GROUPS_MAX]:
        online = admin.group_connection(group)
        found += [
            Client(each.client_id, "consumer", group, each.client_addr, each.language, each.version)
            for each in (online.connections if online else ())
        ]
    return Connected(found, max(len(groups) - GROUPS_MAX, 0))


def member_info(admin: Admin, group: str, client_id: str, *, stack: bool = False) -> dict[str, Any]:
    """Return RocketMQ's ConsumerRunningInfo. Raises `ClientError`; DataDamaged if it is invalid."""
    # Imported here, because the command line imports views before it needs a client.
    from cluster.client.errors import DataDamaged

    try:
        info = parse_rocketmq_json(admin.running_info(group, client_id, stack=stack))
        info["mqTable"], info["properties"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataDamaged(
            f"member {client_id!r} of group {group!r} sent an invalid state: {error}"
        ) from error
    return info


def member_state(admin: Admin, group: str, client_id: str, *, stack: bool = False) -> MemberState:
    """Return the state of a member, with the stacks of its threads if `stack`.

    Raises `ClientError`; DataDamaged if its response is invalid.
    """
    info = member_info(admin, group, client_id, stack=stack)
    queues = [{**parse_rocketmq_json(queue.encode()), **state} for queue, state in info["mqTable"].items()]
    return MemberState(group, client_id, queues, info["properties"], info.get("jstack"))
