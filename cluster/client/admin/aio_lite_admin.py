"""Async admin requests about lite topics. Results are RocketMQ's JSON objects, by broker; -1 is unknown."""

from __future__ import annotations

from typing import Any

import orjson

from actors.wire.bodies.lite import (
    LiteClientHeader,
    LiteDispatchHeader,
    LiteGroupHeader,
    LiteTopicHeader,
    ParentTopicHeader,
)
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.header import Header
from cluster.client.admin.admin_core import AdminCore
from cluster.client.errors import GroupNotFound, NotSupported

Content = dict[str, Any]


class LiteAdmin(AdminCore):
    """Requests about lite topics, their groups and clients."""

    async def lite_topics(
        self, topic: str, match: str = "", limit: int = 100, *, name: str = ""
    ) -> dict[str, Content]:
        """Return the first `limit` lite topics of `topic` with `match` in their names, or that with `name`.

        Raises NotSupported for brokers of RocketMQ.
        """
        code = RequestCode.GET_PARENT_TOPIC_INFO
        found = await self._of_topic(topic, code, ParentTopicHeader(topic, match, name, limit))
        if not all("liteTopics" in content for content in found.values()):
            raise NotSupported(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "the broker lists no lite topics")
        return found

    async def lite_topic(self, topic: str, name: str) -> dict[str, Content]:
        """Return the offsets and the subscribers of a lite topic."""
        return await self._of_topic(topic, RequestCode.GET_LITE_TOPIC_INFO, LiteTopicHeader(topic, name))

    async def lite_client(self, topic: str, group: str, client_id: str) -> dict[str, Content]:
        """Return the lite topics that a client subscribes."""
        header = LiteClientHeader(topic, group, client_id)
        return await self._of_topic(topic, RequestCode.GET_LITE_CLIENT_INFO, header)

    async def lite_group(self, group: str, lite_topic: str = "", top: int = 0) -> dict[str, Content]:
        """Return how far a group is behind, in one lite topic, or in all with the `top` worst ones.

        Raises GroupNotFound.
        """
        header = LiteGroupHeader(group, lite_topic, top)
        found = await self._of_group(RequestCode.GET_LITE_GROUP_INFO, header)
        return {broker: orjson.loads(response.body) for broker, response in found.items()}

    async def dispatch_lite(self, group: str, client_id: str = "") -> None:
        """Let brokers look at all lite topics of a client, or of all, again. Raises GroupNotFound."""
        await self._of_group(RequestCode.TRIGGER_LITE_DISPATCH, LiteDispatchHeader(group, client_id))

    async def _of_topic(self, topic: str, code: RequestCode, header: Header) -> dict[str, Content]:
        masters = (await self.route(topic)).all_masters()
        return {
            broker: orjson.loads((await self._call(address, code, header)).body)
            for broker, address in masters.items()
        }

    async def _of_group(self, code: RequestCode, header: Header) -> dict[str, RemotingCommand]:
        """Return the response of each broker that has the group, at least one. Raises GroupNotFound."""
        found: dict[str, RemotingCommand] = {}
        missing: GroupNotFound | None = None
        for broker, address in (await self._masters(None)).items():
            try:
                found[broker] = await self._call(address, code, header)
            except GroupNotFound as error:
                missing = error
        if missing is not None and not found:
            raise missing
        return found
