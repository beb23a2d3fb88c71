"""ActorShell: the base class of all actors: status, change of settings, and stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from actors.host import garbage
from actors.host.node_address import located_spec
from actors.host.ray_port import Gauges, control, logs_folder, own_actor_id, own_node_ip
from actors.host.saved_spec import SavedSpec, directory_of
from actors.host.service_host import NotServing, Service, ServiceHost, State
from store.common.live_settings import Difference, with_values
from store.common.logs import get_logger, log_to_file

_log = get_logger(__name__)

RAY_GAUGES: Final = {
    "background_task_failures": "Failed background tasks since the start.",
    "connections": "Open connections.",
    "disk_percent": "Used part of the disk, 0 to 1.",
    "held_pulls": "Pulls that wait for messages.",
    "loop_lag_p99_us": "99 % of lags of the event loop in the last minutes.",
    "messages_in": "Messages put since the start.",
    "messages_out": "Messages got since the start.",
    "open_transactions": "Transactions without a decision.",
    "requests_refused": "Requests not admitted since the start.",
}
"""Details of an actor that are in Ray's metrics too, as `ray_raymq_NAME`, if the actor has them,
those of RAY_NAMES under another name. The page of
the actor (`actors.host.metrics`) has all figures; these few are for Ray's dashboard, beside Ray's own."""
RAY_NAMES: Final = {"disk_percent": ("disk_ratio", 1e-2), "loop_lag_p99_us": ("loop_lag_p99_seconds", 1e-6)}
"""Names and factors of details that are not in base units."""
RAY_GAUGES_INTERVAL_S: Final = 10.0


class ActorShell:
    """Runs a service in a `ServiceHost`. A subclass creates the service and adds the methods of the handle.

    `spec` is the driver's target state of this actor (`cluster.control.plan.ActorSpec` as JSON). Changes of
    live settings update it; the driver reads it by `raymq_status` and compares it with the topology.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._log = start_log(str(spec.get("namespace", "raymq")), str(spec["name"]))
        self._saved = SavedSpec(directory_of(spec), own_actor_id())
        self._spec = self._saved.load(spec)
        with contextlib.suppress(PermissionError):
            # Ray may start workers with a lower priority (nice 15); only root can raise it again.
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        self._progress = ""
        self._host = ServiceHost(self.make_service)
        threading.Thread(target=self._set_gauges, name="ray-gauges", daemon=True).start()

    def make_service(self) -> Service:
        """Create the service; large modules are imported here, on the service's thread."""
        raise NotImplementedError

    def note_progress(self, text: str) -> None:
        """Show in the status how far the start is; the driver waits as long as the text changes."""
        self._progress = text

    def details(self) -> dict[str, Any]:
        """Return the status of the service as plain values; called on its loop."""
        return {}

    def change_settings(self, settings: Mapping[str, Any]) -> None:
        """Change the service's settings to these; called on its loop.

        Raises ValueError, with their names, if settings were changed that need a restart.
        """
        raise NotImplementedError

    def settings_changed(self, changes: Sequence[Difference]) -> None:
        """Update and save the spec, so that a restart uses the changed settings and the driver sees them."""
        settings = with_values(self._spec["settings"], {each.path: each.wanted for each in changes})
        self._spec = {**self._spec, "settings": settings}
        asyncio.get_running_loop().run_in_executor(None, self._save_spec)

    def _save_spec(self) -> None:
        try:
            self._saved.save(self._spec)
        except OSError:
            _log.exception("settings_save_failed", effect="the changes are lost at a restart")

    def service_failed(self, reason: str) -> None:
        """Stop the service and exit the process, so that Ray restarts it; called on the service's loop."""
        self._host.fail(reason)

    def restart_service(self, reason: str) -> None:
        """Like `service_failed`, at the request of an administrator; Ray counts it as any other restart."""
        self._host.restart(reason)

    def _set_gauges(self) -> None:
        """Keep the actor's gauges in Ray's metrics; runs in a thread of its own, as it waits for the loop."""
        labels = {"namespace": str(self._spec.get("namespace", "raymq")), "actor": str(self._spec["name"])}
        names = {each: RAY_NAMES.get(each, (each, 1)) for each in RAY_GAUGES}
        texts = {f"raymq_{names[each][0]}": text for each, text in RAY_GAUGES.items()}
        gauges = Gauges(texts, labels)
        while True:
            time.sleep(RAY_GAUGES_INTERVAL_S)
            with contextlib.suppress(NotServing, TimeoutError):
                found = self._host.call(self.details)
                known = {each: name for each, name in names.items() if each in found}
                gauges.set({f"raymq_{name}": found[each] * factor for each, (name, factor) in known.items()})

    @control
    def raymq_change(self, spec: Mapping[str, Any]) -> None:
        """Change the settings to those of another spec, and save it for restarts.

        Raises:
            ValueError: a changed setting needs a restart.
            NotServing: the service is not running.
            TimeoutError: the service's loop does not respond.
            OSError: the spec cannot be saved.
        """
        self._host.call(self.change_settings, spec["settings"])
        self._spec = dict(spec)
        self._saved.save(self._spec)

    @control
    def raymq_status(self) -> dict[str, Any]:
        """Return the state of the actor as plain values; works in every state."""
        host = self._host
        status = {
            "spec": located_spec(self._spec, own_node_ip()),
            "state": str(host.state),
            "reason": host.reason or (self._progress if host.state is State.STARTING else ""),
            "progress": self._progress,
            "code_version": host.code_version,
            "pid": os.getpid(),
            "cpu_s": time.process_time(),
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
        """Stop the service: flush, and release ports and files.

        The driver kills the actor afterwards, or starts the service again with `raymq_start`.
        """
        self._host.stop()

    @control
    def raymq_start(self, spec: Mapping[str, Any]) -> None:
        """Start the stopped service with the settings of another spec, and save the spec for restarts.

        Returns before the service serves. Without a new process and its imports this takes 0.1 s, not 4 s.

        Raises:
            ValueError: the service is not stopped.
            OSError: the spec cannot be saved.
        """
        if self._host.state is not State.STOPPED:
            raise ValueError(f"the service is {self._host.state}, not stopped")
        self._saved.save(spec)
        self._spec = dict(spec)
        garbage.unfreeze()
        self._host = ServiceHost(self.make_service)


def start_log(namespace: str, name: str) -> str:
    """Log the events of this actor to `<Ray's session>/logs/<namespace>/<name>.log`.

    Returns:
        The file's path; an empty string if it cannot be written, which does not prevent the actor's start.
    """
    file = logs_folder() / namespace / f"{name}.log"
    try:
        log_to_file(file)
    except OSError:
        return ""
    return str(file)
