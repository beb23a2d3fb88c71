"""NameserverRequests: the handlers of a nameserver's requests, and its request table."""

import asyncio
import zlib
from functools import partial

from actors.host.cluster_access import PROVE_ROW
from actors.host.settings_requests import SettingsRequests
from actors.nameserver.kv_config import ORDER_TOPIC_CONFIG, KVConfig
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.route_table import Registrant, RouteTable
from actors.transport.connection import Connection
from actors.transport.request import Cost, RequestContext, RequestRow
from actors.transport.table import RequestTable
from actors.wire.bodies.routes import (
    DATA_VERSION_VALUES_MAX,
    RegisterBrokerBody,
    encode_data_version,
    encode_kv_table,
    encode_topic_list,
    read_data_version,
)
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import MAX_FRAME_BYTES, RemotingCommand
from actors.wire.headers import (
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
from actors.wire.json_fields import load_request
from actors.wire.remoting_errors import Refused
from actors.wire.targets import Action, Resource, on_cluster, on_every, on_topic
from store.common.clock import NS_PER_MS, Clock

DECODED_ON_LOOP_BYTES = 64 * 1024
"""Longer registrations, and all compressed ones, are decoded in a thread."""
_CRC_MASK = 0x7FFF_FFFF
# Without this ending, RocketMQ's clients append another line to the remark.
SEE_FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


class NameserverRequests:
    """Handles the requests of brokers, clients and tools, with one route table and one kv config."""

    def __init__(
        self, settings: NameserverSettings, routes: RouteTable, kv_config: KVConfig, clock: Clock
    ) -> None:
        self._settings = settings
        self._routes = routes
        self._kv_config = kv_config
        self._clock = clock
        self._brokers: set[Connection] = set()
        """The connections over which brokers have registered."""
        self._decoding = asyncio.Lock()

    def table(self, config: SettingsRequests[NameserverSettings]) -> RequestTable:
        """Return the request table; `config` handles the requests for the settings."""
        code, row = RequestCode, RequestRow
        query, heartbeat = Cost.QUERY, Cost.HEARTBEAT
        topics, update = on_every(Resource.TOPIC, Action.LIST), on_cluster(Action.UPDATE)
        get, every = on_cluster(Action.GET), on_cluster(Action.LIST)
        delete_topic = on_topic(Action.DELETE)
        of_broker = partial(RequestRow, targets=update, is_inner=not self._settings.users_register_brokers)
        rows = (
            row(code.GET_ROUTEINFO_BY_TOPIC, self._route, GetRouteInfoHeader, on_topic(Action.GET), query),
            row(code.GET_BROKER_CLUSTER_INFO, self._cluster_info, None, get, query),
            row(code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, self._all_topics, None, topics, query),
            row(code.GET_TOPICS_BY_CLUSTER, self._cluster_topics, ClusterHeader, topics, query),
            row(code.GET_SYSTEM_TOPIC_LIST_FROM_NS, self._system_topics, None, topics, query),
            row(code.DELETE_TOPIC_IN_NAMESRV, self._delete_topic, DeleteTopicHeader, delete_topic),
            of_broker(
                code.REGISTER_BROKER, self._register, RegisterBrokerHeader, body_bytes_max=MAX_FRAME_BYTES
            ),
            of_broker(code.UNREGISTER_BROKER, self._unregister, UnregisterBrokerHeader),
            of_broker(code.QUERY_DATA_VERSION, self._data_version, QueryDataVersionHeader, cost=heartbeat),
            of_broker(code.BROKER_HEARTBEAT, self._heartbeat, BrokerHeartbeatHeader, cost=heartbeat),
            row(code.WIPE_WRITE_PERM_OF_BROKER, self._wipe, BrokerNameHeader, update),
            row(code.ADD_WRITE_PERM_OF_BROKER, self._add_write, BrokerNameHeader, update),
            row(code.PUT_KV_CONFIG, self._put_kv, KVConfigHeader, update),
            row(code.GET_KV_CONFIG, self._get_kv, KVKeyHeader, get, query),
            row(code.DELETE_KV_CONFIG, self._delete_kv, KVKeyHeader, update),
            row(code.GET_KVLIST_BY_NAMESPACE, self._kv_list, NamespaceHeader, every, query),
            row(code.GET_NAMESRV_CONFIG, config.get, None, get, query),
            row(code.UPDATE_NAMESRV_CONFIG, config.update, None, update),
            PROVE_ROW,
        )
        return RequestTable(rows)

    # ---- routes --------------------------------------------------------------------------------------

    def _route(self, context: RequestContext) -> RemotingCommand:
        header: GetRouteInfoHeader = context.header
        is_ordered = self._settings.order_message_enable
        order_conf = self._kv_config.get(ORDER_TOPIC_CONFIG, header.topic) if is_ordered else None
        body = self._routes.encoded_route(header.topic, order_conf)
        if body is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {header.topic}{SEE_FAQ}",
            )
        return RemotingCommand.response(body=body)

    def _cluster_info(self, context: RequestContext) -> RemotingCommand:
        return RemotingCommand.response(body=self._routes.cluster_info().encode())

    def _all_topics(self, context: RequestContext) -> RemotingCommand:
        return RemotingCommand.response(body=encode_topic_list(self._routes.topics()))

    def _cluster_topics(self, context: RequestContext) -> RemotingCommand:
        header: ClusterHeader = context.header
        return RemotingCommand.response(body=encode_topic_list(self._routes.topics(header.cluster)))

    def _system_topics(self, context: RequestContext) -> RemotingCommand:
        # RocketMQ's tools request the other system topics from the broker in the response.
        body = encode_topic_list(self._routes.system_topics(), self._routes.any_broker_address())
        return RemotingCommand.response(body=body)

    def _delete_topic(self, context: RequestContext) -> RemotingCommand:
        header: DeleteTopicHeader = context.header
        self._routes.delete_topic(header.topic, header.cluster_name)
        return RemotingCommand.response()

    # ---- brokers -------------------------------------------------------------------------------------

    def _register(self, context: RequestContext) -> RemotingCommand | None:
        header: RegisterBrokerHeader = context.header
        body = context.command.body
        if header.body_crc32 and header.body_crc32 != zlib.crc32(body) & _CRC_MASK:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, "the CRC of the body differs from bodyCrc32 in the header"
            )
        if len(body) > DECODED_ON_LOOP_BYTES or (body and header.compressed):
            context.spawn(self._decode_and_register(context))
            return None
        return self._registered(context, RegisterBrokerBody.decode(body) if body else RegisterBrokerBody())

    async def _decode_and_register(self, context: RequestContext) -> RemotingCommand:
        header: RegisterBrokerHeader = context.header
        body, topics_max = context.command.body, self._settings.max_topics
        async with self._decoding:  # one at a time: each may inflate to 64 MiB
            decoded = await asyncio.to_thread(RegisterBrokerBody.decode, body, header.compressed, topics_max)
        return self._registered(context, decoded)

    def _registered(self, context: RequestContext, decoded: RegisterBrokerBody) -> RemotingCommand:
        header: RegisterBrokerHeader = context.header
        broker = Registrant(
            header.cluster_name,
            header.broker_name,
            header.broker_id,
            header.broker_addr,
            header.ha_server_addr,
            bool(header.enable_acting_master),
        )
        expiry_ms = header.heartbeat_timeout_millis or self._settings.broker_expiry_ms
        connection = context.connection
        now_ns, is_partial = self._clock.monotonic_ns(), bool(header.partial)
        holder = self._routes.other_holder(broker)
        master = self._routes.register(
            broker, decoded, connection, now_ns, expiry_ms * NS_PER_MS, is_partial=is_partial
        )
        if connection not in self._brokers:
            self._brokers.add(connection)
            connection.on_close(self._connection_closed)
        if (
            holder is not None
            and holder.data_version.state_version < decoded.data_version.state_version
            and isinstance(holder.connection, Connection)
        ):
            # It registers again at once, is refused, and fences itself if it is a former master.
            holder.connection.close(f"{broker.address} has registered the id of {holder.identity.address}")
        response = (
            RegisterBrokerResponse() if master is None else RegisterBrokerResponse(master[1], master[0])
        )
        order = self._kv_config.namespace(ORDER_TOPIC_CONFIG)
        body = encode_kv_table(order) if order else b""
        return RemotingCommand.response(ext=response.to_ext(), body=body)

    def _connection_closed(self, connection: Connection) -> None:
        self._brokers.discard(connection)
        self._routes.connection_closed(connection)

    def _unregister(self, context: RequestContext) -> RemotingCommand:
        header: UnregisterBrokerHeader = context.header
        self._routes.unregister(header.broker_name, header.broker_id, header.broker_addr)
        return RemotingCommand.response()

    def _data_version(self, context: RequestContext) -> RemotingCommand:
        header: QueryDataVersionHeader = context.header
        theirs = read_data_version(load_request(context.command.body, "DataVersion", DATA_VERSION_VALUES_MAX))
        ours = self._routes.data_version(header.broker_addr)
        is_changed = ours != theirs
        if not is_changed:
            self._routes.record_heartbeat(header.broker_addr, self._clock.monotonic_ns())
        body = b"" if ours is None else encode_data_version(ours)
        return RemotingCommand.response(ext={"changed": "true" if is_changed else "false"}, body=body)

    def _heartbeat(self, context: RequestContext) -> RemotingCommand:
        header: BrokerHeartbeatHeader = context.header
        self._routes.record_heartbeat(header.broker_addr, self._clock.monotonic_ns())
        return RemotingCommand.response()

    def _wipe(self, context: RequestContext) -> RemotingCommand:
        header: BrokerNameHeader = context.header
        count = self._routes.change_write_permission(header.broker_name, is_writable=False)
        return RemotingCommand.response(ext={"wipeTopicCount": str(count)})

    def _add_write(self, context: RequestContext) -> RemotingCommand:
        header: BrokerNameHeader = context.header
        count = self._routes.change_write_permission(header.broker_name, is_writable=True)
        return RemotingCommand.response(ext={"addTopicCount": str(count)})

    # ---- kv config -----------------------------------------------------------------------------------

    def _put_kv(self, context: RequestContext) -> RemotingCommand:
        header: KVConfigHeader = context.header
        self._kv_config.put(header.namespace, header.key, header.value)
        return RemotingCommand.response()

    def _get_kv(self, context: RequestContext) -> RemotingCommand:
        header: KVKeyHeader = context.header
        value = self._kv_config.get(header.namespace, header.key)
        if value is None:
            raise Refused(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return RemotingCommand.response(ext={"value": value})

    def _delete_kv(self, context: RequestContext) -> RemotingCommand:
        header: KVKeyHeader = context.header
        self._kv_config.delete(header.namespace, header.key)
        return RemotingCommand.response()

    def _kv_list(self, context: RequestContext) -> RemotingCommand:
        header: NamespaceHeader = context.header
        table = self._kv_config.namespace(header.namespace)
        if table is None:
            raise Refused(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace}")
        return RemotingCommand.response(body=encode_kv_table(table))
