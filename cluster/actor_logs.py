"""The logs of a cluster's actors, wherever they run: gathered from all nodes, and followed."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from actors.host import ray_port
from actors.host.ray_port import ActorUnavailable
from cluster.driver.driver import LaunchFailed, LaunchRefused
from cluster.launch_report import Report
from cluster.log_files import LEVELS, Found, Query, merged, read_logs
from cluster.paths import home_of
from cluster.session.ray_head import CURRENT_CLUSTER
from cluster.session.ray_session import Mode, choose_way, is_connected, session
from cluster.topology.topology import Topology

LAST_SESSION = CURRENT_CLUSTER.parent / "session_latest" / "logs"
"""Where the logs of the Ray lie that was started last on this machine, and may have ended."""

NODE_TIMEOUT_S = 10.0
PAUSE_S = 0.5

_SPAN = re.compile(r"(\d+)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

Source = Callable[[Query], list[Found]]


def read(
    topology: Topology, query: Query, *, follow: bool = False, report: Report | None = None
) -> Iterator[tuple[str, bytes]]:
    """Actor and line of what the actors of a cluster have logged, all together in the order of time.

    `follow`: go on with what comes, for ever. Where no Ray runs, this machine's last logs are read.
    Raises LaunchFailed where there are none, LaunchRefused where there is nothing to follow, and for an actor
    that has no log.
    """
    report = report or Report()
    home = home_of(topology.cluster)
    way = choose_way(topology, home, os.environ)
    if way.mode is Mode.STARTED and not is_connected():
        if follow:
            raise LaunchRefused(f"nothing of cluster {topology.cluster} runs: there is nothing to follow")
        gathering = Gathering([partial(read_logs, LAST_SESSION)], query)
        if not gathering.known:
            raise LaunchFailed(
                f"nothing of cluster {topology.cluster} runs, and the last Ray on this machine has left no "
                f"logs of one ({LAST_SESSION}); `raymq up` starts it"
            )
        report.line(f"nothing of cluster {topology.cluster} runs: its last logs on this machine", "yellow")
        yield from gathering.lines(follow=False)
        return
    with session(topology, home, way):
        yield from Gathering(_nodes(report), query).lines(follow=follow)


@dataclass
class Gathering:
    """The lines that several sources have for one query; a log that two of them have counts once."""

    sources: Sequence[Source]
    query: Query

    def lines(self, *, follow: bool) -> Iterator[tuple[str, bytes]]:
        """Actor and line; raises LaunchRefused for an actor that has no log."""
        self._check_names()
        query = self.query
        while True:
            found = self._ask(query)
            gathered = list(merged(found))
            yield from gathered[-query.last :] if query.last else gathered
            if not follow and not gathered:
                return
            if not gathered:
                time.sleep(PAUSE_S)
            # What follows is wanted whole, from where this ended.
            ends = {**query.places, **{each.log: each.end for each in found}}
            query = replace(query, last=None, places=ends)

    def _ask(self, query: Query) -> list[Found]:
        found = {each.log: each for source in self.sources for each in source(query)}
        return list(found.values())

    @property
    def known(self) -> set[str]:
        """The actors that have a log."""
        return {each.actor for each in self._ask(Query(self.query.namespace, last=0))}

    def _check_names(self) -> None:
        known = self.known
        for name in self.query.actors:
            if not {name, f"{name}-0"} & known:
                shown = ", ".join(sorted(known)) or "none"
                raise LaunchRefused(f"there is no log of an actor {name!r}; there are: {shown}")


def _nodes(report: Report) -> list[Source]:
    """All living nodes: this machine's folder as it is, the others' through a task on each."""
    own_ip = ray_port.own_node_ip()
    silent: set[str] = set()

    def ask(ip: str, query: Query) -> list[Found]:
        try:
            found: list[Found] = ray_port.run_on(f"node:{ip}", read_here, query, timeout_s=NODE_TIMEOUT_S)
        except ActorUnavailable as error:
            if ip not in silent:
                silent.add(ip)
                report.line(f"no logs from node {ip}: {error}", "yellow")
            return []
        return found

    ips = {node.ip for node in ray_port.nodes()} - {own_ip}
    return [partial(read_logs, ray_port.logs_folder()), *(partial(ask, ip) for ip in sorted(ips))]


def read_here(query: Query) -> list[Found]:
    """The lines on the node that this task runs on."""
    return read_logs(ray_port.logs_folder(), query)


def checked_level(level: str) -> str:
    """The level's name; raises LaunchRefused."""
    if level.lower() not in LEVELS:
        raise LaunchRefused(f"--level {level!r} is none of {', '.join(LEVELS)}")
    return level.lower()


def parse_since(text: str, now: datetime) -> str:
    """A time in ISO's form (without a zone: of this machine) or a span before `now`, as UTC in ISO's form.

    Empty where nothing is given. Raises LaunchRefused.
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
                f"--since {text!r}: give a span such as 90s, 10m, 2h, 1d or a time as 2026-01-31T12:00"
            ) from None
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
