"""RocketMQ's get…Config and update…Config: read the settings of a service and change the live ones.

The texts of a service may hold more than its settings: constants that RocketMQ's tools look for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic

import orjson
from pydantic import ValidationError

from actors.remoting.codes import ResponseCode
from actors.remoting.command import Buffer, RemotingCommand
from actors.remoting.properties_text import encode_properties_text, parse_properties
from actors.remoting.remoting_errors import Refused
from actors.remoting.request import RequestContext
from store.clock import Clock
from store.live_settings import Difference, LiveSettings, Settings
from store.metadata import DataVersion

# Keys that RocketMQ's processes refuse to change by request.
BLACK_LIST = frozenset(
    {"brokerConfigPath", "configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"}
)
_REMEDY = "set it in the topology and run raymq up, which restarts what has to be"


class SettingsRequests(Generic[Settings]):
    """Handles the configuration requests of one service."""

    def __init__(
        self,
        live: LiveSettings[Settings],
        as_properties: Callable[[Settings], dict[str, str]],
        by_field: Callable[[Mapping[str, str]], tuple[dict[str, Any], list[str]]],
        clock: Clock,
    ) -> None:
        """Serve `live`.

        Args:
            live: The settings of the service.
            as_properties: Returns all settings as texts by key.
            by_field: Returns the changes by field that texts mean, and the keys that are no setting.
            clock: Stamps the version of the settings.
        """
        self._live = live
        self._clock = clock
        self._version = DataVersion()
        live.on_change(self._next_version)
        self._as_properties = as_properties
        self._by_field = by_field

    def get(self, context: RequestContext) -> RemotingCommand:
        """Handle GET_BROKER_CONFIG, GET_NAMESRV_CONFIG: all settings as properties text, by RocketMQ's keys
        if it has them.
        """
        text = encode_properties_text(self._as_properties(self._live.settings))
        version = orjson.dumps(self._version.to_json()).decode()
        return RemotingCommand.response(ext={"version": version}, body=text.encode())

    def update(self, context: RequestContext) -> RemotingCommand:
        """Handle UPDATE_BROKER_CONFIG, UPDATE_NAMESRV_CONFIG: change the settings in the properties text of
        the body, all of them or none.
        """
        present = self._as_properties(self._live.settings)
        given = _parsed(context.command.body)
        if BLACK_LIST & given.keys():
            raise Refused(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        changes, unknown = self._by_field(
            {key: value.strip() for key, value in given.items() if value != present.get(key)}
        )
        if unknown:
            raise _refused(unknown, present)
        try:
            self._live.update(changes)
        except ValidationError as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, _explained(error)) from error
        except ValueError as error:
            raise Refused(ResponseCode.NO_PERMISSION, f"{error}: {_REMEDY}") from error
        return RemotingCommand.response()

    def _next_version(self, _changed: list[Difference]) -> None:
        self._version = self._version.next(self._clock.wall_ms())


def _parsed(body: Buffer) -> dict[str, str]:
    try:
        given = parse_properties(bytes(body).decode())
    except ValueError as error:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"the body is no properties text: {error}") from error
    if not given:
        raise Refused(ResponseCode.INVALID_PARAMETER, "the body has no setting: send lines of key=value")
    return given


def _refused(unknown: list[str], present: Mapping[str, str]) -> Refused:
    fixed = [key for key in unknown if key in present]
    if fixed:
        told = ", ".join(f"{key} is {present[key]}" for key in fixed)
        return Refused(ResponseCode.NO_PERMISSION, f"{told}: always so here, it cannot be set")
    return Refused(
        ResponseCode.INVALID_PARAMETER,
        f"{', '.join(unknown)}: no such setting here; getBrokerConfig or getNamesrvConfig lists all",
    )


def _explained(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, found['loc']))} = {found['input']!r}: {found['msg']}" for found in error.errors()
    )
