"""Rules that the linters do not check: sizes of functions and files, units in names, prose, paths."""

from __future__ import annotations

import ast
import gc
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources import parsed

REPO = Path(__file__).parent.parent
FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 500
FOLDER_FILES_MAX = 30
PARAMETERS_MAX = 7
ATTRIBUTES_MAX = 15
CODE_FOLDERS = ("cluster", "actors", "store", "jobs", "benchmarks")
CONSOLES = ("cluster/cli/", "cluster/lab/demo", "cluster/lab/bench", "benchmarks/")
LEFTOVER = re.compile(r"#.*\b(TODO|FIXME|XXX|HACK)\b")
MACHINE_PATH = re.compile(r"(?<![\w.{}])/(work|root|home)/[A-Za-z]")
TEST_NAME_CHARACTERS_MAX = 80
PHRASES = (
    r"whoever|whomever|(?:is|are|be)\s+(?-i:none)|told|tells of|tell of|heard of|hears of|unheard"
    r"|nobody|somebody"
    r"|goes on|go on|went on|goes its way|comes? back|came back|gives? back|gave back|lets? go of|let go"
    r"|in vain|anew|does as well|for ever|calls? for it|a word from|without a word"
    r"|mend(?:s|ed)?|hush(?:ed)?|deaf|homeless|hindrance|forsaken|pass(?:es|ed)? over"
    r"|who (?:asks?|does|is|has|had|reads?|sends?|looks?|wants?|waits?|holds?|comes?|needs?|knows?)"
    r"|is asked (?:for|again)|are asked"
)
"""Phrases without an ordinary technical meaning: a reader must guess what they say."""
RIDDLE = re.compile(rf"(?i)\b(?:{PHRASES})\b")
UNITLESS = re.compile(r"(^|_)(timeout|interval|delay|duration|latency|deadline|lease|elapsed|backoff)$")
SIZES = re.compile(r"(^|_)(file_size|max_size|buffer_size|body_size)$")


def python_files() -> list[Path]:
    files = [path for folder in (*CODE_FOLDERS, "tests") for path in sorted((REPO / folder).rglob("*.py"))]
    return [path for path in files if "__pycache__" not in path.parts]


def of_code(path: Path) -> bool:
    return path.relative_to(REPO).parts[0] in CODE_FOLDERS


def name(path: Path) -> str:
    return path.relative_to(REPO).as_posix()


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.fixture(scope="module")
def trees() -> Iterator[dict[Path, ast.Module]]:
    gc.disable()  # with it, more than half of the time is spent on looking for cycles in a million nodes
    found = {path: parsed(path) for path in python_files()}
    gc.freeze()
    gc.enable()
    yield found
    gc.unfreeze()


