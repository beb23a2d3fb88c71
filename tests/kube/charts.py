"""The chart of Kubernetes: its value files, and what Helm renders from them.

`rendered/NAME.yaml` is the output of `helm template raymq configs/helm/raymq` with `-f NAME.yaml`, so that
most tests need no Helm; `test_rendered_files_are_current` renders them again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

CHART = Path("configs/helm/raymq")
RENDERED = Path(__file__).parent / "rendered"
RELEASE = "raymq"
VALUES = sorted(path.stem for path in CHART.glob("values*.yaml"))

Document = dict[str, Any]


def documents_of(text: str) -> list[Document]:
    """Return the documents of a rendered chart."""
    return [each for each in yaml.safe_load_all(text) if each]


def rendered(values: str) -> list[Document]:
    """Return what Helm rendered from a value file."""
    return documents_of((RENDERED / f"{values}.yaml").read_text())


def named(documents: list[Document], kind: str, name: str = RELEASE) -> Document:
    """Return the document of a kind and name."""
    (found,) = [each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def all_of(documents: list[Document], kind: str) -> dict[str, Document]:
    """Return the documents of a kind, by name."""
    return {each["metadata"]["name"]: each for each in documents if each["kind"] == kind}


def groups_of(documents: list[Document]) -> dict[str, Document]:
    """Return the groups of worker pods by name, and that of the head as `headgroup`, as Ray names it."""
    spec = named(documents, "RayCluster")["spec"]
    return {
        "headgroup": spec["headGroupSpec"],
        **{each["groupName"]: each for each in spec["workerGroupSpecs"]},
    }


def container_of(group: Document) -> Document:
    """Return the container of Ray in the pods of a group."""
    (container,) = group["template"]["spec"]["containers"]
    return dict(container)


def labels_of(group: str) -> dict[str, str]:
    """Return the labels that the operator gives the pods of a group."""
    kind = "head" if group == "headgroup" else "worker"
    return {"ray.io/cluster": RELEASE, "ray.io/node-type": kind, "ray.io/group": group}
