"""AdminCore: connections of the async admin, and calls to one, all, or a topic's masters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import TracebackType
from typing import Self

from actors.remoting.bodies.routes import ClusterInfo
from actors.remoting.codes import RequestCode, ResponseCode
from actors.remoting.command import Buffer, RemotingCommand
from actors.remoting.header import Header
from cluster.client.config import ClientConfig, Nameservers
from cluster.client.errors import ClientClosed, ConfigInvalid, refused
from cluster.client.transport.instance import ClientInstance
from cluster.client.transport.topic_route import TopicRoute
from store.clock import Clock
from store.message.message_queue import MessageQueue


class AdminCore:
    """Connections, and calls to nameservers and masters."""

    def __init__(
        self,
        nameservers: Nameservers | None = None,
        *,
        config: ClientConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        config = config or ClientConfig()
        self._config = config if nameservers is None else replace(config, nameservers=nameservers)
        self._config.addresses()
        self._clock = clock
        self._instance: ClientInstance | None = None
        self._is_closed = False

    async def start(self) -> Self:
        """Open the admin. `async with` and the first call do it too."""
        self._opened()
        return self

    async def close(self) -> None:
        """End the connections."""
        self._is_closed = True
        if self._instance is not None:
            await self._instance.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def route(self, topic: str) -> TopicRoute:
        """Return where the queues of `topic` are. Raises TopicNotFound."""
        return await self._opened().routes.refresh(topic)

    async def cluster_info(self) -> ClusterInfo:
        """Return all brokers and their addresses, joined from all nameservers."""
        known = ClusterInfo()
        for answer in await self._request_nameservers(RequestCode.GET_BROKER_CLUSTER_INFO):
            info = ClusterInfo.decode(answer.body)
            known.brokers = info.brokers | known.brokers
            for cluster, names in info.clusters.items():
                known.clusters[cluster] = sorted({*known.clusters.get(cluster, ()), *names})
        return known

    async def _queues(self, topic: str) -> list[MessageQueue]:
        route = await self.route(topic)
        return sorted({*route.readable, *route.keyed})

    async def _masters(self, brokers: Iterable[str] | None) -> dict[str, str]:
        """Return the masters' addresses by broker name. Raises ConfigInvalid for an unknown broker."""
        info = await self.cluster_info()
        masters = {
            name: data.broker_addrs[0]
            for name, data in sorted(info.brokers.items())
            if 0 in data.broker_addrs
        }
        if brokers is None:
            return masters
        wanted = list(brokers)
        missing = sorted(set(wanted) - masters.keys())
        if missing:
            raise ConfigInvalid(
                f"no broker {', '.join(missing)} in the cluster; there are: {', '.join(masters)}"
            )
        return {name: masters[name] for name in wanted}

    async def _request_nameservers(self, code: int, header: Header | None = None) -> list[RemotingCommand]:
        """Return the responses of all nameservers that respond, at least one. Raises BrokerRefused."""
        ext = {} if header is None else header.to_ext()
        answers = await self._opened().nameservers.request_all(lambda: RemotingCommand(code, dict(ext)))
        for answer in answers:
            if answer.code != ResponseCode.SUCCESS:
                raise refused(answer.code, answer.remark)
        return answers

    async def _master(self, broker: str) -> str:
        """Return the address of one broker's master. Raises ConfigInvalid."""
        return (await self._masters([broker]))[broker]

    async def _master_of_queue(self, queue: MessageQueue) -> str:
        route = await self._opened().routes.get(queue.topic)
        return route.master(queue.broker_name) or await self._master(queue.broker_name)

    async def _call(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: Buffer = b"",
        timeout_ms: int | None = None,
    ) -> RemotingCommand:
        ext = {} if header is None else header.to_ext()
        return await self._opened().invoke(address, RemotingCommand(code, ext, body), timeout_ms)

    def _opened(self) -> ClientInstance:
        if self._is_closed:
            raise ClientClosed("the admin is closed")
        if self._instance is None:
            self._instance = ClientInstance(self._config, clock=self._clock)
        return self._instance