def test_functions_fit_60_lines(trees: dict[Path, ast.Module]) -> None:
    long = [
        f"{name(path)}:{function.lineno} {function.name}: {lines} lines"
        for path, tree in trees.items()
        for function in functions(tree)
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not long, "\n".join(long)


def test_files_fit_500_lines() -> None:
    long = [
        f"{name(path)}: {count} lines"
        for path in python_files()
        if (count := len(path.read_text().splitlines())) > FILE_LINES_MAX
    ]
    assert not long, "\n".join(long)


def is_data(node: ast.ClassDef) -> bool:
    """Return True for settings, wire headers and data classes: their fields are a format."""
    marks = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    names = [getattr(each, "id", getattr(each, "attr", "")) for each in (*marks, *node.bases)]
    return any(
        each in {"dataclass", "BaseModel", "NamedTuple", "Struct"}
        or each.endswith(("Header", "Settings", "Config"))
        for each in names
    )


def test_large_constructors_and_classes_are_reported(trees: dict[Path, ast.Module]) -> None:
    """Print them (`pytest -s`); not a failure, because a constructor names everything that it uses."""
    large = []
    for path, tree in trees.items():
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        for node in classes if of_code(path) else ():
            if is_data(node):
                continue
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            parameters = [
                len(each.args.posonlyargs) + len(each.args.args) + len(each.args.kwonlyargs) - 1
                for each in methods
                if each.name == "__init__"
            ]
            attributes = {
                target.attr
                for each in methods
                for target in ast.walk(each)
                if isinstance(target, ast.Attribute)
                and isinstance(target.ctx, ast.Store)
                and isinstance(target.value, ast.Name)
                and target.value.id == "self"
            }
            if max(parameters, default=0) > PARAMETERS_MAX or len(attributes) > ATTRIBUTES_MAX:
                large.append(f"{name(path)}:{node.lineno} {node.name}: {parameters}, {len(attributes)}")
    print(f"{len(large)} large constructors and classes:", *large, sep="\n")  # noqa: T201 - a report


def test_folders_hold_30_files_at_most() -> None:
    counts = Counter(path.parent for path in python_files())
    full = [f"{name(folder)}: {count} files" for folder, count in counts.items() if count > FOLDER_FILES_MAX]
    assert not full, "\n".join(full)


def test_test_folders_mirror_code_folders() -> None:
    folders = {path.parent for code in CODE_FOLDERS for path in (REPO / "tests" / code).rglob("test_*.py")}
    lost = [name(each) for each in folders if not (REPO / each.relative_to(REPO / "tests")).is_dir()]
    assert len(folders) > 20
    assert not lost, "\n".join(lost)


def test_only_command_line_modules_print(trees: dict[Path, ast.Module]) -> None:
    prints = [
        f"{name(path)}:{node.lineno}"
        for path, tree in trees.items()
        if of_code(path) and not name(path).startswith(CONSOLES)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not prints, "\n".join(prints)


def test_no_bare_except(trees: dict[Path, ast.Module]) -> None:
    bare = [
        f"{name(path)}:{node.lineno}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]
    assert not bare, "\n".join(bare)


def test_tests_wait_with_eventually_and_never_sleep(trees: dict[Path, ast.Module]) -> None:
    """A sleep is too long on fast machines and too short on busy ones; `sleep(0)` only yields to the loop."""
    sleeps = [
        f"{name(path)}:{node.lineno}"
        for path, tree in trees.items()
        if not of_code(path) and name(path) != "tests/eventually.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "sleep"
        and ast.unparse(node) != "asyncio.sleep(0)"
    ]
    assert not sleeps, "\n".join(sleeps)


def test_durations_and_sizes_name_their_unit(trees: dict[Path, ast.Module]) -> None:
    """Parameters and annotated fields with a duration or size end with their unit."""
    unitless = []
    for path, tree in trees.items():
        if not of_code(path):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.arg):
                label, annotation = node.arg, node.annotation
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                label, annotation = node.target.id, node.annotation
            else:
                continue
            is_number = isinstance(annotation, ast.Name) and annotation.id in {"int", "float"}
            if is_number and (UNITLESS.search(label.lower()) or SIZES.search(label.lower())):
                unitless.append(f"{name(path)}:{node.lineno} {label}")
    assert not unitless, "\n".join(unitless)


def test_no_todo_comments() -> None:
    left = [
        f"{name(path)}:{number} {line.strip()}"
        for path in python_files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if LEFTOVER.search(line) and path != Path(__file__)
    ]
    assert not left, "\n".join(left)


def test_no_machine_paths_and_no_other_package_index() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=REPO, capture_output=True, text=True, check=True).stdout
    found = []
    for line in listed.splitlines():
        path = REPO / line
        if line.endswith((".gz", ".png")) or not path.is_file() or path == Path(__file__):
            continue
        for number, text in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if MACHINE_PATH.search(text):
                found.append(f"{line}:{number} {text.strip()[:100]}")
    lock = (REPO / "uv.lock").read_text()
    hosts = set(re.findall(r"https?://([^/\"]+)", lock))
    assert not found, "\n".join(found)
    assert hosts <= {"pypi.org", "files.pythonhosted.org"}, hosts


def test_top_level_folders_are_those_of_the_design() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=REPO, capture_output=True, text=True, check=True).stdout
    top = {line.split("/")[0] for line in listed.splitlines()}
    code = {"cluster", "actors", "store", "jobs", "configs", "tests", "benchmarks", "docs", "client"}
    pages = {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE"}
    allowed = code | pages | {"pyproject.toml", "uv.lock", ".ci", ".gitignore", ".rayignore"}
    allowed |= {"Dockerfile", ".dockerignore", "compose.yaml"}
    assert top <= allowed, top - allowed


def test_packages_are_marked_as_typed() -> None:
    # Without py.typed, mypy treats messages and queues (classes of `store`) as Any in users' programs.
    packages = ("cluster", "actors", "store", "jobs")
    assert [each for each in packages if not (REPO / each / "py.typed").exists()] == []


def test_prose_contains_no_denied_phrase() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=REPO, capture_output=True, text=True, check=True).stdout
    names = [
        each
        for each in listed.splitlines()
        if each.endswith((".py", ".md", ".yaml")) and "fixtures" not in each
    ]
    found = []
    for each in names:
        path = REPO / each
        if path != Path(__file__) and path.is_file():
            text = path.read_text()
            found += [
                f"{each}:{text.count(chr(10), 0, match.start()) + 1} {match[0]!r}"
                for match in RIDDLE.finditer(text)
            ]
    assert not found, "\n".join(found)


def test_test_names_fit_80_characters(trees: dict[Path, ast.Module]) -> None:
    long = [
        f"{name(path)}:{function.lineno} {function.name}"
        for path, tree in trees.items()
        for function in functions(tree)
        if function.name.startswith("test_") and len(function.name) > TEST_NAME_CHARACTERS_MAX
    ]
    assert not long, "\n".join(long)
