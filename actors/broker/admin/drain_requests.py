"""DrainRequests: the request that starts, cancels or shows the drain of a broker."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import orjson

from actors.broker.core.drain import BrokerDrain
from actors.broker.core.table_names import DRAIN
from actors.transport.request import RequestContext, RequestRow
from actors.wire.admin_headers import DrainBrokerHeader
from actors.wire.codes import RayMQRequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused
from actors.wire.targets import Action, DecodedRequest, Resource, Target, each_of, on_cluster, on_every

_EVERY_GROUP = on_every(Resource.GROUP, Action.LIST)  # the progress names all groups
_LOOK = each_of(on_cluster(Action.GET), _EVERY_GROUP)
_CHANGE = each_of(on_cluster(Action.UPDATE), _EVERY_GROUP)


class DrainRequests:
    """Request handler for DRAIN_BROKER."""

    def __init__(self, drain: BrokerDrain) -> None:
        self._drain = drain
        self._steps = {"look": lambda: None, "start": drain.hold, "cancel": drain.cancel}

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        row = partial(RequestRow, changes=(DRAIN,))
        return (row(RayMQRequestCode.DRAIN_BROKER, self.drain, DrainBrokerHeader, _targets),)

    def drain(self, context: RequestContext) -> None:
        """Handle DRAIN_BROKER: perform the step, and return the progress. Raises Refused for another step."""
        header: DrainBrokerHeader = context.header
        step = self._steps.get(header.step)
        if step is None:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"{header.step!r} is not a step of a drain: use {', '.join(self._steps)}",
            )
        step()
        context.spawn(self._progress())

    async def _progress(self) -> RemotingCommand:
        return RemotingCommand.response(body=orjson.dumps(await self._drain.progress()))


def _targets(context: DecodedRequest) -> Iterable[Target]:
    return (_LOOK if context.header.step == "look" else _CHANGE)(context)
