"""Routes of the API. The signature of a handler is the schema of its requests.

`route` gives a handler its path below /api/v1 and the command that does the same. The handler's parameters
after the admin client are those of the path, and of the query or the JSON body; the annotations are their
types and that of the response, and the docstring begins with the summary. The handler of a change returns a
`Prepared`, which is executed unless the request has `dry_run`, the default.
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar, get_type_hints

import msgspec

from cluster.client import Admin
from cluster.console.api_errors import ApiError

T = TypeVar("T")
Handler = TypeVar("Handler", bound=Callable[..., Any])
Method = Literal["GET", "POST", "DELETE"]
Command = str | Callable[[Mapping[str, Any]], str]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Short = Annotated[str, msgspec.Meta(max_length=255)]
SHOWN_CHARACTERS = 80
COMMANDS_NAMESERVER = "127.0.0.1:9876"
"""The default of the command line, which needs no option."""
_PAST = {"set": "set", "copy": "copied", "send": "sent"}
_rows: dict[Callable[..., Any], tuple[Method, str, Command, bool]] = {}


@dataclass(frozen=True, slots=True)
class ListPart(Generic[T]):
    """A part of a long list: the response has `total` and `next`, which continues it, beside the rows."""

    rows: Sequence[T]
    total: int
    next: str | None


@dataclass(frozen=True, slots=True)
class ChangeDone:
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
class Prepared:
    """A change that was checked and can be executed.

    Attributes:
        preview: A sentence that says what would be changed.
        act: Executes the change. Raises ClientError.
        done: The sentence after it, or a function that makes it of what `act` has returned.
        rows: Details, one row for each changed part.
    """

    preview: str
    act: Callable[[], Any]
    done: str | Callable[[Any], str]
    rows: Sequence[Any] = ()


def plan(verb: str, what: str, act: Callable[[], Any], rows: Sequence[Any] = ()) -> Prepared:
    """Return a plan with the sentences "would create …" and "created …"."""
    return Prepared(f"would {verb} {what}", act, f"{_PAST.get(verb, f'{verb}d')} {what}", rows)


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the API.

    Attributes:
        method: GET; POST or DELETE for a change.
        path: Path below /api/v1, with the names of parameters in braces.
        command: What follows `raymq` on the command line (`command_words`), or a function that returns it.
        handler: Called in a thread with the admin client of the user and the parameters. Raises ClientError,
            ApiError.
        parameters: Type of the parameters.
        result: Type of the response.
        summary: One sentence for the API's description.
        is_search: True if it reads messages, for seconds.
    """

    method: Method
    path: str
    command: Command
    handler: Callable[..., Any]
    parameters: type[msgspec.Struct]
    result: Any
    summary: str
    is_search: bool

    @property
    def is_change(self) -> bool:
        """True if the route changes the cluster."""
        return self.method != "GET"

    def run(self, admin: Admin, given: Mapping[str, Any]) -> Any:
        """Return the result for parameters; execute the plan of a change unless `dry_run`."""
        values = {name: value for name, value in given.items() if name != "dry_run"}
        found = self.handler(admin, **values)
        if not isinstance(found, Prepared):
            return found
        if given["dry_run"]:
            return ChangeDone(found.preview, found.rows)
        result = found.act()
        return ChangeDone(
            found.done if isinstance(found.done, str) else found.done(result), found.rows, done=True
        )

    def command_line(self, given: Mapping[str, Any], nameserver: str) -> str:
        """Return the command for a shell that does the same, or an empty text."""
        template = self.command if isinstance(self.command, str) else self.command(given)
        words = list(command_words(template, given))
        if words and nameserver != COMMANDS_NAMESERVER:
            words += ["-n", nameserver]
        return shlex.join(["raymq", *words]) if words else ""


def route(
    method: Method, path: str, command: Command = "", *, is_search: bool = False
) -> Callable[[Handler], Handler]:
    """Return a decorator that makes a method the handler of a path."""

    def mark(handler: Handler) -> Handler:
        _rows[handler] = (method, path, command, is_search)
        return handler

    return mark


def routes_of(*resources: object) -> list[Route]:
    """Return the routes of all decorated methods of `resources`."""
    return [
        _route(getattr(resource, name), *_rows[value])
        for resource in resources
        for name, value in vars(type(resource)).items()
        if callable(value) and value in _rows
    ]


def _route(
    handler: Callable[..., Any], method: Method, path: str, command: Command, is_search: bool
) -> Route:
    hints = get_type_hints(handler, include_extras=True)
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for name, parameter in inspect.signature(handler).parameters.items():
        if name != "admin":
            is_required = parameter.default is parameter.empty
            fields.append((name, hints[name]) if is_required else (name, hints[name], parameter.default))
    if method != "GET":
        fields.append(("dry_run", bool, True))
    kind = "".join(part.title() for part in re.findall(r"\w+", f"{method} {path}"))
    parameters = msgspec.defstruct(kind, fields, kw_only=True, frozen=True, forbid_unknown_fields=True)
    summary = (inspect.getdoc(handler) or "").partition(" Raises ")[0].partition("\n")[0]
    result = hints["return"] if method == "GET" else ChangeDone
    return Route(method, path, command, handler, parameters, result, summary, is_search)


def command_words(template: str, given: Mapping[str, Any]) -> Sequence[str]:
    """Return the words of a command.

    `{name}` is the value of a parameter, `--option={name}` an option with the value, or with each value of a
    list or table; `{name?--yes:--no}` depends on a boolean. What is None or empty is omitted.
    """
    words: list[str] = []
    for word in template.split():
        option, brace, rest = word.partition("{")
        if not brace:
            words.append(word)
            continue
        name, question, choices = rest.removesuffix("}").partition("?")
        value = given[name]
        if question:
            yes, _, no = choices.partition(":")
            values: Sequence[Any] = [] if value is None else [yes if value else no]
        elif isinstance(value, dict):
            values = [f"{key}={each}" for key, each in value.items()]
        else:
            values = value if isinstance(value, tuple) else [value]
        for each in values:
            if each not in (None, ""):
                words += [option.removesuffix("="), str(each)] if option else [str(each)]
    return words


def parse(kind: type[msgspec.Struct], given: Mapping[str, Any], *, strict: bool) -> dict[str, Any]:
    """Return the parameters of a request. Texts are converted to numbers and booleans unless `strict`.

    Raises ApiError if one is unknown, missing or invalid.
    """
    names = kind.__struct_fields__
    for name in given:
        if name not in names:
            raise ApiError(
                400,
                f"parameter {_cut(name)} is unknown here",
                f"Use one of: {', '.join(names)}." if names else "Omit it: there are no parameters here.",
            )
    try:
        return msgspec.structs.asdict(msgspec.convert(given, kind, strict=strict))
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        name = path.rstrip("`").partition("[")[0]
        shown = f"parameter {name} is {_cut(given.get(name))}: {reason}" if name else reason
        raise ApiError(
            400, shown, "GET /api/v1/openapi.json lists the parameters and their limits."
        ) from None


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
