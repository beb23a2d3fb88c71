"""RebalancerService: consumer groups over remoting. The decisions are in `group.py`; here they meet brokers
and time.
"""

from actors.host.supervisor import GiveUp, Supervisor
from actors.rebalancer.generations import Generations
from actors.rebalancer.group import Group
from actors.rebalancer.rebalancer_settings import RebalancerSettings
from actors.rebalancer.route_watch import RouteWatch
from actors.remoting.bodies.groups import BROADCASTING, GroupMembers, HeartbeatData, SyncGroupRequest
from actors.remoting.client import RemotingClient
from actors.remoting.codes import RayMQRequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.connection import Connection
from actors.remoting.headers import ConsumerGroupHeader, ForwardHeartbeatHeader, ForwardUnregisterHeader
from actors.remoting.remoting_errors import Refused
from actors.remoting.request import Action, Cost, RequestContext, Resource
from actors.remoting.server import RemotingServer
from actors.remoting.table import RequestTable
from actors.strategies import AllocateMessageQueueStrategy, make_strategy
from store.clock import NS_PER_MS, Clock
from store.live_settings import LiveSettings
from store.logs import get_logger
from store.message.message_queue import MessageQueue

_log = get_logger(__name__)

OUR_LANGUAGE = "PYTHON"


