"""The manifests are what Kubernetes takes: each against the API's own schema, where an unknown key is an error."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import kubernetes_validate
import pytest
from manifests import DEPLOY, KUBERNETES, OVERLAYS, Document, base, find, load, overlay

VERSIONS = ("1.32", "1.37")
KUSTOMIZATION = {"apiVersion", "kind", "resources", "patches", "configMapGenerator"}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["base", *OVERLAYS])
def test_every_document_is_valid(name: str, version: str) -> None:
    documents = base() if name == "base" else overlay(name)
    kinds = {one["kind"] for one in documents}
    assert kinds >= {"Deployment", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget", "NetworkPolicy"}
    for document in documents:
        assert kubernetes_validate.validate(document, version, strict=True) == version


def container(document: Document) -> dict[str, Any]:
    return document["spec"]["template"]["spec"]["containers"][0]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("plant", "says"),
    [
        (lambda one: container(one).update(readynessProbe={}), "readynessProbe"),
        (lambda one: container(one)["ports"][0].update(containerPort="8001"), "'8001' is not"),
        (lambda one: container(one)["lifecycle"]["preStop"].update(sleep=15), "15 is not"),
        (lambda one: one["spec"].pop("selector"), "'selector' is a required property"),
        (lambda one: one["spec"]["template"]["spec"]["volumes"][0]["persistentVolumeClaim"].update(claim="x"), "'claim' was unexpected"),
    ],
    ids=["misspelt", "type", "shape", "missing", "deep"],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_planted_fault_is_found(plant: Callable[[Document], object], says: str, version: str) -> None:
    document = deepcopy(find(base(), "Deployment"))
    plant(document)
    with pytest.raises(kubernetes_validate.ValidationError, match=says):
        kubernetes_validate.validate(document, version, strict=True)


def test_an_overlay_changes_what_it_says_and_nothing_else() -> None:
    plain, gpu, baked = (find(made, "Deployment")["spec"]["template"]["spec"] for made in (base(), overlay("gpu"), overlay("baked")))
    assert [one["resources"]["limits"]["nvidia.com/gpu"] for one in (*gpu["initContainers"], *gpu["containers"])] == ["1", "1"]
    assert gpu["containers"][0]["livenessProbe"] == plain["containers"][0]["livenessProbe"]
    assert {volume["name"] for volume in plain["volumes"]} - {volume["name"] for volume in baked["volumes"]} == {"bundle"}
    mounts = [mount["mountPath"] for one in (*baked["initContainers"], *baked["containers"]) for mount in one["volumeMounts"]]
    assert "/models" in mounts
    assert "/bundle" not in mounts
    assert {one["kind"] for one in base()} - {one["kind"] for one in overlay("baked")} == {"PersistentVolumeClaim"}


def test_kustomizations_list_every_file_and_nothing_else() -> None:
    for file in sorted(DEPLOY.rglob("kustomization.yaml")):
        (kustomization,) = load(file)
        assert kustomization.keys() <= KUSTOMIZATION, file
        listed = {*kustomization.get("resources", ())}
        listed |= {name for generator in kustomization.get("configMapGenerator", ()) for name in generator["files"]}
        assert {name for name in listed if not name.startswith("..")} == {one.name for one in file.parent.iterdir()} - {file.name}, file
        assert all((file.parent / name / "kustomization.yaml").is_file() for name in listed if name.startswith("..")), file


def test_custom_resources_have_the_shape_that_their_operator_reads() -> None:
    """Not against their schema, which no package carries: the keys that are used, and what must be there."""
    (monitor,), (rules,) = load(KUBERNETES / "monitoring" / "podmonitor.yaml"), load(KUBERNETES / "monitoring" / "alerts.yaml")
    assert monitor["apiVersion"] == rules["apiVersion"] == "monitoring.coreos.com/v1"
    assert (monitor["kind"], rules["kind"]) == ("PodMonitor", "PrometheusRule")
    assert monitor["spec"].keys() == {"selector", "podMetricsEndpoints"}
    assert [one.keys() for one in monitor["spec"]["podMetricsEndpoints"]] == [{"port", "path", "interval"}]
    for group in rules["spec"]["groups"]:
        assert group.keys() == {"name", "rules"}
        names = [rule["alert"] for rule in group["rules"]]
        assert len(set(names)) == len(names)
        for rule in group["rules"]:
            assert {"alert", "expr", "labels", "annotations"} <= rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
            assert rule["labels"].keys() == {"severity"}
            assert rule["labels"]["severity"] in {"warning", "critical"}
            assert {"summary"} <= rule["annotations"].keys() <= {"summary", "description"}
