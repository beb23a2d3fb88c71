"""Routes of the API: path, parameters, handler, and the command line that does the same."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import msgspec

from cluster.client import Admin
from cluster.console.api_errors import ApiError

P = TypeVar("P", bound="Parameters")
SHOWN_CHARACTERS = 80
COMMANDS_NAMESERVER = "127.0.0.1:9876"
"""The default of the command line, which needs no option."""


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of a request: those in the path, and those of the query or of the JSON body."""


class NoParameters(Parameters, frozen=True):
    """There are no parameters."""


class Write(Parameters, frozen=True, kw_only=True):
    """The parameters of a change. With `dry_run`, the response says what would be changed."""

    dry_run: bool = True


@dataclass(frozen=True, slots=True)
class Change:
    """The result of a change, or its preview.

    Attributes:
        what: A sentence that says what was changed, or would be.
        rows: Details, one row for each changed part.
        done: False for a preview.
    """

    what: str
    rows: Sequence[Any] = ()
    done: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the API.

    Attributes:
        method: GET; POST or DELETE for a change.
        path: Path below /api/v1, with the names of parameters in braces.
        handler: Called in a thread with the admin client of the user and the parameters. Raises ClientError,
            ApiError.
        parameters: Type of the parameters.
        result: Type of what the handler returns.
        summary: One sentence for the API's description.
        command: Returns the words after `raymq` that do the same on the command line.
    """

    method: Literal["GET", "POST", "DELETE"]
    path: str
    handler: Callable[[Admin, Any], Any]
    parameters: type[Parameters]
    result: Any
    summary: str
    command: Callable[[Any], Sequence[str | None]] = field(default=lambda _given: ())

    @property
    def is_change(self) -> bool:
        """True if the route changes the cluster."""
        return self.method != "GET"


def parse(kind: type[P], given: Mapping[str, Any], *, strict: bool) -> P:
    """Return the parameters of a request. Texts are converted to numbers and booleans unless `strict`.

    Raises ApiError if one is unknown, missing or invalid.
    """
    names = [each.encode_name for each in msgspec.structs.fields(kind)]
    for name in given:
        if name not in names:
            raise ApiError(
                400,
                f"parameter {_cut(name)} is unknown here",
                f"Use one of: {', '.join(names)}." if names else "Omit it: there are no parameters here.",
            )
    try:
        return msgspec.convert(given, kind, strict=strict)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        name = path.rstrip("`").partition("[")[0]
        shown = f"parameter {name} is {_cut(given.get(name))}: {reason}" if name else reason
        raise ApiError(
            400, shown, "GET /api/v1/openapi.json lists the parameters and their limits."
        ) from None


def command_line(words: Sequence[str | None], nameserver: str) -> str:
    """Return a command line for a shell; words that are None are omitted."""
    given = [word for word in words if word is not None]
    if not given:
        return ""
    if nameserver != COMMANDS_NAMESERVER:
        given += ["-n", nameserver]
    return shlex.join(["raymq", *given])


def option(name: str, value: object) -> tuple[str | None, str | None]:
    """Return an option and its value as words, or None twice if `value` is None."""
    return (None, None) if value is None else (name, str(value))


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
