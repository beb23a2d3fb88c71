"""Every number of every command has bounds, and is refused outside of them by name."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from cluster.cli.main import build
from cluster.cli.options import INTEGER_MAX
from tests.cluster.cli.test_help import pages


def numbers_of(page: list[str]) -> Iterator[tuple[Any, list[str], list[str]]]:
    """Yield the numeric parameters of a command, each with the arguments before and after its value."""
    command: Any = typer.main.get_command(build(page))
    for name in page:
        command = command.commands[name]
    hints = typing.get_type_hints(inspect.unwrap(command.callback))
    arguments = [each for each in command.params if each.param_type_name == "argument" and each.required]
    needed = [
        text
        for each in command.params
        if each.param_type_name == "option" and each.required
        for text in (each.opts[0], "1")
    ]
    for each in command.params:
        hint = hints[each.name]
        if {hint, *typing.get_args(hint)} & {int, float}:
            if each in arguments:
                at = arguments.index(each)
                yield each, [*page, *needed, "--", *["1"] * at], ["1"] * (len(arguments) - at - 1)
            else:
                yield each, [*page, *needed, *["1"] * len(arguments), each.opts[0]], []


@pytest.mark.parametrize("page", pages(), ids=" ".join)
def test_number_outside_its_bounds_is_refused_by_name(page: list[str]) -> None:
    app = build(page)
    for parameter, before, after in numbers_of(page):
        assert parameter.min is not None, f"{page} {parameter.opts}: declare a minimum"
        most = INTEGER_MAX if parameter.max is None else parameter.max
        outside = [str(parameter.min - 1), str(most + 1), "nan", "inf", "-inf", "1e400", "9" * 30]
        for value in [*outside, "9" * 5_000, "x", ""]:
            arguments = [*before, value, *after]
            result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "NO_COLOR": "1"})
            shown = f"{before} {value[:40]}: {result.output}"
            assert (result.exit_code, type(result.exception)) == (2, SystemExit), shown
            name = parameter.name if "--" in before else parameter.opts[0]
            assert name.lower() in result.stderr.lower(), shown
            assert f"from {parameter.min:,} to {most:,}" in result.stderr, shown
