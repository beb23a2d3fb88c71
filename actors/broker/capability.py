"""Capability: what one feature of the broker adds to the extension points.

A feature has a folder with a `build` module that returns its Capability. `build_broker` adds the rows to the
request table, the interceptors to the send path, the services to the role and the figures to the broker's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from actors.broker.role import RoleService
from actors.broker.sending.interceptors import SendInterceptor
from actors.host.figures import Figure
from actors.remoting.request import RequestRow


@dataclass(frozen=True, slots=True)
class Capability:
    """The request handlers, send interceptors, services and figures of one feature."""

    rows: Sequence[RequestRow] = ()
    interceptors: Sequence[SendInterceptor] = ()
    services: Sequence[RoleService] = ()
    figures: Sequence[Figure] = ()
