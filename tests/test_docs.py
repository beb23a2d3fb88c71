"""Pages that are made from the code say what the code says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from actors.remoting.codes import RayMQRequestCode, RequestCode
from cluster.settings_doc import SECTIONS, page
from store.live_settings import live_names
from tests import protocol_page

DOCS = Path(__file__).parent.parent / "docs"


def test_the_page_of_settings_is_as_the_models_are() -> None:
    assert (DOCS / "settings.md").read_text() == page(), (
        "run `uv run python -m cluster.settings_doc > docs/settings.md`"
    )


@pytest.mark.parametrize(("title", "model"), SECTIONS)
def test_every_setting_has_a_row_that_says_whether_it_is_live(title, model) -> None:
    rows = page().split(f"## {title}\n")[1].split("\n## ")[0]
    for name in model.model_fields:
        if name != "store":
            row = next(line for line in rows.splitlines() if line.startswith(f"| `{name}` "))
            assert ("| live |" in row) == (name in live_names(model))
            assert not row.endswith("|  |"), f"{name} has no docstring"


def test_the_page_of_the_protocol_is_as_the_tables_are() -> None:
    assert (DOCS / "protocol.md").read_text() == protocol_page.page(), (
        "run `uv run python -m tests.protocol_page > docs/protocol.md`"
    )


def test_every_code_that_is_answered_is_named_by_a_test() -> None:
    answered = {code for table in protocol_page.tables().values() for code in table}
    names = {code.value: code.name for kind in (RequestCode, RayMQRequestCode) for code in kind}
    untested = sorted(names[code] for code in answered if not protocol_page.tests_by_code()[names[code]])
    assert untested == []


FILE = re.compile(
    r"`((?:actors|benchmarks|cluster|configs|docs|jobs|store|tests)/[\w./-]+)(?:::\w+)?`|\]\(([\w./-]+)\)"
)
WALK = re.compile(r"^\| `([\w/]+\.py)` \| (`[\w.` ]+`) \|", re.MULTILINE)
PAGES = [*sorted(DOCS.glob("*.md")), DOCS.parent / "README.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    named = [(by_root, by_page) for by_root, by_page in FILE.findall(page.read_text())]
    gone = [name for name, _ in named if name and not (DOCS.parent / name).exists()]
    gone += [name for _, name in named if name and not (page.parent / name).exists()]
    assert gone == []


def test_every_name_on_the_way_of_a_message_is_in_its_file() -> None:
    rows = WALK.findall((DOCS / "how-a-message-travels.md").read_text())
    gone = [
        f"{file}: {name}"
        for file, names in rows
        for name in names.replace("`", "").split()
        if name not in defined_in(DOCS.parent / file)
    ]
    assert len(rows) > 25
    assert gone == []


def defined_in(file: Path) -> set[str]:
    """Classes, functions and methods (`Class.method`) that a file defines."""
    body = ast.parse(file.read_text()).body
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
