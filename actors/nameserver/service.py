"""NameserverService: answers where topics are, over remoting; soft state, told by the brokers every 30 s."""

import zlib

from actors.host.descriptors import connections_that_fit
from actors.host.settings_requests import SettingsRequests
from actors.host.supervisor import GiveUp, Supervisor
from actors.nameserver.kv_config import ORDER_TOPIC_CONFIG, KVConfig
from actors.nameserver.nameserver_settings import NameserverSettings, as_properties, by_field
from actors.nameserver.route_table import BrokerIdentity, RouteTable
from actors.remoting.bodies.routes import (
    RegisterBrokerBody,
    encode_data_version,
    encode_kv_table,
    encode_topic_list,
    read_data_version,
)
from actors.remoting.codes import RequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.connection import Connection
from actors.remoting.headers import (
    BrokerHeartbeatHeader,
    BrokerNameHeader,
    ClusterHeader,
    DeleteTopicHeader,
    GetRouteInfoHeader,
    KVConfigHeader,
    KVKeyHeader,
    NamespaceHeader,
    QueryDataVersionHeader,
    RegisterBrokerHeader,
    RegisterBrokerResponse,
    UnregisterBrokerHeader,
)
from actors.remoting.json_fields import load_object
from actors.remoting.limits import RemotingLimits
from actors.remoting.remoting_errors import Refused
from actors.remoting.request import Action, Cost, Handler, HeaderType, RequestContext, Resource
from actors.remoting.server import RemotingServer
from actors.remoting.table import RequestTable
from store.clock import NS_PER_MS, Clock
from store.live_settings import LiveSettings
from store.logs import get_logger

_log = get_logger(__name__)

OTHER_DESCRIPTORS = 64
_CRC_MASK = 0x7FFF_FFFF
# RocketMQ's clients add a line of their own to a remark that has none like this.
SEE_FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


