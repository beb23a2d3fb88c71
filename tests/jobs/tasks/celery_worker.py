"""Workers of Celery in processes that know `raymq://` by the entry point of pyproject.toml."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Self

from tests.eventually import LIMIT_S, eventually

REPO = Path(__file__).parents[3]


def installed_at(root: Path) -> str:
    """Return a PYTHONPATH with the repository and the metadata that an installation of it has."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    info = root / "installed" / "raymq-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: raymq\nVersion: 0\n")
    lines = [
        line
        for group, entries in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in entries.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return f"{info.parent}:{REPO}"


class Worker:
    """A process of `celery worker`, in a group of its own with the children of its pool."""

    def __init__(self, root: Path, address: str, name: str, *arguments: str, **environment: str) -> None:
        self.log = root / "tasks.log"
        self.environment = {
            **os.environ,
            "PYTHONPATH": installed_at(root),
            "RAYMQ_TEST_BROKER": f"raymq://{address}",
            "RAYMQ_TEST_LOG": str(self.log),
            **environment,
        }
        self._output = root / f"{name}.out"
        command = (sys.executable, "-m", "celery", "-A", "tests.jobs.tasks.celery_app", "worker", "-c", "2")
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [*command, "-l", "INFO", "-n", f"{name}@test", *arguments],
                env=self.environment,
                cwd=REPO,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        eventually(lambda: "ready." in self.output() or self.process.poll() is not None)
        assert self.process.poll() is None, self.output()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(LIMIT_S)
            finally:
                self.kill()

    def kill(self) -> None:
        """Kill the worker and its pool."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(LIMIT_S)

    def output(self) -> str:
        return self._output.read_text()

    def noted(self, text: str) -> int:
        """Return how often a task has noted a text."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return sum(line.split()[0] == text for line in lines)
