"""Capability: what one feature of the broker adds to the extension points.

A feature has a folder with a `build` module that returns its Capability. `build_broker` adds the rows to the
request table, the interceptors to the send path, the services to the role and the fields to DESCRIBE_BROKER.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from actors.broker.role import RoleService
from actors.broker.sending.interceptors import SendInterceptor
from actors.remoting.request import RequestRow


def _no_fields() -> Mapping[str, object]:
    return {}


@dataclass(frozen=True, slots=True)
class Capability:
    """The request handlers, send interceptors, services and status fields of one feature."""

    rows: Sequence[RequestRow] = ()
    interceptors: Sequence[SendInterceptor] = ()
    services: Sequence[RoleService] = ()
    fields: Callable[[], Mapping[str, object]] = _no_fields
    """Returns the entries that the feature adds to DESCRIBE_BROKER."""