class NameserverService:
    """One nameserver; nameservers do not know of each other."""

    def __init__(self, settings: NameserverSettings, clock: Clock, give_up: GiveUp | None = None) -> None:
        self.settings = settings
        self.live = LiveSettings(settings)
        self.routes = RouteTable(settings.delete_topic_with_broker_registration)
        self.kv_config = KVConfig(settings.data_dir)
        fitting = connections_that_fit(settings.max_connections, OTHER_DESCRIPTORS)
        self.server = RemotingServer(self._table(clock), clock, RemotingLimits(max_connections=fitting))
        self._clock = clock
        self._supervisor = Supervisor(clock, give_up)

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{self.settings.listen_host}:{self.server.port}"

    async def start(self) -> None:
        """Load the kv config and listen as the settings say; raises OSError or StoreError."""
        await self.serve(self.settings.listen_host, self.settings.listen_port)

    async def serve(self, host: str, port: int) -> int:
        """Load the kv config and listen; returns the port. Raises OSError or StoreError."""
        self.kv_config.load()
        await self.server.start(host, port)
        self._supervisor.every("broker-expiry", lambda: self.settings.scan_interval_ms, self.expire_brokers)
        _log.info("nameserver_serving", host=host, port=self.server.port)
        return self.server.port

    async def stop(self) -> None:
        """Stop listening and close all connections."""
        await self._supervisor.stop()
        await self.server.stop()

    def describe(self) -> dict[str, object]:
        """Return the nameserver's address and counters."""
        return {
            "address": self.address,
            "topics": len(self.routes.topics()),
            "background_task_failures": self._supervisor.failures,
        }

    def expire_brokers(self) -> None:
        """Drop the brokers that have been silent for too long."""
        for live in self.routes.expire(self._clock.monotonic_ns()):
            if isinstance(live.connection, Connection):
                live.connection.close("nothing heard of this broker for too long")

    def _table(self, clock: Clock) -> RequestTable:
        code, action, topic, cluster = RequestCode, Action, Resource.TOPIC, Resource.CLUSTER
        query, heartbeat, admin = Cost.QUERY, Cost.HEARTBEAT, Cost.ADMIN
        config = SettingsRequests(self.live, as_properties, by_field, clock)
        rows: tuple[tuple[RequestCode, Handler, HeaderType | None, Resource, Action, Cost], ...] = (
            (code.GET_ROUTEINFO_BY_TOPIC, self._route, GetRouteInfoHeader, topic, action.GET, query),
            (code.GET_BROKER_CLUSTER_INFO, self._cluster_info, None, cluster, action.GET, query),
            (code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, self._all_topics, None, topic, action.LIST, query),
            (code.GET_TOPICS_BY_CLUSTER, self._cluster_topics, ClusterHeader, topic, action.LIST, query),
            (code.GET_SYSTEM_TOPIC_LIST_FROM_NS, self._system_topics, None, topic, action.LIST, query),
            (
                code.DELETE_TOPIC_IN_NAMESRV,
                self._delete_topic,
                DeleteTopicHeader,
                topic,
                action.DELETE,
                admin,
            ),
            (code.REGISTER_BROKER, self._register, RegisterBrokerHeader, cluster, action.UPDATE, admin),
            (code.UNREGISTER_BROKER, self._unregister, UnregisterBrokerHeader, cluster, action.UPDATE, admin),
            (
                code.QUERY_DATA_VERSION,
                self._data_version,
                QueryDataVersionHeader,
                cluster,
                action.UPDATE,
                heartbeat,
            ),
            (
                code.BROKER_HEARTBEAT,
                self._heartbeat,
                BrokerHeartbeatHeader,
                cluster,
                action.UPDATE,
                heartbeat,
            ),
            (code.WIPE_WRITE_PERM_OF_BROKER, self._wipe, BrokerNameHeader, cluster, action.UPDATE, admin),
            (code.ADD_WRITE_PERM_OF_BROKER, self._add_write, BrokerNameHeader, cluster, action.UPDATE, admin),
            (code.PUT_KV_CONFIG, self._put_kv, KVConfigHeader, cluster, action.UPDATE, admin),
            (code.GET_KV_CONFIG, self._get_kv, KVKeyHeader, cluster, action.GET, query),
            (code.DELETE_KV_CONFIG, self._delete_kv, KVKeyHeader, cluster, action.UPDATE, admin),
            (code.GET_KVLIST_BY_NAMESPACE, self._kv_list, NamespaceHeader, cluster, action.LIST, query),
            (code.GET_NAMESRV_CONFIG, config.get, None, cluster, action.GET, query),
            (code.UPDATE_NAMESRV_CONFIG, config.update, None, cluster, action.UPDATE, admin),
        )
        table = RequestTable()
        for entry, handler, header_type, resource, what, cost in rows:
            table.add(entry, handler, header_type, resource=resource, action=what, cost=cost)
        return table

    # ---- routes --------------------------------------------------------------------------------------

    def _route(self, context: RequestContext) -> RemotingCommand:
        header: GetRouteInfoHeader = context.header
        is_ordered = self.settings.order_message_enable
        order_conf = self.kv_config.get(ORDER_TOPIC_CONFIG, header.topic) if is_ordered else None
        body = self.routes.encoded_route(header.topic, order_conf)
        if body is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {header.topic}{SEE_FAQ}",
            )
        return RemotingCommand.response(body=body)

    def _cluster_info(self, context: RequestContext) -> RemotingCommand:
        return RemotingCommand.response(body=self.routes.cluster_info().encode())

    def _all_topics(self, context: RequestContext) -> RemotingCommand:
        return RemotingCommand.response(body=encode_topic_list(self.routes.topics()))

    def _cluster_topics(self, context: RequestContext) -> RemotingCommand:
        header: ClusterHeader = context.header
        return RemotingCommand.response(body=encode_topic_list(self.routes.topics(header.cluster)))

    def _system_topics(self, context: RequestContext) -> RemotingCommand:
        return RemotingCommand.response(body=encode_topic_list(self.routes.system_topics()))

    def _delete_topic(self, context: RequestContext) -> RemotingCommand:
        header: DeleteTopicHeader = context.header
        self.routes.delete_topic(header.topic, header.cluster_name)
        return RemotingCommand.response()

    # ---- brokers -------------------------------------------------------------------------------------

    def _register(self, context: RequestContext) -> RemotingCommand:
        header: RegisterBrokerHeader = context.header
        body = context.command.body
        if header.body_crc32 and header.body_crc32 != zlib.crc32(body) & _CRC_MASK:
            raise Refused(ResponseCode.SYSTEM_ERROR, "the body's CRC is not the one that the header gives")
        decoded = RegisterBrokerBody.decode(body, header.compressed) if body else RegisterBrokerBody()
        broker = BrokerIdentity(
            header.cluster_name,
            header.broker_name,
            header.broker_id,
            header.broker_addr,
            header.ha_server_addr,
            bool(header.enable_acting_master),
        )
        expiry_ms = header.heartbeat_timeout_millis or self.settings.broker_expiry_ms
        connection = context.connection
        master = self.routes.register(
            broker, decoded, connection, self._clock.monotonic_ns(), expiry_ms * NS_PER_MS
        )
        if not connection.attributes.extra.get("registers"):
            connection.attributes.extra["registers"] = True
            connection.on_close(self.routes.connection_closed)
        answer = RegisterBrokerResponse() if master is None else RegisterBrokerResponse(master[1], master[0])
        order = self.kv_config.namespace(ORDER_TOPIC_CONFIG)
        body = encode_kv_table(order) if order else b""
        return RemotingCommand.response(ext=answer.to_ext(), body=body)

    def _unregister(self, context: RequestContext) -> RemotingCommand:
        header: UnregisterBrokerHeader = context.header
        self.routes.unregister(header.broker_name, header.broker_id, header.broker_addr)
        return RemotingCommand.response()

    def _data_version(self, context: RequestContext) -> RemotingCommand:
        header: QueryDataVersionHeader = context.header
        theirs = read_data_version(load_object(context.command.body, "DataVersion"))
        ours = self.routes.data_version(header.broker_addr)
        is_changed = ours != theirs
        if not is_changed:
            self.routes.heard(header.broker_addr, self._clock.monotonic_ns())
        body = b"" if ours is None else encode_data_version(ours)
        return RemotingCommand.response(ext={"changed": "true" if is_changed else "false"}, body=body)

    def _heartbeat(self, context: RequestContext) -> RemotingCommand:
        header: BrokerHeartbeatHeader = context.header
        self.routes.heard(header.broker_addr, self._clock.monotonic_ns())
        return RemotingCommand.response()

    def _wipe(self, context: RequestContext) -> RemotingCommand:
        header: BrokerNameHeader = context.header
        count = self.routes.change_write_permission(header.broker_name, is_writable=False)
        return RemotingCommand.response(ext={"wipeTopicCount": str(count)})

    def _add_write(self, context: RequestContext) -> RemotingCommand:
        header: BrokerNameHeader = context.header
        count = self.routes.change_write_permission(header.broker_name, is_writable=True)
        return RemotingCommand.response(ext={"addTopicCount": str(count)})

    # ---- kv config -----------------------------------------------------------------------------------

    def _put_kv(self, context: RequestContext) -> RemotingCommand:
        header: KVConfigHeader = context.header
        self.kv_config.put(header.namespace, header.key, header.value)
        return RemotingCommand.response()

    def _get_kv(self, context: RequestContext) -> RemotingCommand:
        header: KVKeyHeader = context.header
        value = self.kv_config.get(header.namespace, header.key)
        if value is None:
            raise Refused(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return RemotingCommand.response(ext={"value": value})

    def _delete_kv(self, context: RequestContext) -> RemotingCommand:
        header: KVKeyHeader = context.header
        self.kv_config.delete(header.namespace, header.key)
        return RemotingCommand.response()

    def _kv_list(self, context: RequestContext) -> RemotingCommand:
        header: NamespaceHeader = context.header
        table = self.kv_config.namespace(header.namespace)
        if table is None:
            raise Refused(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace}")
        return RemotingCommand.response(body=encode_kv_table(table))
