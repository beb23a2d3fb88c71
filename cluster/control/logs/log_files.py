"""Reads the log files of the actors of one machine.

    <Ray session>/logs/<namespace>/<actor>.log      the current file
                                   <actor>.log.1    the previous file; .2 is older than .1

Runs on other nodes as a Ray task, so arguments and results can be pickled.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from glob import escape
from pathlib import Path
from typing import Any

import orjson

ENDING = ".log"
LEVELS = ("debug", "info", "warning", "error", "critical")
LINES_AT_ONCE = 100_000
"""The maximum number of lines per response; the next query returns the following ones."""


@dataclass(frozen=True)
class Place:
    """A position in the log of one actor: the inode of a file and a byte offset."""

    inode: int
    offset: int


@dataclass(frozen=True)
class Query:
    """Selects log lines.

    `actors`: names, where `broker-a` also selects `broker-a-0`; empty selects all. `level`: the lowest level.
    `since`: an ISO time in UTC. `last`: the maximum number of lines, the last ones. `places`: by `Found.log`,
    the position at which to start reading.
    """

    namespace: str
    actors: tuple[str, ...] = ()
    level: str = "debug"
    since: str = ""
    last: int | None = None
    places: Mapping[str, Place] = field(default_factory=dict)


@dataclass(frozen=True)
class LogLines:
    """Lines of one actor's log and their end position; `log` identifies the log among all machines."""

    log: str
    actor: str
    lines: list[bytes]
    end: Place


def read_logs(folder: Path, query: Query) -> list[LogLines]:
    """Return the selected lines of each log in `folder`, the log directory of a Ray session."""
    found = []
    for file in sorted((folder / query.namespace).glob(f"*{ENDING}")):
        actor = file.name.removesuffix(ENDING)
        if not query.actors or any(actor in (name, f"{name}-0") for name in query.actors):
            log = f"{machine()}{file}"
            lines, end = _read(file, query.places.get(log), query)
            found.append(LogLines(log, actor, lines, end))
    return found


@cache
def machine() -> str:
    """Return an id of this machine; Ray nodes on one machine share their log files."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.exists() else os.uname().nodename


def event_of(line: bytes) -> dict[str, Any]:
    """Decode a line; a line that is not a JSON object becomes the text of an `info` event."""
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
                    if not line.endswith(b"\n"):  # incomplete: the actor is still writing it
                        break
                    offset += len(line)
                    if _is_wanted(line, query):
                        wanted.append(line.rstrip(b"\n"))
                    if query.last is None and len(wanted) >= LINES_AT_ONCE:
                        return list(wanted), Place(inode, offset)
        except FileNotFoundError:  # deleted by log rotation meanwhile
            continue
        end = Place(inode, offset)
    return list(wanted), end


def _files_from(file: Path, begin: Place | None) -> list[Path]:
    """Return the files of a log, oldest first, starting with that of `begin`; all if that file is deleted."""
    old = sorted(
        file.parent.glob(f"{escape(file.name)}.*"), key=lambda path: -int(path.suffix.lstrip(".") or 0)
    )
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


def merged_lines(found: list[LogLines]) -> Iterator[tuple[str, bytes]]:
    """Yield (actor, line) of all logs, ordered by time."""
    timed = [(str(event_of(line).get("time", "")), each.actor, line) for each in found for line in each.lines]
    for _, actor, line in sorted(timed, key=lambda entry: entry[0]):
        yield actor, line
