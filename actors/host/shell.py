"""ActorShell: the common part of our Ray actors: status for the driver, settings, and an orderly stop."""

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

    `spec` is the driver's target state of this actor (`cluster.driver.plan.ActorSpec` as JSON). It changes
    only with live settings, and `raymq_status` shows it, so that the next driver can compare.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._log = start_log(str(spec.get("namespace", "raymq")), str(spec["name"]))
        self._kept = KeptSpec(directory_of(spec), own_actor_id())
        self._spec = self._kept.load(spec)
        with contextlib.suppress(PermissionError):
            # Workers of a Ray cluster that we did not start are nice(15); only root can undo that.
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        self._host = ServiceHost(self.make_service)

    def make_service(self) -> Service:
        """Make the service without starting it; heavy imports belong here, on the service's thread."""
        raise NotImplementedError

    def details(self) -> dict[str, Any]:
        """Return the service's own status in plain values; called on its loop."""
        return {}

    def change_settings(self, settings: Mapping[str, Any]) -> None:
        """Change the service's settings; called on its loop.

        Raises ValueError, naming them, for settings that need a restart.
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
            log.exception("settings_save_failed", effect="a restart loses them")

    def service_failed(self, reason: str) -> None:
        """Stop the service and end this process, so that Ray starts another; called on the service's loop."""
        self._host.fail(reason)

    @control
    def raymq_change(self, spec: Mapping[str, Any]) -> None:
        """Change the settings to those of another spec, also for later restarts.

        Raises ValueError for settings that need a restart, NotServing, TimeoutError, OSError.
        """
        self._host.call(self.change_settings, spec["settings"])
        self._spec = dict(spec)
        self._kept.keep(self._spec)

    @control
    def raymq_status(self) -> dict[str, Any]:
        """Return the actor's state in plain values; works in every state."""
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
        """Stop the service: flush, and release ports and files. The driver ends the actor afterwards."""
        self._host.stop()


def start_log(namespace: str, name: str) -> str:
    """Log this actor's events to `<Ray's session>/logs/<namespace>/<name>.log`; returns the file's path.

    Returns an empty path if the file cannot be written: an actor without a log is better than none.
    """
    file = logs_folder() / namespace / f"{name}.log"
    try:
        log_to_file(file)
    except OSError:
        return ""
    return str(file)
