"""Reading what is in deploy/: the documents of a folder, and what an overlay makes of its base."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
OVERLAYS = ("gpu", "baked")
KEYS = {"containers": "name", "initContainers": "name", "volumes": "name", "volumeMounts": "mountPath"}
"""Lists that a patch merges by their entries' key; any other it replaces, as Kubernetes' API does."""

Document = dict[str, Any]


def load(file: Path) -> list[Document]:
    """The documents of a YAML file."""
    return list(yaml.safe_load_all(file.read_text(encoding="utf-8")))


def base() -> list[Document]:
    """What the base consists of, by its list."""
    (kustomization,) = load(KUBERNETES / "base" / "kustomization.yaml")
    return [document for name in kustomization["resources"] for document in load(KUBERNETES / "base" / name)]


def overlay(name: str) -> list[Document]:
    """The base with the patches of an overlay."""
    documents = base()
    (kustomization,) = load(KUBERNETES / name / "kustomization.yaml")
    assert kustomization["resources"] == ["../base"]
    for entry in kustomization["patches"]:
        patch = yaml.safe_load(entry["patch"])
        (target,) = [one for one in documents if (one["kind"], one["metadata"]["name"]) == (patch["kind"], patch["metadata"]["name"])]
        documents.remove(target)
        if patch.pop("$patch", None) != "delete":
            documents.append(merged(target, patch))
    return documents


def merged(base: Any, patch: Any, field: str = "") -> Any:
    """A strategic merge."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return base | {name: merged(base.get(name), value, name) for name, value in patch.items()}
    if isinstance(base, list) and field in KEYS:
        made, key = {entry[KEYS[field]]: entry for entry in base}, KEYS[field]
        for entry in patch:
            if entry.get("$patch") == "delete":
                del made[entry[key]]
            else:
                made[entry[key]] = merged(made.get(entry[key]), entry)
        return list(made.values())
    return deepcopy(patch)


def find(documents: list[Document], kind: str, name: str = "specbuild") -> Document:
    """The one of that kind and name."""
    (found,) = [one for one in documents if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def scripts(documents: list[Document]) -> Iterator[str]:
    """What init containers run."""
    for container in find(documents, "Deployment")["spec"]["template"]["spec"]["initContainers"]:
        yield container["command"][-1]
