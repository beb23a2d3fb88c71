"""The log files of our actors on one machine: which there are, and their lines from a place on.

    <Ray's session>/logs/<namespace>/<actor>.log      what is written now
                                     <actor>.log.1    what was written before it; .2 before that …

Runs on other nodes as a Ray task, so it takes and gives values that can be pickled.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import orjson

ENDING = ".log"
LEVELS = ("debug", "info", "warning", "error", "critical")
LINES_AT_ONCE = 100_000
"""More are not sent from another machine in one go; the next asking gets the rest."""


@dataclass(frozen=True)
class Place:
    """A place in the lines of one actor: the file by its inode, and a byte of it."""

    inode: int
    offset: int


@dataclass(frozen=True)
class Query:
    """Which lines are wanted. `actors` empty: of all, and `broker-a` means its `broker-a-0`; `since`: ISO
    time in UTC; `last`: not more than these.

    `places`: by log (see `Found.log`), where the lines that are known end.
    """

    namespace: str
    actors: tuple[str, ...] = ()
    level: str = "debug"
    since: str = ""
    last: int | None = None
    places: Mapping[str, Place] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """The lines of one actor's log, and where they end. `log` names it among those of all machines."""

    log: str
    actor: str
    lines: list[bytes]
    end: Place


def read_logs(folder: Path, query: Query) -> list[Found]:
    """The lines that are wanted, of each log in `folder` (Ray's of this machine)."""
    found = []
    for file in sorted((folder / query.namespace).glob(f"*{ENDING}")):
        actor = file.name.removesuffix(ENDING)
        if not query.actors or any(actor in (name, f"{name}-0") for name in query.actors):
            log = f"{machine()}{file}"
            lines, end = _read(file, query.places.get(log), query)
            found.append(Found(log, actor, lines, end))
    return found


@cache
def machine() -> str:
    """What tells this machine from others: nodes of one machine share its files."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.exists() else os.uname().nodename


def event_of(line: bytes) -> dict[str, Any]:
    """The event of a line; a line that is none of ours is an event of its own."""
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        event = None
    return event if isinstance(event, dict) else {"level": "info", "event": line.decode(errors="replace")}


def _read(file: Path, begin: Place | None, query: Query) -> tuple[list[bytes], Place]:
    wanted: deque[bytes] = deque(maxlen=query.last)
    end = begin or Place(0, 0)
    for each in _files_from(file, begin):
        try:
            with each.open("rb") as stream:
                inode = os.fstat(stream.fileno()).st_ino
                offset = begin.offset if begin is not None and begin.inode == inode else 0
                stream.seek(offset)
                for line in stream:
                    if not line.endswith(b"\n"):  # it is being written
                        break
                    offset += len(line)
                    if _is_wanted(line, query):
                        wanted.append(line.rstrip(b"\n"))
                    if query.last is None and len(wanted) >= LINES_AT_ONCE:
                        return list(wanted), Place(inode, offset)
        except FileNotFoundError:  # rotated away meanwhile
            continue
        end = Place(inode, offset)
    return list(wanted), end


def _files_from(file: Path, begin: Place | None) -> list[Path]:
    """The files of a log from the one that `begin` is in on, the oldest first; all where that is gone."""
    old = sorted(file.parent.glob(f"{file.name}.*"), key=lambda path: -int(path.suffix.lstrip(".") or 0))
    files = [*old, file]
    for index, each in enumerate(files):
        if begin is not None and _inode(each) == begin.inode:
            return files[index:]
    return files


def _inode(file: Path) -> int:
    try:
        return file.stat().st_ino
    except FileNotFoundError:
        return 0


def _is_wanted(line: bytes, query: Query) -> bool:
    if query.level == LEVELS[0] and not query.since:
        return True
    event = event_of(line)
    level = event.get("level")
    is_high = level not in LEVELS or LEVELS.index(level) >= LEVELS.index(query.level)
    return is_high and str(event.get("time", "")) >= query.since


def merged(found: list[Found]) -> Iterator[tuple[str, bytes]]:
    """Actor and line of all logs together, in the order of their times."""
    timed = [(str(event_of(line).get("time", "")), each.actor, line) for each in found for line in each.lines]
    for _, actor, line in sorted(timed, key=lambda entry: entry[0]):
        yield actor, line
