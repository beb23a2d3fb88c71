"""The status of an actor while its service starts; Ray's ids and logs are replaced."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.host import shell
from actors.host.service_host import Service
from actors.host.shell import ActorShell
from tests.eventually import LIMIT_S, eventually

PROGRESS = "compiling 7 of 44 kernels"


class Idle:
    """A service that does nothing."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class Compiling(ActorShell):
    """An actor whose service compiles until `proceed` is set."""

    proceed: threading.Event

    def make_service(self) -> Service:
        self.note_progress(PROGRESS)
        self.proceed.wait(LIMIT_S)
        return Idle()


@pytest.fixture
def proceed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    monkeypatch.setattr(shell, "own_actor_id", lambda: "1")
    monkeypatch.setattr(shell, "own_node_ip", lambda: "127.0.0.1")
    monkeypatch.setattr(shell, "logs_folder", lambda: tmp_path)
    monkeypatch.setattr(shell, "Gauges", lambda *_: None)
    Compiling.proceed = threading.Event()
    yield Compiling.proceed
    Compiling.proceed.set()


def test_status_shows_the_progress_of_a_start_until_the_actor_serves(
    proceed: threading.Event, tmp_path: Path
) -> None:
    actor = Compiling({"name": "broker-a-0", "settings": {"data_dir": str(tmp_path)}})

    status = eventually(lambda: actor.raymq_status() if actor.raymq_status()["progress"] else None)
    assert (status["state"], status["reason"], status["progress"]) == ("starting", PROGRESS, PROGRESS)

    proceed.set()
    eventually(lambda: actor.raymq_status()["state"] == "serving")
    assert actor.raymq_status()["reason"] == ""
    actor.raymq_stop()
