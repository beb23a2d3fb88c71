"""Compiles the kernels once per machine, in a process of their own.

    broker or driver ── lock ──> python -m store.compiler ──> cache directory ──> all brokers load it

A process that compiles keeps the compiler's 220 MB of memory until it ends, and two that start at the same
time would both compile. Progress counts, not time: on a busy machine with one core compiling takes minutes.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from store.common.kernel_cache import COMPLETE, cache_directory, shipped_archive
from store.common.logs import get_logger

_log = get_logger(__name__)

STALLED_S = 120.0
"""How long the compiling process may use no CPU time until it is given up."""
POLL_S = 0.2
SOURCES = Path(__file__).parents[1]


def are_compiled() -> bool:
    """Return True if the cache has all kernels of a broker."""
    return (cache_directory() / COMPLETE).exists()


def compile_once(report: Callable[[str], None] = lambda text: None) -> None:
    """Compile the kernels of a broker in another process, or wait for the process that does; report progress.

    Returns without compiled kernels if the cache is not writable, or compiling has failed or stalled: the
    caller then compiles when it calls the kernels.
    """
    if are_compiled():
        return
    directory = cache_directory()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / "lock").open("a")
    except OSError:
        return
    with lock:
        for is_alive in _until_locked(lock, directory, report):
            if not is_alive:
                _log.warning("kernels_not_compiled", reason=f"no progress within {STALLED_S:g} s")
                return
        if not are_compiled():
            _compile(lock, directory, report)


def _until_locked(lock: IO[str], directory: Path, report: Callable[[str], None]) -> Iterator[bool]:
    """Yield at each poll whether the holder of the lock makes progress, until this process has the lock."""
    watch = _Watch(directory, report)
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield watch.is_alive()
            time.sleep(POLL_S)
        else:
            return


def _compile(lock: IO[str], directory: Path, report: Callable[[str], None]) -> None:
    command = [sys.executable, "-m", "store.compiler"]
    # The child holds the lock too: if this process is killed, no other one compiles meanwhile.
    with subprocess.Popen(
        command, cwd=SOURCES, pass_fds=[lock.fileno()], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as child:
        watch = _Watch(directory, report)
        while child.poll() is None:
            time.sleep(POLL_S)
            if not watch.is_alive():
                child.kill()
        error = child.stderr.read().decode(errors="replace") if child.stderr else ""
    if child.returncode:
        _log.warning("kernels_not_compiled", exit_code=child.returncode, reason=error[-500:])


def compile_early() -> None:
    """Start to compile in the background, for brokers that this process is about to start."""
    if not are_compiled() and not shipped_archive().exists():
        threading.Thread(target=compile_once, name="compile-kernels", daemon=True).start()


class _Watch:
    """Reports the progress of the compiling process, and notices when it stalls."""

    def __init__(self, directory: Path, report: Callable[[str], None]) -> None:
        self._file = directory / "progress"
        self._report = report
        self._seen = ""
        self._seen_s = time.monotonic()

    def is_alive(self) -> bool:
        """Report progress; return False if there was none for STALLED_S."""
        try:
            text = self._file.read_text()
        except OSError:
            text = ""
        if text and text != self._seen:
            self._seen, self._seen_s = text, time.monotonic()
            self._report(text)
        return time.monotonic() - self._seen_s < STALLED_S
