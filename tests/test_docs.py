"""Generated documentation pages are current, and pages name existing files and functions."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from actors.wire.codes import RayMQRequestCode, RequestCode
from cluster.cli.main import build
from store.common.live_settings import live_names
from tests import protocol_page
from tests.settings_page import page, sections
from tests.sources import parsed

DOCS = Path(__file__).parent.parent / "docs"


def test_settings_page_is_current() -> None:
    assert (DOCS / "settings.md").read_text() == page(), (
        "run `uv run python -m tests.settings_page > docs/settings.md`"
    )


@pytest.mark.parametrize(("title", "model"), sections())
def test_settings_page_marks_live_settings(title, model) -> None:
    rows = page().split(f"## {title}\n")[1].split("\n## ")[0]
    for name in model.model_fields:
        if name != "store":
            row = next(line for line in rows.splitlines() if line.startswith(f"| `{name}` "))
            assert ("| live |" in row) == (name in live_names(model))
            assert not row.endswith("|  |"), f"{name} has no docstring"


def test_protocol_page_is_current() -> None:
    assert (DOCS / "protocol.md").read_text() == protocol_page.page(), (
        "run `uv run python -m tests.protocol_page > docs/protocol.md`"
    )


def test_every_handled_request_code_is_used_by_a_test() -> None:
    handled = {code for table in protocol_page.tables().values() for code in table}
    names = {code.value: code.name for kind in (RequestCode, RayMQRequestCode) for code in kind}
    untested = sorted(names[code] for code in handled if not protocol_page.tests_by_code()[names[code]])
    assert untested == []


CITED = re.compile(r"(docs/[\w-]+\.md)(?:#([\w-]+))?")
BY_NUMBER = re.compile(
    r"\b([Dd]esign,?\s+(section|§|invariant)|[Ss]tore\s+format,?\s+(section\s+)?\d+\.\d|[Ii]nvariant\s\d)"
)
SOURCES = [
    path
    for root in ("actors", "cluster", "jobs", "store", "tests")
    for path in sorted((DOCS.parent / root).rglob("*.py"))
    if path != Path(__file__)
]


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {anchor_of(heading) for heading in headings}


def anchor_of(heading: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_pages_and_sections_cited_by_code_exist() -> None:
    """Docstrings cite a page by its path, and a section by the anchor of its heading."""
    cited = [(path, *found) for path in SOURCES for found in CITED.findall(path.read_text())]
    pages = {page: DOCS.parent / page for _, page, _ in cited}
    anchors = {page: anchors_of(path) for page, path in pages.items() if path.exists()}
    missing = [
        f"{path.relative_to(DOCS.parent)}: {page}#{anchor}"
        for path, page, anchor in cited
        if page not in anchors or (anchor and anchor not in anchors[page])
    ]
    assert len(cited) > 50
    assert missing == []


def test_code_cites_no_section_by_a_number_of_another_document() -> None:
    numbered = [
        f"{path.relative_to(DOCS.parent)}: {found[0]}: cite docs/store-format.md#<heading>, and add it there"
        for path in SOURCES
        if (found := BY_NUMBER.search(path.read_text()))
    ]
    assert numbered == []


def test_every_section_of_the_store_format_is_cited() -> None:
    """The page holds what the code cites, and nothing that becomes old unseen."""
    text = "\n".join(path.read_text() for path in SOURCES)
    title, *sections = re.findall(r"^#+ (.+)$", (DOCS / "store-format.md").read_text(), re.MULTILINE)
    assert title == "The store on disk"
    assert [each for each in sections if f"store-format.md#{anchor_of(each)}" not in text] == []


FILE = re.compile(
    r"`((?:actors|benchmarks|cluster|configs|docs|jobs|store|tests)/[\w./-]+)(?:::\w+)?`|\]\(([\w./-]+)(?:#[\w-]+)?\)"
)
WALK = re.compile(r"^\| `([\w/]+\.py)` \| (`[\w.` ]+`) \|", re.MULTILINE)
PAGES = [*sorted(DOCS.glob("*.md")), *sorted(DOCS.parent.glob("*.md"))]
README_LINES_MAX = 130


def test_readme_is_short_and_begins_with_its_two_commands() -> None:
    text = (DOCS.parent / "README.md").read_text()
    assert len(text.splitlines()) <= README_LINES_MAX
    assert re.findall(r"^\$ (uv run \w+(?: demo)?)", text, re.MULTILINE)[:2] == [
        "uv run raymq demo",
        "uv run pytest",
    ]


def test_map_of_the_documentation_names_every_page() -> None:
    """A page that the map does not name is not found."""
    named = {
        link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", (DOCS / "README.md").read_text())
    }
    assert {page.name for page in DOCS.glob("*.md")} - {"README.md"} <= named


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_files_named_by_documentation_exist(page: Path) -> None:
    named = [(by_root, by_page) for by_root, by_page in FILE.findall(page.read_text())]
    missing = [name for name, _ in named if name and not (DOCS.parent / name).exists()]
    missing += [name for _, name in named if name and not (page.parent / name).exists()]
    assert missing == []


LINK = re.compile(r"\]\(([\w./-]*\.md)?#([\w-]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_sections_that_pages_link_to_exist(page: Path) -> None:
    links = LINK.findall(page.read_text())
    missing = [
        f"{name}#{anchor}"
        for name, anchor in links
        if anchor not in anchors_of(page.parent / name if name else page)
    ]
    assert missing == []


SHOWN = re.compile(r"(?:^(?:\$ )?(?:uv run )?|`(?:uv run )?)raymq ([^`\n]+)", re.MULTILINE)
"""A command in a block, at the beginning of its line, or in the text."""


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name != "changelog.md"],
    ids=lambda page: f"{page.parent.name}/{page.name}",
)
def test_commands_shown_by_documentation_exist_with_their_options(page: Path) -> None:
    wrong = [f"{shown}: {word}" for shown in SHOWN.findall(page.read_text()) for word in unknown_words(shown)]
    assert wrong == []


def unknown_words(shown: str) -> list[str]:
    """Return the commands and options in the arguments of `raymq` that do not exist."""
    words = re.split(r" (?:[|<>#]|- )", shown)[0].split()
    command: Any = typer.main.get_command(build(words))
    while words and hasattr(command, "commands") and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    if hasattr(command, "commands"):
        return [word for word in words[:1] if not word.startswith("-")]
    known = {"--help", "-h"}.union(*((*each.opts, *each.secondary_opts) for each in command.params))
    return [word for word in words if re.fullmatch(r"--?[a-z][a-z-]*", word) and word not in known]


def test_functions_named_by_message_path_page_exist() -> None:
    rows = WALK.findall((DOCS / "how-a-message-travels.md").read_text())
    missing = [
        f"{file}: {name}"
        for file, names in rows
        for name in names.replace("`", "").split()
        if name not in defined_in(DOCS.parent / file)
    ]
    assert len(rows) > 25
    assert missing == []


def defined_in(file: Path) -> set[str]:
    """Return the names of the classes, functions and methods (`Class.method`) that a file defines."""
    body = parsed(file).body
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    top = [node for node in body if isinstance(node, kinds)]
    inner = [
        f"{node.name}.{each.name}"
        for node in top
        if isinstance(node, ast.ClassDef)
        for each in node.body
        if isinstance(each, kinds)
    ]
    return {node.name for node in top} | set(inner)


def test_tests_named_by_security_page_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (DOCS / "security.md").read_text())
    missing = [f"{file}::{test}" for file, test in named if test not in defined_in(DOCS.parent / file)]
    assert len(named) > 10
    assert missing == []
