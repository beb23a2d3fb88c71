"""Mqadmin: runs commands of RocketMQ's mqadmin in one JVM (java/tools/Mqadmin.java)."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.compat.build import ROCKETMQ, JavaKit
from tests.compat.processes import Program
from tests.eventually import LIMIT_S

JVM = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class Mqadmin:
    """A JVM that runs mqadmin commands, also concurrently."""

    def __init__(
        self,
        kit: JavaKit,
        nameserver: str,
        home: Path,
        *,
        profile: str = ROCKETMQ,
        jvm: Sequence[str] = (),
    ) -> None:
        """Start the JVM; `home` is its working directory, in which some commands write files."""
        home.mkdir(parents=True, exist_ok=True)
        options = (
            f"-Drocketmq.home.dir={home}",
            f"-Drocketmq.namesrv.addr={nameserver}",
        )
        command = kit.command("compat.Mqadmin", home=home, profile=profile, jvm=(*JVM, *options, *jvm))
        self._program = Program(command, home / "mqadmin.log", cwd=home)
        self._numbers = itertools.count(1)
        self._program.wait_for("@ready", LIMIT_S)

    def run(self, *commands: str) -> list[str]:
        """Run commands, written as in a shell, concurrently; return the output of each."""
        numbers = []
        for command in commands:
            numbers.append(next(self._numbers))
            self._program.write_line("\t".join([str(numbers[-1]), *command.split()]))
        lines = [self._program.wait_for(f"@{number} ", LIMIT_S) for number in numbers]
        return [base64.b64decode(line.partition(" ")[2]).decode() for line in lines]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._program.kill()


def rows(printed: str) -> list[dict[str, str]]:
    """Return the rows of the first table in the output; its columns are in the line that begins with `#`."""
    lines = iter(printed.splitlines())
    names = next(line for line in lines if line.startswith("#"))[1:].split("#")
    columns = [name.strip() for name in names]
    return [dict(zip(columns, line.split(), strict=False)) for line in itertools.takewhile(str.strip, lines)]


def pairs(printed: str, separator: str) -> dict[str, str]:
    """Return the `name : value` or `name = value` lines of the output."""
    split = (line.partition(separator) for line in printed.splitlines() if separator in line)
    return {name.strip(): value.strip() for name, _, value in split}
