"""`raymq logs` merges the actors' logs by time, filters them on each node and follows rotated files."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from cluster.cli.operations.logs import clock_time, fields_of
from cluster.control.launch_errors import LaunchFailed, LaunchRefused
from cluster.control.launch_report import Reporter
from cluster.control.logs import actor_logs
from cluster.control.logs.actor_logs import Gathering, checked_level, parse_since
from cluster.control.logs.log_files import Query, event_of, read_logs
from cluster.control.session.ray_session import SessionMode, Way
from cluster.control.topology.topology_file import load_topology
from cluster.waiting import Waiting
from tests.conftest import ClockAtRest

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def line(second: int, event: str, level: str = "info") -> str:
    return (
        json.dumps({"time": f"2026-01-31T12:00:{second:02d}.000000Z", "level": level, "event": event}) + "\n"
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "raymq").mkdir()
    return tmp_path


def write(folder: Path, name: str, *lines: str) -> None:
    with (folder / "raymq" / name).open("a") as file:
        file.writelines(lines)


def gather(folder: Path, times: int = 1, **query: object) -> list[tuple[str, str]]:
    sources = [partial(read_logs, folder)] * times
    lines = Gathering(sources, Query("raymq", **query)).lines(follow=False)  # type: ignore[arg-type]
    return [(actor, event_of(text)["event"]) for actor, text in lines]


def test_logs_are_merged_by_time(folder: Path) -> None:
    write(folder, "broker-a-0.log", line(1, "one"), line(4, "four"))
    write(folder, "nameserver-0.log", line(2, "two"))
    write(folder, "nameserver-0.log.1", line(0, "older"))
    assert [event for _, event in gather(folder)] == ["older", "one", "two", "four"]
    assert gather(folder, times=2) == gather(folder)  # two nodes on one machine share the files


def test_actor_level_time_and_count_filter_lines(folder: Path) -> None:
    write(folder, "broker-a-0.log", line(1, "one"), line(2, "two", "error"), line(3, "three"))
    write(folder, "broker-b-0.log", line(4, "four", "warning"))
    assert gather(folder, actors=("broker-b",)) == [("broker-b-0", "four")]
    assert [event for _, event in gather(folder, level="warning")] == ["two", "four"]
    assert [event for _, event in gather(folder, since="2026-01-31T12:00:03")] == ["three", "four"]
    assert [event for _, event in gather(folder, last=2)] == ["three", "four"]


def test_logs_of_last_session_are_shown_without_a_running_cluster(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_logs, "choose_way", lambda *_: Way(SessionMode.STARTED))
    monkeypatch.setattr(actor_logs, "is_connected", lambda: False)
    monkeypatch.setattr(actor_logs, "LAST_SESSION", tmp_path / "none")
    topology = load_topology()
    with pytest.raises(
        LaunchFailed, match="cluster DefaultCluster is not running, and the last Ray session of this"
    ):
        list(actor_logs.read(topology, Query("raymq")))

    monkeypatch.setattr(actor_logs, "LAST_SESSION", folder)
    write(folder, "broker-a-0.log", line(1, "one"))
    report = RecordingReport()
    assert len(list(actor_logs.read(topology, Query("raymq"), report=report))) == 1
    assert report.lines == ["cluster DefaultCluster is not running; showing its last logs on this machine"]


class RecordingReport(Reporter):
    """Report that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str, style: str = "") -> None:
        self.lines.append(text)


def test_actor_without_a_log_is_refused_with_known_actors(folder: Path) -> None:
    write(folder, "broker-a-0.log", line(1, "one"))
    with pytest.raises(LaunchRefused, match="actor 'broker-z' has no log; actors with logs: broker-a-0"):
        gather(folder, actors=("broker-z",))


def test_follow_continues_after_a_rotation(folder: Path) -> None:
    file = folder / "raymq" / "broker-a-0.log"
    write(folder, file.name, line(1, "one"), line(2, "two"))
    later = iter([lambda: write(folder, file.name, line(3, "three"), '{"time": "half'), lambda: rotate(file)])
    waiting = Waiting(ClockAtRest(), lambda _: next(later)())
    following = Gathering([partial(read_logs, folder)], Query("raymq", last=1), waiting).lines(follow=True)
    assert [event_of(next(following)[1])["event"] for _ in range(2)] == ["two", "three"]
    assert [event_of(next(following)[1])["event"] for _ in range(2)] == ["four", "five"]


def rotate(file: Path) -> None:
    with file.open("a") as half:
        half.write('"}\n')
    file.write_text(file.read_text().replace('{"time": "half"}\n', line(4, "four")))
    file.rename(file.with_name(f"{file.name}.1"))
    file.write_text(line(5, "five"))


def test_lines_that_are_not_json_are_shown_unchanged() -> None:
    assert event_of(b"Traceback") == {"level": "info", "event": "Traceback"}
    event = {
        "time": "2026-01-31T12:00:00Z",
        "level": "info",
        "event": "e",
        "port": 1,
        "path": "/a",
        "reason": "a b",
    }
    assert fields_of(event) == 'port=1 path=/a reason="a b"'
    assert clock_time({}).strip() == ""
    assert clock_time(event).endswith(":00:00.000")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", ""),
        ("90s", "2026-01-31T11:58:30.000000Z"),
        ("2h", "2026-01-31T10:00:00.000000Z"),
        ("1d", "2026-01-30T12:00:00.000000Z"),
        ("2026-01-31T13:00+02:00", "2026-01-31T11:00:00.000000Z"),
    ],
)
def test_since_accepts_a_duration_or_a_time(given: str, expected: str) -> None:
    assert parse_since(given, NOW) == expected


def test_invalid_since_and_level_are_refused() -> None:
    with pytest.raises(LaunchRefused, match="--since 'yesterday' is invalid: use a duration"):
        parse_since("yesterday", NOW)
    with pytest.raises(LaunchRefused, match="--level 'loud' is unknown: use one of debug, info"):
        checked_level("loud")
    assert checked_level("WARNING") == "warning"
