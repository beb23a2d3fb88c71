"""ActorShell: what all our Ray actors have in common – status for the driver, and an end in order."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Any

from actors.ray_port import control, own_node_ip
from actors.service_host import NotServing, Service, ServiceHost


class ActorShell:
    """Holds a service in its host. A subclass makes the service and adds the methods of its handle.

    `spec` is what the driver wants of this actor (`cluster.plan.ActorSpec` as JSON): kept as it is, and shown
    in `raymq_status`, so that the next driver can compare.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._spec = dict(spec)
        with contextlib.suppress(PermissionError):
            # On a Ray that others started: its workers are nice(15), which only the privileged can undo.
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        self._host = ServiceHost(self.make_service)

    def make_service(self) -> Service:
        """The service, not yet started; imports what is heavy, on the service's own thread."""
        raise NotImplementedError

    def details(self) -> dict[str, Any]:
        """What the service tells about itself, in plain values; called on its loop."""
        return {}

    @control
    def raymq_status(self) -> dict[str, Any]:
        """What runs here, in plain values; answers in every state."""
        host = self._host
        status = {
            "spec": self._spec,
            "state": str(host.state),
            "reason": host.reason,
            "code_version": host.code_version,
            "pid": os.getpid(),
            "node_ip": own_node_ip(),
            "host_name": socket.gethostname(),
            "started_ms": host.started_ms,
            "details": {},
        }
        if host.is_serving:
            try:
                status["details"] = host.call(self.details)
            except (NotServing, TimeoutError) as error:
                status["reason"] = str(error)
        return status

    @control
    def raymq_stop(self) -> None:
        """Finish, flush and let go of ports and files; what comes after is the driver's."""
        self._host.stop()
