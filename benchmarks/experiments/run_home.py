"""The home directory of one measured run, and the end of what killed runs have left in theirs.

The name of the directory identifies the driver, the process that runs the experiment:

    <temporary directory>/raymq-experiment-<PID>-<start time of the process, in seconds>
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.experiments.nodes.local_ray import LocalRay
from cluster import launch
from cluster.control.session.ray_head import read_record
from cluster.control.topology.topology_file import load_topology
from cluster.paths import HOME_ENV
from store.common.logs import get_logger

PREFIX = "raymq-experiment-"
TOPOLOGY_FILE = "topology.yaml"
START_TOLERANCE_S = 2
"""The start time is computed from the time of the boot, which changes when the clock is adjusted."""

_log = get_logger(__name__)


@contextmanager
def run_home() -> Iterator[Path]:
    """Use a home directory of this run, after the end of what runs with a dead driver have left."""
    end_leftovers()
    home = _home_of(psutil.Process())
    home.mkdir(exist_ok=True)
    try:
        with _environment_of(home):
            yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _environment_of(home: Path) -> Iterator[None]:
    before = os.environ.get(HOME_ENV)
    os.environ[HOME_ENV] = str(home)
    try:
        yield
    finally:
        if before is None:
            del os.environ[HOME_ENV]
        else:
            os.environ[HOME_ENV] = before


def end_leftovers() -> None:
    """End what runs with a dead driver have left: processes by mark, actors by namespace, and files."""
    for home in Path(tempfile.gettempdir()).glob(f"{PREFIX}[0-9]*-[0-9]*"):
        if not _has_driver(home):
            with _environment_of(home):
                if read_record(home) is not None:
                    LocalRay(home, ()).stop()
                elif (file := home / TOPOLOGY_FILE).exists():
                    _stop_actors(file)
            shutil.rmtree(home, ignore_errors=True)


def _stop_actors(file: Path) -> None:
    """Stop the actors of a run on a Ray that it had not started, if that Ray can be reached."""
    try:
        launch.down(load_topology(file))
    except (*launch.Refusals, *launch.Failures) as error:
        _log.warning("leftover_actors_not_stopped", topology=str(file), error=str(error))


def _home_of(driver: psutil.Process) -> Path:
    return Path(tempfile.gettempdir()) / f"{PREFIX}{driver.pid}-{driver.create_time():.0f}"


def _has_driver(home: Path) -> bool:
    """Return True if the driver of a run is alive; its PID may belong to another process now."""
    pid, start_s = map(int, home.name.removeprefix(PREFIX).split("-"))
    try:
        return abs(psutil.Process(pid).create_time() - start_s) <= START_TOLERANCE_S
    except psutil.NoSuchProcess:
        return False
