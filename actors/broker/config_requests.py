"""RocketMQ's getBrokerConfig and updateBrokerConfig: settings read and, where they are live, changed."""

from __future__ import annotations

import orjson
from pydantic import ValidationError

from actors.broker.live import LiveBroker
from actors.broker.settings_text import as_properties, by_field
from actors.remoting.chain import RequestContext
from actors.remoting.codes import ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.errors import Refused
from actors.remoting.properties_text import encode_properties_text, parse_properties
from store.live_settings import with_changes

_CURE = "set it in the topology and run raymq up, which restarts one broker at a time"


class ConfigRequests:
    """Answers for the settings of one broker."""

    def __init__(self, live: LiveBroker) -> None:
        self._live = live

    def get(self, context: RequestContext) -> RemotingCommand:
        """GET_BROKER_CONFIG: all settings as properties text, RocketMQ's keys where it has them."""
        text = encode_properties_text(as_properties(self._live.settings))
        version = orjson.dumps(self._live.version.to_json()).decode()
        return RemotingCommand.response(ext={"version": version}, body=text.encode())

    def update(self, context: RequestContext) -> RemotingCommand:
        """UPDATE_BROKER_CONFIG: the settings in the properties text of the body, all of them or none."""
        try:
            given = parse_properties(bytes(context.command.body).decode())
        except ValueError as error:
            raise Refused(
                ResponseCode.INVALID_PARAMETER, f"the body is no properties text: {error}"
            ) from error
        if not given:
            raise Refused(ResponseCode.INVALID_PARAMETER, "the body has no setting: send lines of key=value")
        present = as_properties(self._live.settings)
        changes, unknown = by_field(
            {key: value.strip() for key, value in given.items() if value != present.get(key)}
        )
        if unknown:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"{', '.join(unknown)}: no such setting here; getBrokerConfig lists all there are",
            )
        try:
            self._live.change(with_changes(self._live.settings, changes))
        except ValidationError as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, _explained(error)) from error
        except ValueError as error:
            raise Refused(ResponseCode.NO_PERMISSION, f"{error}: {_CURE}") from error
        return RemotingCommand.response()


def _explained(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, found['loc']))} = {found['input']!r}: {found['msg']}" for found in error.errors()
    )
