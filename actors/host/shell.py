"""ActorShell: what all our Ray actors have in common – status for the driver, and an end in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from actors.host.kept_spec import KeptSpec, directory_of
from actors.host.ray_port import control, logs_folder, own_actor_id, own_node_ip
from actors.host.service_host import NotServing, Service, ServiceHost
from store.live_settings import Difference, with_values
from store.logs import get_logger, log_to_file

log = get_logger(__name__)


class ActorShell:
    """Holds a service in its host. A subclass makes the service and adds the methods of its handle.

    `spec` is what the driver wants of this actor (`cluster.driver.plan.ActorSpec` as JSON): kept as it is,
    but for settings that are changed while it runs, and shown in `raymq_status`, so that the next driver can
    compare.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._log = start_log(str(spec.get("namespace", "raymq")), str(spec["name"]))
        self._kept = KeptSpec(directory_of(spec), own_actor_id())
        self._spec = self._kept.load(spec)
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

    def change_settings(self, settings: Mapping[str, Any]) -> None:
        """Have the service be as these settings say; called on its loop.

        Raises ValueError, naming them, for those that need a restart.
        """
        raise NotImplementedError

    def settings_changed(self, changes: Sequence[Difference]) -> None:
        """Keep changed settings in the spec: a restart begins with them, and the driver sees them."""
        settings = with_values(self._spec["settings"], {each.path: each.wanted for each in changes})
        self._spec = {**self._spec, "settings": settings}
        asyncio.get_running_loop().run_in_executor(None, self._keep_spec)

    def _keep_spec(self) -> None:
        try:
            self._kept.keep(self._spec)
        except OSError:
            log.exception("changed_settings_not_kept", effect="a restart loses them")

    def service_failed(self, reason: str) -> None:
        """Stop the service and end this process, so that Ray starts another; called on the service's loop."""
        self._host.fail(reason)

    @control
    def raymq_change(self, spec: Mapping[str, Any]) -> None:
        """Take over the settings of another spec, over restarts too.

        Raises ValueError for settings that need a restart, NotServing, TimeoutError, OSError.
        """
        self._host.call(self.change_settings, spec["settings"])
        self._spec = dict(spec)
        self._kept.keep(self._spec)

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
            "serving_ms": host.serving_ms,
            "log": self._log,
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


def start_log(namespace: str, name: str) -> str:
    """Write this actor's events to `<Ray's session>/logs/<namespace>/<name>.log`; gives the file's path.

    Empty where it cannot be written: an actor without a log is better than none.
    """
    file = logs_folder() / namespace / f"{name}.log"
    try:
        log_to_file(file)
    except OSError:
        return ""
    return str(file)
