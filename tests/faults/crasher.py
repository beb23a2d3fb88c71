"""Process that forks children to be killed: `python -m tests.faults.crasher`.

It has the kernels loaded, so that a new child costs only a fork. Each line on its standard input is a JSON
object with a scenario (see `scenarios`) and the number of the step at which the child is killed. The response
line is the outcome.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from store.warm import warm_up
from tests.faults.scenarios import SCENARIOS
from tests.faults.steps import Steps

REPO = Path(__file__).parent.parent.parent


class Outcome(NamedTuple):
    """Outcome of a scenario.

    Attributes:
        killed_at: name of the step at which the process was killed, or empty if it finished.
        steps: number of steps if it finished, 0 if it was killed, -1 if it failed.
    """

    killed_at: str
    steps: int


@dataclass
class Crasher:
    """Client of the process, for the tests."""

    process: subprocess.Popen[bytes]

    def run(self, scenario: str, root: Path, kill_at: int | None = None) -> Outcome:
        """Run a scenario in a new process on the store at `root`; kill it at step `kill_at` if given."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {"scenario": scenario, "root": str(root), "kill_at": kill_at}
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        outcome = Outcome(**json.loads(self.process.stdout.readline()))
        assert outcome.steps >= 0, (
            f"{scenario} at step {kill_at} neither finished nor was killed (see stderr)"
        )
        return outcome

    def every_step(self, scenario: str, roots: Iterator[Path], stride: int = 1) -> Iterator[tuple[Path, str]]:
        """Kill the scenario at every `stride`-th step, each time on the next root; yield root and step."""
        number = 0
        while True:
            root = next(roots)
            outcome = self.run(scenario, root, number)
            if not outcome.killed_at:
                return
            yield root, f"{scenario}, step {number}: {outcome.killed_at}"
            number += stride


@contextmanager
def crasher() -> Iterator[Crasher]:
    """Start the process and yield its client; stop it at the end."""
    command = [sys.executable, "-m", "tests.faults.crasher"]
    with subprocess.Popen(command, cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield Crasher(process)
        assert process.stdin is not None
        process.stdin.close()


def _report_file(root: Path) -> Path:
    return root.with_name(f"{root.name}.report")


def _child(scenario: str, root: Path, kill_at: int | None) -> None:
    report = os.open(_report_file(root), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)

    def write_report(text: str) -> None:
        os.write(report, text.encode())

    steps = Steps(kill_at, write_report)
    SCENARIOS[scenario](root, steps)
    steps.disarm()
    write_report(str(steps.count))


def _run(scenario: str, root: Path, kill_at: int | None) -> Outcome:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _child(scenario, root, kill_at)
            code = 0
        except BaseException:  # noqa: BLE001 - the child must not continue in the loop of the parent
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    report = _report_file(root).read_text()
    _report_file(root).unlink()
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and report:
        return Outcome(report, 0)
    return Outcome("", int(report) if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0 else -1)


def main() -> None:
    """Handle requests until the end of standard input."""
    warm_up()
    for line in sys.stdin:
        request = json.loads(line)
        outcome = _run(request["scenario"], Path(request["root"]), request["kill_at"])
        sys.stdout.write(json.dumps(outcome._asdict()) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
