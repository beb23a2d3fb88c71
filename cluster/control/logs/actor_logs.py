"""Collects and follows the logs of a cluster's actors on all nodes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from actors.host import ray_port
from actors.host.ray_port import ActorUnavailable
from cluster.control.launch_errors import LaunchFailed, LaunchRefused
from cluster.control.launch_report import Reporter
from cluster.control.logs.log_files import LEVELS, LogLines, Query, merged_lines, read_logs
from cluster.control.session.ray_head import CURRENT_CLUSTER
from cluster.control.session.ray_session import SessionMode, choose_way, is_connected, session
from cluster.control.topology.topology import Topology
from cluster.paths import home_of
from cluster.waiting import SYSTEM_WAITING, Waiting

LAST_SESSION = CURRENT_CLUSTER.parent / "session_latest" / "logs"
"""The log directory of the last Ray session on this machine, which may have ended."""

NODE_TIMEOUT_S = 10.0
PAUSE_S = 0.5

_SPAN = re.compile(r"(\d+)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

Source = Callable[[Query], list[LogLines]]


def read(
    topology: Topology, query: Query, *, follow: bool = False, report: Reporter | None = None
) -> Iterator[tuple[str, bytes]]:
    """Yield (actor, line) for the logged events of a cluster's actors, ordered by time.

    With `follow`, new lines are yielded as they are logged, without end. If no Ray is running, the last logs
    on this machine are read. Raises LaunchFailed if there are no logs, and LaunchRefused for an actor without
    a log or for `follow` without a running cluster.
    """
    report = report or Reporter()
    home = home_of(topology.cluster)
    way = choose_way(topology, home, os.environ)
    if way.mode is SessionMode.STARTED and not is_connected():
        if follow:
            raise LaunchRefused(
                f"cluster {topology.cluster} is not running: --follow needs a running cluster"
            )
        gathering = Gathering([partial(read_logs, LAST_SESSION)], query)
        if not gathering.known:
            raise LaunchFailed(
                f"cluster {topology.cluster} is not running, and the last Ray session of this machine has no "
                f"logs of it ({LAST_SESSION}); start it with `raymq up`"
            )
        report.line(
            f"cluster {topology.cluster} is not running; showing its last logs on this machine", "yellow"
        )
        yield from gathering.lines(follow=False)
        return
    with session(topology, home, way):
        yield from Gathering(_nodes(report), query).lines(follow=follow)


@dataclass
class Gathering:
    """Merges the lines of several sources for one query; a log found by two sources is used once."""

    sources: Sequence[Source]
    query: Query
    waiting: Waiting = SYSTEM_WAITING

    def lines(self, *, follow: bool) -> Iterator[tuple[str, bytes]]:
        """Yield (actor, line). Raises LaunchRefused for an actor without a log."""
        self._check_names()
        query = self.query
        while True:
            found = self._query(query)
            gathered = list(merged_lines(found))
            yield from gathered[-query.last :] if query.last else gathered
            if not follow and not gathered:
                return
            if not gathered:
                self.waiting.sleep(PAUSE_S)
            # The next query continues at the end of this one, without a limit.
            ends = {**query.places, **{each.log: each.end for each in found}}
            query = replace(query, last=None, places=ends)

    def _query(self, query: Query) -> list[LogLines]:
        found = {each.log: each for source in self.sources for each in source(query)}
        return list(found.values())

    @property
    def known(self) -> set[str]:
        """The names of actors that have a log."""
        return {each.actor for each in self._query(Query(self.query.namespace, last=0))}

    def _check_names(self) -> None:
        known = self.known
        for name in self.query.actors:
            if not {name, f"{name}-0"} & known:
                shown = ", ".join(sorted(known)) or "none"
                raise LaunchRefused(f"actor {name!r} has no log; actors with logs: {shown}")


def _nodes(report: Reporter) -> list[Source]:
    """Return a source per live node: the local directory, and a Ray task on each other node."""
    own_ip = ray_port.own_node_ip()
    unavailable: set[str] = set()

    def query_node(ip: str, query: Query) -> list[LogLines]:
        try:
            found: list[LogLines] = ray_port.run_on(f"node:{ip}", read_here, query, timeout_s=NODE_TIMEOUT_S)
        except ActorUnavailable as error:
            if ip not in unavailable:
                unavailable.add(ip)
                report.line(f"no logs from node {ip}: {error}", "yellow")
            return []
        return found

    ips = {node.ip for node in ray_port.nodes()} - {own_ip}
    return [partial(read_logs, ray_port.logs_folder()), *(partial(query_node, ip) for ip in sorted(ips))]


def read_here(query: Query) -> list[LogLines]:
    """Return the lines found on the node that runs this task."""
    return read_logs(ray_port.logs_folder(), query)


def checked_level(level: str) -> str:
    """Return the level in lower case. Raises LaunchRefused if it is unknown."""
    if level.lower() not in LEVELS:
        raise LaunchRefused(f"--level {level!r} is unknown: use one of {', '.join(LEVELS)}")
    return level.lower()


def parse_since(text: str, now: datetime) -> str:
    """Parse an ISO time (local unless it has a zone) or a duration before `now`; return an ISO time in UTC.

    Returns an empty text for an empty text. Raises LaunchRefused.
    """
    if not text:
        return ""
    if span := _SPAN.fullmatch(text):
        moment = now - timedelta(**{_UNITS[span[2]]: int(span[1])})
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise LaunchRefused(
                f"--since {text!r} is invalid: use a duration (90s, 10m, 2h, 1d) or a time (2026-01-31T12:00)"
            ) from None
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
