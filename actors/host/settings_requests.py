"""SettingsRequests: RocketMQ's requests to read and change the settings of a broker or nameserver.

Only live settings can be changed. The response to a read also has constants that RocketMQ's tools expect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic

import orjson
from pydantic import ValidationError

from actors.transport.request import RequestContext
from actors.wire.codes import ResponseCode
from actors.wire.command import Buffer, RemotingCommand
from actors.wire.properties_text import encode_properties_text, parse_properties
from actors.wire.remoting_errors import Refused
from store.common.clock import Clock
from store.common.live_settings import Difference, LiveSettings, Settings
from store.message.data_version import DataVersion

# Keys that RocketMQ's brokers and nameservers refuse to change by request.
BLACK_LIST = frozenset(
    {"brokerConfigPath", "configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"}
)
BODY_BYTES_MAX = 32 * 1024
"""Limit of a request to change settings; all settings of a broker have a third of it."""
_REMEDY = "set it in the topology and run raymq up, which restarts the processes"


class SettingsRequests(Generic[Settings]):
    """Handles the configuration requests of one broker or nameserver."""

    def __init__(
        self,
        live: LiveSettings[Settings],
        as_properties: Callable[[Settings], dict[str, str]],
        by_field: Callable[[Mapping[str, str]], tuple[dict[str, Any], list[str]]],
        clock: Clock,
    ) -> None:
        """Create the handlers.

        Args:
            live: the settings of the service.
            as_properties: converts all settings to texts by key.
            by_field: converts texts by key to changes by field; also returns the unknown keys.
            clock: for the timestamp of the settings' version.
        """
        self._live = live
        self._clock = clock
        self._version = DataVersion()
        live.on_change(self._next_version)
        self._as_properties = as_properties
        self._by_field = by_field

    def get(self, context: RequestContext) -> RemotingCommand:
        """Handle GET_BROKER_CONFIG and GET_NAMESRV_CONFIG: return all settings as a properties text.

        The keys are RocketMQ's, if RocketMQ has the setting.
        """
        text = encode_properties_text(self._as_properties(self._live.settings))
        version = orjson.dumps(self._version.to_json()).decode()
        return RemotingCommand.response(ext={"version": version}, body=text.encode())

    def update(self, context: RequestContext) -> RemotingCommand:
        """Handle UPDATE_BROKER_CONFIG and UPDATE_NAMESRV_CONFIG: change settings, all or none.

        The body is a properties text of the settings to change.
        """
        present = self._as_properties(self._live.settings)
        given = _parse_body(context.command.body)
        if BLACK_LIST & given.keys():
            raise Refused(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        changes, unknown = self._by_field(
            {key: value.strip() for key, value in given.items() if value != present.get(key)}
        )
        if unknown:
            raise _refusal_of(unknown, present)
        try:
            self._live.update(changes)
        except ValidationError as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, _describe_errors(error)) from error
        except ValueError as error:
            raise Refused(ResponseCode.NO_PERMISSION, f"{error}: {_REMEDY}") from error
        return RemotingCommand.response()

    def _next_version(self, _changed: list[Difference]) -> None:
        self._version = self._version.next(self._clock.wall_ms())


def _parse_body(body: Buffer) -> dict[str, str]:
    if len(body) > BODY_BYTES_MAX:
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"the body of {len(body):,} bytes exceeds the limit of {BODY_BYTES_MAX:,} for settings: send "
            "only those to change",
        )
    try:
        given = parse_properties(bytes(body).decode())
    except ValueError as error:
        raise Refused(
            ResponseCode.INVALID_PARAMETER, f"the body is not valid properties text: {error}"
        ) from error
    if not given:
        raise Refused(ResponseCode.INVALID_PARAMETER, "the body has no settings: send lines of key=value")
    return given


def _refusal_of(unknown: list[str], present: Mapping[str, str]) -> Refused:
    fixed = [key for key in unknown if key in present]
    if fixed:
        values = ", ".join(f"{key} is {present[key]}" for key in fixed)
        return Refused(ResponseCode.NO_PERMISSION, f"{values}: a constant in RayMQ, it cannot be changed")
    return Refused(
        ResponseCode.INVALID_PARAMETER,
        f"{', '.join(unknown)}: unknown setting; getBrokerConfig or getNamesrvConfig lists all settings",
    )


def _describe_errors(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, found['loc']))} = {found['input']!r}: {found['msg']}" for found in error.errors()
    )
