"""Group: the members of a consumer group and the owners of its queues. Pure: no sockets, no clock, no disk.

    free ── assigned to its target, under a new generation ──→ owned
      ↑                                                         │ target changes: the owner must release it
      └── the owner no longer reports it, or its lease expired ─┘

Fault model: requests and responses are lost, delayed, duplicated and reordered. Members stop, stall and
restart. This process is killed at any time and restarts with only the generations on disk. All clocks run at
the same speed. Under these faults a queue never has two owners with running leases. The rules that ensure it:

- A queue gets a new owner only after its owner has omitted it from a request, or has sent no request for the
  duration of its lease.
- A request that arrives after a later request of the same member (`sequence`) changes nothing.
- An omitted queue counts as released only if the request shows that the member had seen the grant
  (`generation`): an older request that arrives late cannot know of queues that were assigned since.
- The rebalancer counts a lease from the arrival of the request, the member from when it sent the request: the
  member's lease ends first.
- After a restart the queues that members report under a running lease are theirs. Nothing else is assigned
  until the longest lease from before the restart is over. (When the last self-assigning member has
  unregistered: until all other members have reported.) If two members report a queue, one report was delayed
  for too long: the later grant wins. A member that reports later that its lease is over loses the queue too.
- A queue whose lease is over may be reported again by its last owner if it had no other owner since.
- After a restart the first response to a member extends no lease, because its request may have been sent
  before the restart.
- A member that reports a free queue owns it, even if the queue is then revoked.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from actors.rebalancer.self_assigning import SelfAssigning
from actors.strategies import AllocateMessageQueueStrategy, assign_queues
from actors.wire.bodies.groups import AssignedQueue, GroupMembers, SyncGroupReply, SyncGroupRequest
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.common.clock import NS_PER_MS
from store.message.message_queue import MessageQueue
from store.message.validate import RETRY_TOPIC_PREFIX

# Returns the next generation for grants with a lease of this many milliseconds. Raises OSError.
NextGeneration = Callable[[int], int]


@dataclass(slots=True)
class _Member:
    """A member to which the rebalancer assigns queues."""

    subscriptions: dict[str, str] = field(default_factory=dict)
    expires_ns: int = 0
    is_leaving: bool = False
    sequence: int = 0


@dataclass(slots=True)
class _Ownership:
    """The owner of a queue, the generation of the grant, and when the lease expires."""

    client_id: str
    generation: int
    expires_ns: int
    is_reported: bool = False  # reported by its owner after a restart
    is_outdated: bool = False  # another member has owned it since: must be released


class Group:
    """State of one consumer group. Times are monotonic nanoseconds, passed in by the caller."""

    def __init__(
        self,
        name: str,
        strategy: AllocateMessageQueueStrategy,
        generation: int,
        next_generation: NextGeneration,
        recovering_until_ns: int = 0,
    ) -> None:
        self.name = name
        self.strategy = strategy
        self.generation = generation
        self._next_generation = next_generation
        self._first_generation = generation
        self._recovering_until_ns = recovering_until_ns
        # Members that have not reported since the last self-assigning member left; recovery ends with the
        # last.
        self._unreported: set[str] | None = None
        self._members: dict[str, _Member] = {}
        self._self_assigning = SelfAssigning()
        self._queues: dict[str, frozenset[MessageQueue]] = {}
        self._owners: dict[MessageQueue, _Ownership] = {}
        self._last: dict[MessageQueue, tuple[str, int]] = {}
        self._target: dict[MessageQueue, str] | None = None
        self._has_changed = False

    # ---- queries -----------------------------------------------------------------------------------

    @property
    def topics(self) -> frozenset[str]:
        """The topics to which its members subscribe."""
        return frozenset(topic for member in self._members.values() for topic in member.subscriptions)

    @property
    def is_self_assigning(self) -> bool:
        """Whether a member assigns queues to itself; then all members must."""
        return bool(self._self_assigning)

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._members or client_id in self._self_assigning

    @property
    def member_count(self) -> int:
        """Number of members."""
        return len(self._members) + len(self._self_assigning)

    @property
    def owned_count(self) -> int:
        """Number of queues that have an owner, or had one and may have it again."""
        return max(len(self._owners), len(self._last))

    def count_unknown(self, owned: Iterable[AssignedQueue]) -> int:
        """Return how many of these queues have no owner here."""
        return sum(each.queue not in self._owners for each in owned)

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members and no owned queues."""
        return not self._members and not self._owners and not self._self_assigning

    def members(self) -> GroupMembers:
        """Return the member list that all brokers and members receive."""
        return GroupMembers(tuple(sorted({*self._members, *self._self_assigning})), self.is_self_assigning)

    def take_change(self) -> bool:
        """Return True if the group has changed since the last call; its members must then send SYNC_GROUP."""
        had, self._has_changed = self._has_changed, False
        return had

    def is_recovering(self, now_ns: int) -> bool:
        """Return True if leases from before a restart may still run."""
        return now_ns < self._recovering_until_ns

    # ---- events ------------------------------------------------------------------------------------

    def set_strategy(self, strategy: AllocateMessageQueueStrategy) -> None:
        """Use `strategy` for all further assignments."""
        self.strategy = strategy
        self._target = None

    def set_queues(self, topic: str, queues: Iterable[MessageQueue]) -> None:
        """Set the current queues of a topic."""
        wanted = frozenset(queues)
        if self._queues.get(topic) != wanted:
            self._queues[topic] = wanted
            self._change()

    def sync(
        self, request: SyncGroupRequest, lease_ms: int, now_ns: int, allow_change: bool = False
    ) -> SyncGroupReply:
        """Process a SYNC_GROUP request: record what the member reports, and grant queues to it.

        Raises Refused if its subscriptions differ from those of other members, and OSError if a new
        generation cannot be saved.
        """
        client_id = request.client_id
        self.expire(now_ns)
        if self._is_outdated(request):
            reply_lease_ms = self._reply_lease_ms(request, lease_ms, now_ns)
            return self._reply(client_id, [], reply_lease_ms, self.is_recovering(now_ns))
        self._check_subscription(request, allow_change)
        expires_ns = now_ns + lease_ms * NS_PER_MS
        self._update_member(request, expires_ns)
        if self.is_self_assigning:
            return SyncGroupReply(self.generation, [], [], list(self.members().members), True, lease_ms)
        self._release_omitted(request)
        refused = self._take_reports(request, expires_ns, now_ns)
        self._record_reports({client_id})
        self._grant(client_id, lease_ms, expires_ns, now_ns)
        reply_lease_ms = self._reply_lease_ms(request, lease_ms, now_ns)
        return self._reply(client_id, refused, reply_lease_ms, self.is_recovering(now_ns))

    def heartbeat(self, client_id: str, broker: str, subscriptions: Mapping[str, str], now_ns: int) -> bool:
        """Record the heartbeat of a self-assigning member.

        Returns False if it changes the subscriptions of the group.
        """
        if client_id not in self._self_assigning:
            self._members.pop(client_id, None)
            self._owners.clear()  # from now on the members decide the owners
            self._last.clear()
            self._change()
        self._self_assigning.record_heartbeat(client_id, broker, now_ns)
        return self._self_assigning.subscribe(subscriptions)

    def unregister(
        self, client_id: str, broker: str, connection_closed: bool, lease_ms: int, now_ns: int
    ) -> None:
        """Record that a member has unregistered or, if `connection_closed`, lost its connection to a broker.

        It remains the owner of its queues until it releases them or its lease expires, because it may still
        be alive after its connection was closed.
        """
        if client_id in self._self_assigning:
            if self._self_assigning.remove_broker(client_id, broker) or not connection_closed:
                self._forget_self_assigning(
                    client_id, lease_ms, now_ns, has_unregistered=not connection_closed
                )
        elif not connection_closed and self._members.pop(client_id, None) is not None:
            self._record_reports({client_id})
            self._change()

    def expire(self, now_ns: int) -> None:
        """Remove members and owners whose leases have expired."""
        gone = [client for client, member in self._members.items() if member.expires_ns <= now_ns]
        for client_id in gone:
            del self._members[client_id]
        self._record_reports(gone)
        over = [queue for queue, owner in self._owners.items() if owner.expires_ns <= now_ns]
        for queue in over:
            self._disown(queue)
        if gone or over:
            self._change()
        if self._recovering_until_ns and not self.is_recovering(now_ns):
            self._end_recovery()

    def expire_heartbeats(self, oldest_heartbeat_ns: int, lease_ms: int, now_ns: int) -> None:
        """Remove self-assigning members whose last heartbeat is older than `oldest_heartbeat_ns`."""
        for client_id in self._self_assigning.expire_heartbeats(oldest_heartbeat_ns):
            self._forget_self_assigning(client_id, lease_ms, now_ns, has_unregistered=False)

    # ---- the steps of a sync -----------------------------------------------------------------------

    def _is_outdated(self, request: SyncGroupRequest) -> bool:
        member = self._members.get(request.client_id)
        return member is not None and 0 < request.sequence < member.sequence

    def _check_subscription(self, request: SyncGroupRequest, allow_change: bool) -> None:
        if allow_change or request.allow_subscription_change or request.is_leaving:
            return
        for client_id, member in self._members.items():
            if client_id == request.client_id or member.is_leaving:
                continue
            if _without_retry_topic(member.subscriptions) != _without_retry_topic(request.subscriptions):
                raise Refused(
                    ResponseCode.SUBSCRIPTION_DIFFERS,
                    f"group {self.name!r}: {request.client_id} subscribes to "
                    f"{_format_subscriptions(request.subscriptions)}, but member {client_id} to "
                    f"{_format_subscriptions(member.subscriptions)}; all members of a group must have the "
                    f"same subscriptions (or set allow_subscription_change)",
                )

    def _reply_lease_ms(self, request: SyncGroupRequest, lease_ms: int, now_ns: int) -> int:
        """Return the lease for the response, which the member counts from when it sent the request.

        After a restart it is not longer than the member's remaining lease, until a request has a generation
        that was assigned after the restart: an earlier request may have been sent before the restart.
        """
        left_ms = request.lease_left_ms
        if left_ms is None or not self.is_recovering(now_ns) or request.generation >= self._first_generation:
            return lease_ms
        return max(1, min(lease_ms, left_ms))

    def _update_member(self, request: SyncGroupRequest, expires_ns: int) -> None:
        client_id = request.client_id
        if client_id in self._self_assigning:
            return
        member = self._members.get(client_id)
        if member is None:
            if request.is_leaving:
                return
            member = self._members[client_id] = _Member()
            self._change()
        if member.subscriptions != request.subscriptions or member.is_leaving != request.is_leaving:
            member.subscriptions = dict(request.subscriptions)
            member.is_leaving = request.is_leaving
            self._change()
        member.expires_ns = max(member.expires_ns, expires_ns)
        member.sequence = request.sequence
        if member.is_leaving and not request.owned:
            del self._members[client_id]
            self._change()

    def _release_omitted(self, request: SyncGroupRequest) -> None:
        named = {item.queue for item in request.owned}
        for queue, owner in list(self._owners.items()):
            if (
                owner.client_id == request.client_id
                and queue not in named
                and owner.generation <= request.generation
            ):
                self._disown(queue)
                self._record_release(queue)

    def _take_reports(self, request: SyncGroupRequest, expires_ns: int, now_ns: int) -> list[AssignedQueue]:
        """Process the queues that the member reports as owned.

        Renews the leases of its queues and makes it the owner of further queues if the rules allow that.
        Returns the reported queues that the member must release.
        """
        is_recovering = self.is_recovering(now_ns)
        for queue, held in list(self._owners.items()):
            if held.client_id != request.client_id:
                continue
            if held.is_reported and is_recovering and _has_lost_its_lease(request):
                # The earlier report was delayed for too long; the lease was still running when it was sent.
                self._disown(queue)
            else:
                held.expires_ns = max(held.expires_ns, expires_ns)
        refused = []
        for item in request.owned:
            owner = self._owners.get(item.queue)
            if owner is not None and owner.client_id == request.client_id:
                continue
            if self._may_report(request, item, owner, is_recovering):
                self._take_report(request.client_id, item, expires_ns, is_recovering)
            else:
                refused.append(item)
        return refused

    def _may_report(
        self, request: SyncGroupRequest, item: AssignedQueue, owner: _Ownership | None, is_recovering: bool
    ) -> bool:
        if item.generation > self.generation:
            return False
        if _has_lost_its_lease(request):
            last = self._last.get(item.queue)
            return owner is None and not is_recovering and last == (request.client_id, item.generation)
        if owner is None:
            # Also for a queue with another target: the member consumes it now and has to release it first.
            return True
        return is_recovering and owner.is_reported and item.generation > owner.generation

    def _take_report(self, client_id: str, item: AssignedQueue, expires_ns: int, is_recovering: bool) -> None:
        _, last_generation = self._last.get(item.queue, ("", 0))
        is_outdated = item.generation < last_generation
        self._owners[item.queue] = _Ownership(
            client_id, item.generation, expires_ns, is_recovering, is_outdated
        )
        if not is_outdated:
            self._last[item.queue] = (client_id, item.generation)

    def _grant(self, client_id: str, lease_ms: int, expires_ns: int, now_ns: int) -> None:
        if self.is_recovering(now_ns) or client_id not in self._members:
            return
        wanted = [
            queue
            for queue, target in self._targets().items()
            if target == client_id and queue not in self._owners
        ]
        if not wanted:
            return
        generation = self._next_generation(lease_ms)
        assert generation > self.generation
        self.generation = generation
        for queue in wanted:
            self._owners[queue] = _Ownership(client_id, generation, expires_ns)
            self._last[queue] = (client_id, generation)

    def _reply(
        self, client_id: str, refused: list[AssignedQueue], lease_ms: int, is_recovering: bool
    ) -> SyncGroupReply:
        member = self._members.get(client_id)
        is_staying = member is not None and not member.is_leaving
        assigned: list[AssignedQueue] = []
        revoked = refused
        for queue in sorted(self._owners):
            owner = self._owners[queue]
            if owner.client_id == client_id:
                item = AssignedQueue(queue, owner.generation)
                # During recovery targets change with each report, so queues are not revoked for their target.
                is_target = is_recovering or self._is_target(client_id, queue)
                keeps = is_staying and is_target and not owner.is_outdated
                (assigned if keeps else revoked).append(item)
        return SyncGroupReply(
            self.generation, assigned, revoked, list(self.members().members), False, lease_ms
        )

    def _is_target(self, client_id: str, queue: MessageQueue) -> bool:
        if queue.topic not in self._queues:
            return True  # no route of the topic is known yet: keep the owner
        return self._targets().get(queue) == client_id

    # ---- internal ----------------------------------------------------------------------------------

    def _targets(self) -> Mapping[MessageQueue, str]:
        if self._target is None:
            self._target = {}
            for topic, queues in self._queues.items():
                clients = [
                    client_id
                    for client_id, member in self._members.items()
                    if topic in member.subscriptions and not member.is_leaving
                ]
                self._target.update(assign_queues(self.strategy, queues, clients))
        return self._target

    def _record_release(self, queue: MessageQueue) -> None:
        if queue in self._targets():
            self._has_changed = True

    def _disown(self, queue: MessageQueue) -> None:
        del self._owners[queue]
        if queue not in self._queues.get(queue.topic, ()):  # members can report any name
            self._last.pop(queue, None)

    def _change(self) -> None:
        self._target = None
        self._has_changed = True

    def _forget_self_assigning(
        self, client_id: str, lease_ms: int, now_ns: int, *, has_unregistered: bool
    ) -> None:
        self._self_assigning.forget(client_id)
        if not self._self_assigning:
            # The other members have assigned queues to themselves too; as after a restart they must report
            # first. Here the members are known, so recovery ends with the last report, unless the removed
            # member may still be consuming.
            if has_unregistered and not self.is_recovering(now_ns):
                self._unreported = set(self._members)
            self._recovering_until_ns = max(self._recovering_until_ns, now_ns + lease_ms * NS_PER_MS)
            self._record_reports(())
        self._change()

    def _record_reports(self, client_ids: Iterable[str]) -> None:
        """Record that these members have reported their queues, or that their leases have expired."""
        if self._unreported is not None:
            self._unreported.difference_update(client_ids)
            if not self._unreported:
                self._end_recovery()

    def _end_recovery(self) -> None:
        self._recovering_until_ns = 0
        self._unreported = None
        self._change()


def _without_retry_topic(subscriptions: Mapping[str, str]) -> dict[str, str]:
    """Return the subscriptions without the group's retry topic.

    Members that only pull do not subscribe to it.
    """
    return {topic: text for topic, text in subscriptions.items() if not topic.startswith(RETRY_TOPIC_PREFIX)}


def _has_lost_its_lease(request: SyncGroupRequest) -> bool:
    return request.lease_left_ms is not None and request.lease_left_ms <= 0


def _format_subscriptions(subscriptions: Mapping[str, str]) -> str:
    return (
        ", ".join(f"{topic} [{expression}]" for topic, expression in sorted(subscriptions.items()))
        or "nothing"
    )
