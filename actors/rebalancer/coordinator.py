"""GroupCoordinator: serves the consumer groups of one rebalancer to brokers.

`group.py` makes the decisions about a group; this module supplies it with requests, routes, generations and
time.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from actors.bounds import AtLimit, Bound, Use
from actors.host.cluster_access import PROVE_ROW
from actors.host.figures import Figure, Kind
from actors.rebalancer.generations import Generations
from actors.rebalancer.group import Group
from actors.rebalancer.rebalancer_settings import RebalancerSettings
from actors.rebalancer.route_watch import RouteWatch
from actors.strategies import AllocateMessageQueueStrategy, make_strategy
from actors.transport.connection import Connection
from actors.transport.request import BODY_BYTES_MAX, SYNC_BYTES_MAX, Cost, RequestContext, RequestRow
from actors.transport.slices import Steps
from actors.transport.table import RequestTable
from actors.wire.bodies.groups import BROADCASTING, GroupMembers, HeartbeatData, SyncGroupRequest
from actors.wire.codes import RayMQRequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import ConsumerGroupHeader, ForwardHeartbeatHeader, ForwardUnregisterHeader
from actors.wire.remoting_errors import Refused
from actors.wire.targets import Action, DecodedRequest, Resource, Target, on_group
from store.common.clock import NS_PER_MS, Clock
from store.common.logs import get_logger

_log = get_logger(__name__)

OUR_LANGUAGE = "PYTHON"
GROUPS: Final = Bound("rebalancer_groups", 100_000, AtLimit.REFUSE, "Groups with members.")
MEMBERS: Final = Bound("rebalancer_members", 200_000, AtLimit.REFUSE, "Members of all groups.")
OWNED: Final = Bound(
    "owned_queues", 2_000_000, AtLimit.REFUSE, "Queues that members of all groups own, or have lately owned."
)


class GroupCoordinator:
    """The consumer groups of one rebalancer. Brokers choose the rebalancer by the hash of the group name."""

    def __init__(
        self, settings: RebalancerSettings, generations: Generations, routes: RouteWatch, clock: Clock
    ) -> None:
        self.groups: dict[str, Group] = {}
        self._settings = settings
        self._generations = generations
        self._routes = routes
        self._clock = clock
        self._brokers: dict[str, set[Connection]] = {}
        """Connections of the brokers that have sent a request for a group, by group name."""
        self._connections: set[Connection] = set()
        self._touched: set[str] = set()
        self._loaded_ns = 0
        self._changes = 0
        self._members_count = self._owned_count = 0  # at most so many; `expire` counts again

    def figures(self) -> Sequence[Figure]:
        """Return the figures of the groups."""

        return (
            Figure(
                "groups", Kind.GAUGE, "", lambda: len(self.groups), "Consumer groups.", is_described=False,
                metric="raymq_rebalancer_groups",
            ),
            Figure(
                "members", Kind.GAUGE, "", self._count_members, "Members of all groups.", is_described=False,
                metric="raymq_rebalancer_members",
            ),
            Figure(
                "group_changes", Kind.COUNTER, "", lambda: self._changes,
                "Changes of members or queues that were sent to brokers.", is_described=False,
                metric="raymq_rebalancer_group_changes_total",
            ),
        )  # fmt: skip

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (
            GROUPS.use(lambda: len(self.groups)),
            MEMBERS.use(lambda: self._members_count),
            OWNED.use(lambda: self._owned_count),
        )

    def _count_members(self) -> int:
        return sum(group.member_count for group in self.groups.values())

    def load(self) -> None:
        """Load the generations from disk. Raises OSError or StoreError."""
        self._generations.load()
        self._loaded_ns = self._clock.monotonic_ns()

    def expire(self) -> None:
        """Expire leases and members without heartbeats, and remove empty groups."""
        now_ns = self._clock.monotonic_ns()
        oldest_heartbeat_ns = now_ns - self._settings.heartbeat_expiry_ms * NS_PER_MS
        for name, group in list(self.groups.items()):
            group.expire(now_ns)
            group.expire_heartbeats(oldest_heartbeat_ns, self._settings.lease_ms, now_ns)
            self._touched.add(name)
            if group.is_empty and not group.is_recovering(now_ns):
                self._send_change(group)
                del self.groups[name]
                self._brokers.pop(name, None)
                self._generations.forget_unused(name)
        self._members_count = self._count_members()
        self._owned_count = sum(group.owned_count for group in self.groups.values())
        self.send_changes()

    async def refresh_routes(self) -> None:
        """Fetch the routes of all subscribed topics from the nameservers."""
        topics = sorted({topic for group in self.groups.values() for topic in group.topics})
        self._routes.forget_all_but(topics)
        await self._refresh(topics)
        self.send_changes()

    def send_changes(self) -> None:
        """Send GROUP_CHANGED for each changed group to the brokers that serve it."""
        touched, self._touched = self._touched, set()
        for name in touched:
            group = self.groups.get(name)
            if group is not None and group.take_change():
                self._send_change(group)

    def table(self) -> RequestTable:
        """Return the request table of the rebalancer."""
        code, row, sub = RayMQRequestCode, RequestRow, on_group(Action.SUB)
        heartbeat, client = Cost.HEARTBEAT, Cost.CLIENT
        leave, members = ForwardUnregisterHeader, ConsumerGroupHeader
        return RequestTable(
            (
                row(code.FORWARD_SYNC, self._sync, None, _synced_group, heartbeat, SYNC_BYTES_MAX),
                row(code.SYNC_GROUP, self._sync, None, _synced_group, heartbeat, SYNC_BYTES_MAX),
                row(
                    code.FORWARD_HEARTBEAT,
                    self._heartbeat,
                    ForwardHeartbeatHeader,
                    _heartbeat_groups,
                    heartbeat,
                ),
                row(code.FORWARD_UNREGISTER, self._unregister, leave, sub, client),
                row(code.GROUP_MEMBERS, self._members, members, on_group(Action.GET), client),
                PROVE_ROW,
            )
        )

    # ---- requests ------------------------------------------------------------------------------------

    def _sync(self, context: RequestContext) -> RemotingCommand | None:
        request = SyncGroupRequest.decode(context.command.body)
        missing = [topic for topic in request.subscriptions if not self._routes.knows(topic)]
        if missing:
            # Only for the first request with a topic: its response then already contains queues.
            context.spawn(self._sync_with_routes(context, request, missing))
            return None
        return self._respond_to_sync(context, request)

    async def _sync_with_routes(
        self, context: RequestContext, request: SyncGroupRequest, topics: list[str]
    ) -> RemotingCommand:
        await self._refresh(topics)
        return self._respond_to_sync(context, request)

    def _respond_to_sync(self, context: RequestContext, request: SyncGroupRequest) -> RemotingCommand:
        lease_ms = self._lease_ms(request)
        group = self._group(request.group, request.client_id, context.connection)
        if self._owned_count + len(request.owned) > OWNED.limit:
            _check(OWNED, self._owned_count, group.count_unknown(request.owned))
        if not group.topics:  # created by a heartbeat: the first SYNC_GROUP decides the strategy
            group.set_strategy(self._strategy_of(request.group, request.strategy))
        for topic in request.subscriptions:
            if self._routes.knows(topic):
                group.set_queues(topic, self._routes.queues(topic))
        owned = group.owned_count
        try:
            self._generations.save_lease(request.group, lease_ms)
            reply = group.sync(
                request, lease_ms, self._clock.monotonic_ns(), self._settings.allow_subscription_change
            )
        except OSError as error:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"could not save the generation in data_dir {self._settings.data_dir}: {error}",
            ) from error
        self._owned_count += group.owned_count - owned
        return RemotingCommand.response(body=reply.encode())

    def _heartbeat(self, context: RequestContext) -> None:
        context.work(self._heartbeat_steps(context))

    def _heartbeat_steps(self, context: RequestContext) -> Steps:
        header: ForwardHeartbeatHeader = context.header
        heartbeat = HeartbeatData.decode(context.command.body)
        for consumer in heartbeat.consumers:
            yield
            group = self._group(consumer.group_name, heartbeat.client_id, context.connection)
            if header.language == OUR_LANGUAGE or consumer.message_model == BROADCASTING:
                continue  # Python clients send SYNC_GROUP; broadcasting members consume all queues
            subscriptions = {item.topic: item.sub_string for item in consumer.subscriptions}
            now_ns = self._clock.monotonic_ns()
            if not group.heartbeat(heartbeat.client_id, header.broker_name, subscriptions, now_ns):
                _log.warning(
                    "subscription_changed",
                    group=group.name,
                    client=heartbeat.client_id,
                    subscriptions=subscriptions,
                    rule="the last heartbeat wins",
                )
        return RemotingCommand.response()

    def _unregister(self, context: RequestContext) -> None:
        context.work(self._unregister_steps(context))  # after a heartbeat that takes long

    def _unregister_steps(self, context: RequestContext) -> Steps:
        yield
        header: ForwardUnregisterHeader = context.header
        group = self.groups.get(header.consumer_group)
        if group is not None:
            group.unregister(
                header.client_id,
                header.broker_name,
                header.connection_closed,
                self._settings.lease_ms,
                self._clock.monotonic_ns(),
            )
        return RemotingCommand.response()

    def _members(self, context: RequestContext) -> None:
        context.work(self._members_steps(context))  # after a heartbeat that takes long

    def _members_steps(self, context: RequestContext) -> Steps:
        yield
        header: ConsumerGroupHeader = context.header
        group = self.groups.get(header.consumer_group)
        members = GroupMembers() if group is None else group.members()
        if group is not None:
            self._note_broker(group.name, context.connection)
        return RemotingCommand.response(body=members.encode())

    # ---- groups --------------------------------------------------------------------------------------

    def _lease_ms(self, request: SyncGroupRequest) -> int:
        settings = self._settings
        if request.lease_ms is None:
            return settings.lease_ms
        if request.lease_ms > settings.max_lease_ms:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"a lease of {request.lease_ms} ms exceeds max_lease_ms {settings.max_lease_ms}",
            )
        # A longer lease than requested is safe: the member stops consuming when the requested lease ends.
        return max(request.lease_ms, settings.min_lease_ms)

    def _group(self, name: str, client_id: str, connection: Connection) -> Group:
        """Return the group for a request of a member. Raises Refused if there are too many."""
        group = self.groups.get(name)
        if group is None or client_id not in group:
            _check(MEMBERS, self._members_count, 1)
            self._members_count += 1
        if group is None:
            _check(GROUPS, len(self.groups), 1)
            group = self.groups[name] = self._make_group(name)
        self._note_broker(name, connection)
        return group

    def _make_group(self, name: str) -> Group:
        chosen = self._strategy_of(name, None)
        saved_lease_ms = self._generations.saved_lease_ms(name)
        recovering_until_ns = 0
        if saved_lease_ms is not None:
            recovering_until_ns = self._loaded_ns + saved_lease_ms * NS_PER_MS
        _log.info("group_created", group=name, strategy=chosen.name, recovering=saved_lease_ms is not None)
        return Group(
            name,
            chosen,
            self._generations.current(name),
            lambda lease_ms: self._generations.next(name, lease_ms),
            recovering_until_ns,
        )

    def _strategy_of(self, group: str, requested: str | None) -> AllocateMessageQueueStrategy:
        text = self._settings.strategies.get(group) or requested or self._settings.strategy
        try:
            return make_strategy(text)
        except ValueError as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, str(error)) from error

    def _note_broker(self, group: str, connection: Connection) -> None:
        self._touched.add(group)
        self._brokers.setdefault(group, set()).add(connection)
        if connection not in self._connections:
            self._connections.add(connection)
            connection.on_close(self._forget_broker)

    def _forget_broker(self, connection: Connection) -> None:
        self._connections.discard(connection)
        for brokers in self._brokers.values():
            brokers.discard(connection)

    async def _refresh(self, topics: list[str]) -> None:
        for topic in topics:
            if await self._routes.refresh(topic):
                for group in [group for group in self.groups.values() if topic in group.topics]:
                    group.set_queues(topic, self._routes.queues(topic))
                    self._touched.add(group.name)

    def _send_change(self, group: Group) -> None:
        self._changes += 1
        body = group.members().encode()
        if len(body) > BODY_BYTES_MAX:
            body = b""  # the brokers request the list when a client requests it from them
        ext = ConsumerGroupHeader(group.name).to_ext()
        for connection in self._brokers.get(group.name, ()):
            connection.oneway(RemotingCommand(RayMQRequestCode.GROUP_CHANGED, ext, body))


def _check(bound: Bound, used: int, wanted: int) -> None:
    if wanted and used + wanted > bound.limit:
        raise Refused(
            ResponseCode.SYSTEM_BUSY,
            f"this rebalancer has {used:,} {bound.name}, and {wanted:,} more would exceed the limit of "
            f"{bound.limit:,}: stop members, or start another rebalancer",
        )


def _synced_group(context: DecodedRequest) -> Iterable[Target]:
    return (Target(Resource.GROUP, SyncGroupRequest.decode(context.command.body).group, Action.SUB),)


def _heartbeat_groups(context: DecodedRequest) -> Iterable[Target]:
    for consumer in HeartbeatData.decode(context.command.body).consumers:
        yield Target(Resource.GROUP, consumer.group_name, Action.SUB)
