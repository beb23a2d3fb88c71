"""Ray Serve is imported by jobs.tasks.serve only, and a missing package is named with its extra."""

from __future__ import annotations

import ast
import subprocess
import sys

from tests.sources import parsed
from tests.test_tidy import REPO, name, of_code, python_files


def imported_modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [each.name for each in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{each.name}" for each in node.names]
    return []


def test_ray_serve_is_imported_by_its_adapter_only() -> None:
    found = {
        name(path)
        for path in python_files()
        if of_code(path) and not name(path).startswith("benchmarks/")
        for node in ast.walk(parsed(path))
        for module in imported_modules(node)
        if f"{module}.".startswith("ray.serve.")
    }
    assert {each for each in found if not each.startswith("jobs/tasks/serve/")} == set()


def test_tasks_package_does_not_import_ray_serve_or_celery() -> None:
    program = "import sys, jobs.tasks, jobs.tasks.topics; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, check=True
    )
    assert not {"ray", "celery", "kombu", "taskiq"} & set(run.stdout.split())
