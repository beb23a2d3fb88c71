"""A process that forks others to be killed: `python -m tests.faults.crasher`.

It has the kernels loaded, so that a process to kill costs a fork. One JSON object a line on its standard
input asks for a story (see `stories`) and a step to be killed at; the answer tells how it ended.
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
from tests.faults.steps import Steps
from tests.faults.stories import STORIES

REPO = Path(__file__).parent.parent.parent


class Ending(NamedTuple):
    """How a story ended: killed at which step, or −1 and how many steps it had."""

    killed_at: str
    steps: int


@dataclass
class Crasher:
    """The process, as the tests see it."""

    process: subprocess.Popen[bytes]

    def run(self, story: str, root: Path, kill_at: int | None = None) -> Ending:
        """Run a story in a process of its own over the store at `root`; see `stories`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        asked = {"story": story, "root": str(root), "kill_at": kill_at}
        self.process.stdin.write(json.dumps(asked).encode() + b"\n")
        self.process.stdin.flush()
        ending = Ending(**json.loads(self.process.stdout.readline()))
        assert ending.steps >= 0, (
            f"{story} at step {kill_at} did not end by itself or by SIGKILL (see stderr)"
        )
        return ending

    def every_step(self, story: str, roots: Iterator[Path], stride: int = 1) -> Iterator[tuple[Path, str]]:
        """Kill the story at each of its steps, each time over another of `roots`; gives root and step."""
        number = 0
        while True:
            root = next(roots)
            ending = self.run(story, root, number)
            if not ending.killed_at:
                return
            yield root, f"{story}, step {number}: {ending.killed_at}"
            number += stride


@contextmanager
def crasher() -> Iterator[Crasher]:
    """Start the process, and end it."""
    command = [sys.executable, "-m", "tests.faults.crasher"]
    with subprocess.Popen(command, cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield Crasher(process)
        assert process.stdin is not None
        process.stdin.close()


def _told(root: Path) -> Path:
    return root.with_name(f"{root.name}.told")


def _child(story: str, root: Path, kill_at: int | None) -> None:
    told = os.open(_told(root), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)

    def tell(text: str) -> None:
        os.write(told, text.encode())

    steps = Steps(kill_at, tell)
    STORIES[story](root, steps)
    steps.disarm()
    tell(str(steps.count))


def _run(story: str, root: Path, kill_at: int | None) -> Ending:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _child(story, root, kill_at)
            code = 0
        except BaseException:  # noqa: BLE001 - it must not go on in the parent's loop
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    told = _told(root).read_text()
    _told(root).unlink()
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and told:
        return Ending(told, 0)
    return Ending("", int(told) if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0 else -1)


def main() -> None:
    """Serve until the standard input ends."""
    warm_up()
    for line in sys.stdin:
        asked = json.loads(line)
        ending = _run(asked["story"], Path(asked["root"]), asked["kill_at"])
        sys.stdout.write(json.dumps(ending._asdict()) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
