"""The pages' files: vendored libraries are as published, and everything stays within its budget."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path

import cluster.console
from cluster.console.static_files import STATIC

LINES_MAX = 3_800
"""Lines of all own files, with blank lines, comments and docstrings.

3,500 before it decided about rights itself, and bounded the threads, time and connections of its clients.
"""
FIRST_LOAD_BYTES_MAX = 150 * 1024
VENDOR = STATIC / "vendor"


def test_vendored_files_have_the_hashes_of_the_lock_file() -> None:
    packages = json.loads((VENDOR / "vendor.lock.json").read_text())
    files = {name: each["sha256"] for package in packages for name, each in package["files"].items()}
    for name, expected in files.items():
        assert sha256((VENDOR / name).read_bytes()).hexdigest() == expected, name
    for package in packages:
        assert package["integrity"].startswith("sha512-")
        assert {"name", "version", "licence"} <= package.keys()
        assert (VENDOR / f"LICENSE.{package['name']}.txt").exists()
    texts = {"vendor.lock.json", *(path.name for path in VENDOR.glob("LICENSE.*"))}
    assert {path.name for path in VENDOR.iterdir()} == texts | files.keys()


def own_files() -> list[Path]:
    folder = Path(cluster.console.__file__).parent
    return [
        path
        for path in folder.rglob("*")
        if path.suffix in {".py", ".js", ".css", ".html"} and VENDOR not in path.parents
    ]


def test_code_of_the_console_fits_its_budget() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in own_files()}
    assert sum(lines.values()) <= LINES_MAX, lines


def test_first_load_fits_its_budget() -> None:
    """The page, its scripts with what they import, the styles, and the page Overview."""
    seen: set[Path] = set()

    def load(path: Path) -> None:
        if path in seen:
            return
        seen.add(path)
        if path.suffix in {".js", ".html"} and VENDOR not in path.parents:
            for name in re.findall(r'(?:src|href|from)[= ]"([./][^"]+)"', path.read_text()):
                load(STATIC / name[1:] if name.startswith("/") else (path.parent / name).resolve())

    load(STATIC / "index.html")
    load(STATIC / "pages/overview.js")
    assert VENDOR / "preact-htm.js" in seen
    assert VENDOR / "uPlot.iife.min.js" in seen
    assert sum(path.stat().st_size for path in seen) <= FIRST_LOAD_BYTES_MAX


def test_pages_insert_texts_only_as_text() -> None:
    """No script turns text of other users into elements, and no style or handler is an attribute's text."""
    for path in own_files():
        if path.suffix in {".js", ".html"}:
            text = path.read_text()
            found = re.findall(r"innerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text)
            assert not found, f"{path.name}: {found}"
            assert not re.search(r'<script>|style="|\son\w+="', text), path.name