class RebalancerService:
    """One rebalancer; which groups are its own, the brokers decide by the hash of their names."""

    def __init__(self, settings: RebalancerSettings, clock: Clock, give_up: GiveUp | None = None) -> None:
        self.settings = settings
        self.live = LiveSettings(settings)
        self.groups: dict[str, Group] = {}
        self.server = RemotingServer(self._table(), clock, tick=self._tell_changes)
        self._clock = clock
        self._client = RemotingClient(clock)
        self._generations = Generations(settings.data_dir, clock)
        self._routes = RouteWatch(
            self._client,
            settings.nameservers,
            clock,
            settings.route_timeout_ms,
            settings.route_grace_ms,
            self._take_queues,
        )
        self._brokers: dict[str, set[Connection]] = {}
        self._touched: set[str] = set()
        self._started_ns = 0
        self._supervisor = Supervisor(clock, give_up)

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{self.settings.listen_host}:{self.server.port}"

    async def start(self) -> None:
        """Load the generations and listen as the settings say; raises OSError or StoreError."""
        await self.serve(self.settings.listen_host, self.settings.listen_port)

    async def serve(self, host: str, port: int) -> int:
        """Load the generations and listen; returns the port. Raises OSError or StoreError."""
        self._generations.load()
        self._started_ns = self._clock.monotonic_ns()
        await self.server.start(host, port)
        every, settings = self._supervisor.every, self.settings
        every("route-refresh", lambda: settings.route_interval_ms, self.refresh_routes)
        every("lease-expiry", lambda: settings.expire_interval_ms, self.expire)
        _log.info("rebalancer_serving", host=host, port=self.server.port)
        return self.server.port

    async def stop(self) -> None:
        """Stop listening and close all connections; members keep what they have."""
        await self._supervisor.stop()
        await self.server.stop()
        await self._client.close()

    def describe(self) -> dict[str, object]:
        """Return the rebalancer's address and counters."""
        return {"address": self.address, "background_task_failures": self._supervisor.failures}

    def expire(self) -> None:
        """End what is over: leases, silent members, empty groups."""
        now_ns = self._clock.monotonic_ns()
        heard_before_ns = now_ns - self.settings.heartbeat_expiry_ms * NS_PER_MS
        for name, group in list(self.groups.items()):
            group.expire(now_ns)
            group.expire_heartbeats(heard_before_ns, self.settings.lease_ms, now_ns)
            self._touched.add(name)
            if group.is_empty and not group.is_recovering(now_ns):
                self._tell_change(group)
                del self.groups[name]
                self._brokers.pop(name, None)
        self._tell_changes()

    async def refresh_routes(self) -> None:
        """Ask the nameservers about all topics that are consumed."""
        topics = sorted({topic for group in self.groups.values() for topic in group.topics})
        self._routes.forget_all_but(topics)
        await self._routes.refresh(topics)
        self._tell_changes()

    def _table(self) -> RequestTable:
        table, code = RequestTable(), RayMQRequestCode
        group, update = Resource.GROUP, Action.UPDATE
        sync = self._sync
        table.add(code.FORWARD_SYNC, sync, resource=group, action=Action.SUB, cost=Cost.HEARTBEAT)
        table.add(code.SYNC_GROUP, sync, resource=group, action=Action.SUB, cost=Cost.HEARTBEAT)
        table.add(
            code.FORWARD_HEARTBEAT,
            self._heartbeat,
            ForwardHeartbeatHeader,
            resource=group,
            action=Action.SUB,
            cost=Cost.HEARTBEAT,
        )
        table.add(
            code.FORWARD_UNREGISTER,
            self._unregister,
            ForwardUnregisterHeader,
            resource=group,
            action=update,
            cost=Cost.CLIENT,
        )
        table.add(
            code.GROUP_MEMBERS,
            self._members,
            ConsumerGroupHeader,
            resource=group,
            action=Action.GET,
            cost=Cost.CLIENT,
        )
        return table

    # ---- what brokers ask ----------------------------------------------------------------------------

    def _sync(self, context: RequestContext) -> RemotingCommand | None:
        request = SyncGroupRequest.decode(context.command.body)
        missing = [topic for topic in request.subscriptions if not self._routes.knows(topic)]
        if missing:
            # Only once for a topic: a first member gets its queues with its first answer.
            context.spawn(self._sync_with_routes(context, request, missing))
            return None
        return self._answer_sync(context, request)

    async def _sync_with_routes(
        self, context: RequestContext, request: SyncGroupRequest, topics: list[str]
    ) -> RemotingCommand:
        await self._routes.refresh(topics)
        return self._answer_sync(context, request)

    def _answer_sync(self, context: RequestContext, request: SyncGroupRequest) -> RemotingCommand:
        lease_ms = self._lease_ms(request)
        group = self._group(request.group, context.connection)
        if (
            not group.topics
        ):  # a heartbeat may have made it, but the first member's request names the strategy
            group.choose(self._strategy_of(request.group, request.strategy))
        for topic in request.subscriptions:
            if self._routes.knows(topic):
                group.set_queues(topic, self._routes.queues(topic))
        try:
            self._generations.cover(request.group, lease_ms)
            reply = group.sync(
                request, lease_ms, self._clock.monotonic_ns(), self.settings.allow_subscription_change
            )
        except OSError as error:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the generation cannot be kept in {self.settings.data_dir}: {error}",
            ) from error
        return RemotingCommand.response(body=reply.encode())

    def _heartbeat(self, context: RequestContext) -> RemotingCommand:
        header: ForwardHeartbeatHeader = context.header
        heartbeat = HeartbeatData.decode(context.command.body)
        for consumer in heartbeat.consumers:
            group = self._group(consumer.group_name, context.connection)
            if header.language == OUR_LANGUAGE or consumer.message_model == BROADCASTING:
                continue  # ours ask by SYNC_GROUP; who broadcasts shares nothing
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

    def _unregister(self, context: RequestContext) -> RemotingCommand:
        header: ForwardUnregisterHeader = context.header
        group = self.groups.get(header.consumer_group)
        if group is not None:
            group.unregister(
                header.client_id,
                header.broker_name,
                header.connection_closed,
                self.settings.lease_ms,
                self._clock.monotonic_ns(),
            )
        return RemotingCommand.response()

    def _members(self, context: RequestContext) -> RemotingCommand:
        header: ConsumerGroupHeader = context.header
        group = self.groups.get(header.consumer_group)
        members = GroupMembers() if group is None else group.members()
        if group is not None:
            self._note_broker(group.name, context.connection)
        return RemotingCommand.response(body=members.encode())

    # ---- its own -------------------------------------------------------------------------------------

    def _lease_ms(self, request: SyncGroupRequest) -> int:
        settings = self.settings
        if request.lease_ms is None:
            return settings.lease_ms
        if request.lease_ms > settings.max_lease_ms:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"a lease of {request.lease_ms} ms is over max_lease_ms {settings.max_lease_ms}",
            )
        # Longer than asked for is safe: the member's own count ends first.
        return max(request.lease_ms, settings.min_lease_ms)

    def _group(self, name: str, connection: Connection) -> Group:
        self._note_broker(name, connection)
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = self._make_group(name)
        return group

    def _make_group(self, name: str) -> Group:
        chosen = self._strategy_of(name, None)
        lease_before_ms = self._generations.lease_before_ms(name)
        recovering_until_ns = 0
        if lease_before_ms is not None:
            recovering_until_ns = self._started_ns + lease_before_ms * NS_PER_MS
        _log.info("group_made", group=name, strategy=chosen.name, recovering=lease_before_ms is not None)
        return Group(
            name,
            chosen,
            self._generations.current(name),
            lambda lease_ms: self._generations.next(name, lease_ms),
            recovering_until_ns,
        )

    def _strategy_of(self, group: str, asked: str | None) -> AllocateMessageQueueStrategy:
        text = self.settings.strategies.get(group) or asked or self.settings.strategy
        try:
            return make_strategy(text)
        except ValueError as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, str(error)) from error

    def _note_broker(self, group: str, connection: Connection) -> None:
        self._touched.add(group)
        self._brokers.setdefault(group, set()).add(connection)
        if not connection.attributes.extra.get("is_broker"):
            connection.attributes.extra["is_broker"] = True
            connection.on_close(self._forget_broker)

    def _forget_broker(self, connection: Connection) -> None:
        for brokers in self._brokers.values():
            brokers.discard(connection)

    def _take_queues(self, topic: str, queues: frozenset[MessageQueue]) -> None:
        for group in self.groups.values():
            if topic in group.topics:
                group.set_queues(topic, queues)
                self._touched.add(group.name)

    def _tell_changes(self) -> None:
        touched, self._touched = self._touched, set()
        for name in touched:
            group = self.groups.get(name)
            if group is not None and group.take_change():
                self._tell_change(group)

    def _tell_change(self, group: Group) -> None:
        body = group.members().encode()
        ext = ConsumerGroupHeader(group.name).to_ext()
        for connection in self._brokers.get(group.name, ()):
            connection.oneway(RemotingCommand(RayMQRequestCode.GROUP_CHANGED, ext, body))
