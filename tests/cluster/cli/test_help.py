"""Each help page has examples that parse, and is printed without heavy imports."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib import import_module
from itertools import groupby

import pytest
import typer
from typer.testing import CliRunner

from cluster.cli.main import COMMANDS, build

WITHOUT = {"version"}
HEAVY = ("ray", "pyspark", "numba", "pyarrow", "pydantic", "uvloop")


def pages() -> list[list[str]]:
    """Return the arguments of every command, including those in groups."""
    found = []
    for name, (module, _) in COMMANDS.items():
        app = getattr(import_module(module), "app", None)
        inner = [] if app is None else list(_commands(app))
        found += [[name, each] for each in inner] or [[name]]
    return [page for page in found if page[0] not in WITHOUT]


def _commands(app: typer.Typer) -> list[str]:
    return sorted(getattr(typer.main.get_command(app), "commands", ()))


def help_of(page: list[str]) -> str:
    result = CliRunner().invoke(build(page), [*page, "--help"], env={"COLUMNS": "300", "NO_COLOR": "1"})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("page", pages(), ids=" ".join)
def test_help_examples_parse(page: list[str]) -> None:
    text = help_of(page)
    _, _, after = text.partition("Examples:")
    lines = [line.strip() for line in after.splitlines() if "raymq" in line]
    assert lines, text
    names = {f"raymq {' '.join(page)}", f"raymq {page[-1]}"}  # `raymq message send` is `raymq send` too
    assert any(line.rpartition("| ")[2].startswith(tuple(names)) for line in lines)
    options = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text.partition("Examples:")[0]))
    for line in lines:
        words = shlex.split(line)
        parts = [list(part) for bar, part in groupby(words, lambda word: word == "|") if not bar]
        for part in parts:
            if part[0] == "raymq" and page[-1] in part[1:3]:
                used = {word for word in part if re.fullmatch(r"--?[a-z][a-z-]*", word)}
                assert used <= options, f"{line}: {used - options} are no options"


@pytest.mark.parametrize("page", [["demo"], ["up"], ["broker", "clean"]], ids=" ".join)
def test_help_wraps_lines_at_the_terminal_width_only(page: list[str]) -> None:
    about = [line.strip() for line in help_of(page).partition("╭")[0].splitlines() if line.strip()]
    assert all(line.endswith(".") for line in about[1:]), about


def test_help_of_a_command_group_imports_no_heavy_module() -> None:
    names = [name for name in COMMANDS if name not in WITHOUT]
    script = f"""
import sys
from cluster.cli.main import build
for name in {names!r}:
    build([name])
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
