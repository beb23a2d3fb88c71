"""Program: a child process of a test, whose output lines can be waited for."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.eventually import LIMIT_S


class ProgramFailed(Exception):
    """A program exited or did not print the expected line in time; the message has the end of its output."""


class Program:
    """A child process whose output is written to a file and can be waited for, line by line."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start `command` with its output in `log` and a pipe as its input."""
        log.parent.mkdir(parents=True, exist_ok=True)
        self.name = log.stem
        self.log = log
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._ended = False
        self._process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            start_new_session=True,  # as for daemons: the kernel shares processors among sessions first
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read_output, name=f"{self.name}-output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_for(self, text: str, timeout_s: float) -> str:
        """Wait until a line that contains `text` is printed; return the last such line."""

        def found() -> str | None:
            return next((line for line in reversed(self._lines) if text in line), None)

        with self._changed:
            self._changed.wait_for(lambda: found() is not None or self._ended, timeout_s)
            line = found()
        if line is None:
            state = "exited without printing" if self._ended else f"did not print within {timeout_s} s"
            raise ProgramFailed(f"{self.name} {state} {text!r}; last output:\n{self.last_lines()}")
        return line

    def write_line(self, line: str) -> None:
        """Write a line to the program's input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def last_lines(self, count: int = 30) -> str:
        return "\n".join(self._lines[-count:])

    def wait(self, timeout_s: float) -> int:
        """Wait until the program exits by itself; return the exit code."""
        code = self._process.wait(timeout_s)
        self._reader.join(LIMIT_S)
        return code

    def terminate(self, timeout_s: float = LIMIT_S) -> int:
        """Send SIGTERM and wait; return the exit code."""
        return self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> int:
        """Send SIGKILL and wait; return the exit code."""
        return self._end(signal.SIGKILL, LIMIT_S)

    def _end(self, number: signal.Signals, timeout_s: float) -> int:
        if self.is_running:
            self._process.send_signal(number)
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            self._process.kill()
            self._process.wait()
            raise ProgramFailed(
                f"{self.name} did not exit within {timeout_s} s after {number.name}"
            ) from error
        finally:
            self._reader.join(LIMIT_S)
        return code

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        with self.log.open("w", encoding="utf-8") as log:
            for line in self._process.stdout:
                log.write(line)
                log.flush()
                with self._changed:
                    self._lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_running:
            self.terminate()
