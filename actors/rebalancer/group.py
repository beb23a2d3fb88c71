"""Group: who is in a consumer group and which of them has which queue. Pure: no sockets, no clock, no disk.

    free ── granted to its target, under a new generation ──→ owned
      ↑                                                         │ other target: the owner is to let go
      └── the owner no longer names it, or its lease is over ───┘

Fault model: requests and answers are lost, late, doubled and overtaken; members stop, stall and come back;
this process is killed at any point and starts with nothing but the generations on disk. Clocks run at the
same speed. Under all of that a queue never has two owners whose leases run. What makes it so:

- A queue changes hands only after its owner has left it out of a request, or has not asked for as long as
  its lease.
- A request that comes after a later one of its sender (`sequence`) changes nothing.
- Leaving out counts only where the request shows that its sender had seen the grant (`generation`): an
  older request that comes late says nothing of queues granted since.
- The lease is counted here from when a request comes, by the member from when it asked: the member's ends
  first.
- After a restart, what members report under a running lease is theirs; nothing else is granted until the
  longest lease of before is over. (After the last that assigned itself has said that it goes: until all
  others have reported.) Where two report a queue, one of the reports was under way for too long: the later
  grant counts, and so does a later report of the same member that its lease is over.
- A queue whose lease is over may be taken up again by its last owner, as long as nobody else has had it.
- After a restart a first answer makes no lease longer: what it answers may have been under way since before.
- Whoever works on a queue that is free owns it, if only to let it go.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from actors.rebalancer.self_assigning import SelfAssigning
from actors.remoting.bodies.groups import GrantedQueue, GroupMembers, SyncGroupReply, SyncGroupRequest
from actors.remoting.codes import ResponseCode
from actors.remoting.remoting_errors import Refused
from actors.strategies import AllocateMessageQueueStrategy, share_out
from store.clock import NS_PER_MS
from store.message.message_queue import MessageQueue
from store.message.validate import RETRY_TOPIC_PREFIX

# Gives the next generation, under which leases of so many milliseconds are given; raises OSError.
NextGeneration = Callable[[int], int]


@dataclass(slots=True)
class _Member:
    """One member that the rebalancer assigns queues to."""

    subscriptions: dict[str, str] = field(default_factory=dict)
    expires_ns: int = 0
    is_leaving: bool = False
    sequence: int = 0


@dataclass(slots=True)
class _Ownership:
    """Who has a queue, since which generation, and until when without further news."""

    client_id: str
    generation: int
    expires_ns: int
    is_reported: bool = False  # after a restart, by its owner
    is_outdated: bool = False  # somebody else has had it since: to be let go


class Group:
    """The state of one group; times are monotonic nanoseconds given by the caller."""

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
        self._unreported: set[str] | None = None  # whose reports end the recovery before its time
        self._members: dict[str, _Member] = {}
        self._self_assigning = SelfAssigning()
        self._queues: dict[str, frozenset[MessageQueue]] = {}
        self._owners: dict[MessageQueue, _Ownership] = {}
        self._last: dict[MessageQueue, tuple[str, int]] = {}
        self._target: dict[MessageQueue, str] | None = None
        self._has_changed = False

    # ---- what others ask ---------------------------------------------------------------------------

    @property
    def topics(self) -> frozenset[str]:
        """What its members subscribe to."""
        return frozenset(topic for member in self._members.values() for topic in member.subscriptions)

    @property
    def is_self_assigning(self) -> bool:
        """Whether any member assigns queues to itself, so that all must."""
        return bool(self._self_assigning)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to remember."""
        return not self._members and not self._owners and not self._self_assigning

    def members(self) -> GroupMembers:
        """The member list, identical for everyone."""
        return GroupMembers(tuple(sorted({*self._members, *self._self_assigning})), self.is_self_assigning)

    def take_change(self) -> bool:
        """Whether members should be told to ask, since this was last called."""
        had, self._has_changed = self._has_changed, False
        return had

    def is_recovering(self, now_ns: int) -> bool:
        """Whether leases of before a restart may still run."""
        return now_ns < self._recovering_until_ns

    # ---- what happens ------------------------------------------------------------------------------

    def choose(self, strategy: AllocateMessageQueueStrategy) -> None:
        """Share out by this from now on."""
        self.strategy = strategy
        self._target = None

    def set_queues(self, topic: str, queues: Iterable[MessageQueue]) -> None:
        """The queues that a topic has now."""
        wanted = frozenset(queues)
        if self._queues.get(topic) != wanted:
            self._queues[topic] = wanted
            self._change()

    def sync(
        self, request: SyncGroupRequest, lease_ms: int, now_ns: int, allow_change: bool = False
    ) -> SyncGroupReply:
        """A member tells what it has, and learns what it may have.

        Raises Refused where it subscribes to something else than the others, OSError where no generation
        can be had.
        """
        client_id = request.client_id
        self.expire(now_ns)
        if self._is_outdated(request):
            told_ms = self._reported_lease_ms(request, lease_ms, now_ns)
            return self._reply(client_id, [], told_ms, self.is_recovering(now_ns))
        self._check_subscription(request, allow_change)
        expires_ns = now_ns + lease_ms * NS_PER_MS
        self._note_member(request, expires_ns)
        if self.is_self_assigning:
            return SyncGroupReply(self.generation, [], [], list(self.members().members), True, lease_ms)
        self._release_unnamed(request)
        refused = self._take_reports(request, expires_ns, now_ns)
        self._note_reports({client_id})
        self._grant(client_id, lease_ms, expires_ns, now_ns)
        told_ms = self._reported_lease_ms(request, lease_ms, now_ns)
        return self._reply(client_id, refused, told_ms, self.is_recovering(now_ns))

    def heartbeat(self, client_id: str, broker: str, subscriptions: Mapping[str, str], now_ns: int) -> bool:
        """A member that assigns itself is alive; False where it changed what the group subscribes to."""
        if client_id not in self._self_assigning:
            self._members.pop(client_id, None)
            self._owners.clear()  # from now on nobody here knows who has what
            self._last.clear()
            self._change()
        self._self_assigning.heard(client_id, broker, now_ns)
        return self._self_assigning.subscribe(subscriptions)

    def unregister(
        self, client_id: str, broker: str, connection_closed: bool, lease_ms: int, now_ns: int
    ) -> None:
        """A member says that it goes, or a broker lost its connection.

        What it owns stays its own until it lets go or its lease is over: a lost connection proves nothing.
        """
        if client_id in self._self_assigning:
            if self._self_assigning.lost(client_id, broker) or not connection_closed:
                self._forget_self_assigning(client_id, lease_ms, now_ns, has_said_so=not connection_closed)
        elif not connection_closed and self._members.pop(client_id, None) is not None:
            self._note_reports({client_id})
            self._change()

    def expire(self, now_ns: int) -> None:
        """End the leases that are over."""
        gone = [client for client, member in self._members.items() if member.expires_ns <= now_ns]
        for client_id in gone:
            del self._members[client_id]
        self._note_reports(gone)
        over = [queue for queue, owner in self._owners.items() if owner.expires_ns <= now_ns]
        for queue in over:
            del self._owners[queue]
        if gone or over:
            self._change()
        if self._recovering_until_ns and not self.is_recovering(now_ns):
            self._end_recovery()

    def expire_heartbeats(self, heard_before_ns: int, lease_ms: int, now_ns: int) -> None:
        """Forget the members that assign themselves and have not been heard of since that moment."""
        for client_id in self._self_assigning.silent_since(heard_before_ns):
            self._forget_self_assigning(client_id, lease_ms, now_ns, has_said_so=False)

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
            if _own(member.subscriptions) != _own(request.subscriptions):
                raise Refused(
                    ResponseCode.SUBSCRIPTION_DIFFERS,
                    f"group {self.name!r}: {request.client_id} subscribes to "
                    f"{_shown(request.subscriptions)}, member {client_id} to {_shown(member.subscriptions)}; "
                    f"all members of a group subscribe to the same (or set allow_subscription_change)",
                )

    def _reported_lease_ms(self, request: SyncGroupRequest, lease_ms: int, now_ns: int) -> int:
        """How long the member may work from when it asked: after a restart no longer than it may already,
        until it has shown, by a generation of after the restart, that it asked since. The request may be
        from before.
        """
        left_ms = request.lease_left_ms
        if left_ms is None or not self.is_recovering(now_ns) or request.generation >= self._first_generation:
            return lease_ms
        return max(1, min(lease_ms, left_ms))

    def _note_member(self, request: SyncGroupRequest, expires_ns: int) -> None:
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

    def _release_unnamed(self, request: SyncGroupRequest) -> None:
        named = {item.queue for item in request.owned}
        for queue, owner in list(self._owners.items()):
            if (
                owner.client_id == request.client_id
                and queue not in named
                and owner.generation <= request.generation
            ):
                del self._owners[queue]
                self._note_free(queue)

    def _take_reports(self, request: SyncGroupRequest, expires_ns: int, now_ns: int) -> list[GrantedQueue]:
        """Renew what the member owns, take up what else it works on; returns what it may not go on with."""
        is_recovering = self.is_recovering(now_ns)
        for queue, held in list(self._owners.items()):
            if held.client_id != request.client_id:
                continue
            if held.is_reported and is_recovering and _has_lost_its_lease(request):
                # The report was under way for too long: when it was made the lease still ran.
                del self._owners[queue]
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
        self, request: SyncGroupRequest, item: GrantedQueue, owner: _Ownership | None, is_recovering: bool
    ) -> bool:
        if item.generation > self.generation:
            return False
        if _has_lost_its_lease(request):
            last = self._last.get(item.queue)
            return owner is None and not is_recovering and last == (request.client_id, item.generation)
        if owner is None:
            # Even where it should not have the queue: it works on it now, and must be seen to let go.
            return True
        return is_recovering and owner.is_reported and item.generation > owner.generation

    def _take_report(self, client_id: str, item: GrantedQueue, expires_ns: int, is_recovering: bool) -> None:
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
        self, client_id: str, refused: list[GrantedQueue], lease_ms: int, is_recovering: bool
    ) -> SyncGroupReply:
        member = self._members.get(client_id)
        is_staying = member is not None and not member.is_leaving
        granted: list[GrantedQueue] = []
        revoked = refused
        for queue in sorted(self._owners):
            owner = self._owners[queue]
            if owner.client_id == client_id:
                item = GrantedQueue(queue, owner.generation)
                # While members still report, targets shift with each of them: nobody is made to let go of
                # anything.
                is_for_it = is_recovering or self._is_for(client_id, queue)
                keeps = is_staying and is_for_it and not owner.is_outdated
                (granted if keeps else revoked).append(item)
        return SyncGroupReply(
            self.generation, granted, revoked, list(self.members().members), False, lease_ms
        )

    def _is_for(self, client_id: str, queue: MessageQueue) -> bool:
        if queue.topic not in self._queues:
            return True  # no route of the topic has come yet: nothing speaks against its owner
        return self._targets().get(queue) == client_id

    # ---- its own -----------------------------------------------------------------------------------

    def _targets(self) -> Mapping[MessageQueue, str]:
        if self._target is None:
            self._target = {}
            for topic, queues in self._queues.items():
                clients = [
                    client_id
                    for client_id, member in self._members.items()
                    if topic in member.subscriptions and not member.is_leaving
                ]
                self._target.update(share_out(self.strategy, queues, clients))
        return self._target

    def _note_free(self, queue: MessageQueue) -> None:
        if queue in self._targets():
            self._has_changed = True

    def _change(self) -> None:
        self._target = None
        self._has_changed = True

    def _forget_self_assigning(
        self, client_id: str, lease_ms: int, now_ns: int, *, has_said_so: bool
    ) -> None:
        self._self_assigning.forget(client_id)
        if not self._self_assigning:
            # Our own members have been assigning themselves too: as after a restart, they report first. But
            # here they are known: unless the one that is gone may still be at it, the last report is the end.
            if has_said_so and not self.is_recovering(now_ns):
                self._unreported = set(self._members)
            self._recovering_until_ns = max(self._recovering_until_ns, now_ns + lease_ms * NS_PER_MS)
            self._note_reports(())
        self._change()

    def _note_reports(self, client_ids: Iterable[str]) -> None:
        """These members have told what they work on, or have no lease any more."""
        if self._unreported is not None:
            self._unreported.difference_update(client_ids)
            if not self._unreported:
                self._end_recovery()

    def _end_recovery(self) -> None:
        self._recovering_until_ns = 0
        self._unreported = None
        self._change()


def _own(subscriptions: Mapping[str, str]) -> dict[str, str]:
    """Without the group's retry topic: members that only pull have no use for it."""
    return {topic: text for topic, text in subscriptions.items() if not topic.startswith(RETRY_TOPIC_PREFIX)}


def _has_lost_its_lease(request: SyncGroupRequest) -> bool:
    return request.lease_left_ms is not None and request.lease_left_ms <= 0


def _shown(subscriptions: Mapping[str, str]) -> str:
    return (
        ", ".join(f"{topic} [{expression}]" for topic, expression in sorted(subscriptions.items()))
        or "nothing"
    )
