"""The parts of the deployment mean the same pods, ports, times and numbers."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from manifests import KUBERNETES, OVERLAYS, ROOT, base, find, load, overlay, scripts

from specbuild.cli.main import run
from specbuild.triton.render import from_text
from specbuild.triton.server import Ports

NAMES = ["base", *OVERLAYS]
BASE = base()
POD: dict[str, Any] = find(BASE, "Deployment")["spec"]["template"]
SERVER = POD["spec"]["containers"][0]
PORTS = {port["name"]: port["containerPort"] for port in SERVER["ports"]}
(MONITOR,) = load(KUBERNETES / "monitoring" / "podmonitor.yaml")


def test_ports_are_triton_s() -> None:
    ports = Ports()
    assert {"grpc": ports.grpc, "http": ports.http, "metrics": ports.metrics} == PORTS
    (exposed,) = re.findall(r"^EXPOSE (.+)$", (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {int(port) for port in exposed.split()} == set(PORTS.values())


def test_every_selector_means_these_pods() -> None:
    network = find(BASE, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"]
    selectors = [find(BASE, kind)["spec"]["selector"]["matchLabels"] for kind in ("Deployment", "PodDisruptionBudget")]
    selectors += [spread["labelSelector"]["matchLabels"] for spread in POD["spec"]["topologySpreadConstraints"]]
    selectors += [find(BASE, "Service", name)["spec"]["selector"] for name in ("specbuild", "specbuild-http")]
    selectors += [network, MONITOR["spec"]["selector"]["matchLabels"]]
    assert all(selector and selector.items() <= POD["metadata"]["labels"].items() for selector in selectors)


def test_every_named_port_is_there() -> None:
    services = [find(BASE, "Service", name)["spec"]["ports"] for name in ("specbuild", "specbuild-http")]
    assert {port["targetPort"]: port["port"] for ports in services for port in ports}.items() <= PORTS.items()
    allowed = {port["port"] for rule in find(BASE, "NetworkPolicy")["spec"]["ingress"] for port in rule["ports"]}
    assert allowed == PORTS.keys()
    assert {one["port"] for one in MONITOR["spec"]["podMetricsEndpoints"]} == {"metrics"}
    assert find(BASE, "Service")["spec"]["clusterIP"] == "None", "gRPC clients see the pods, not one address"


def test_the_autoscaler_means_the_deployment_and_has_the_only_say() -> None:
    deployment, target = find(BASE, "Deployment"), find(BASE, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert target == {"apiVersion": deployment["apiVersion"], "kind": deployment["kind"], "name": deployment["metadata"]["name"]}
    assert "replicas" not in deployment["spec"]


@pytest.mark.parametrize("name", NAMES)
def test_it_scales_before_the_slots_are_full(name: str) -> None:
    documents = base() if name == "base" else overlay(name)
    (script,) = scripts(documents)
    (batch,), (limit,) = re.findall(r"--batch (\d+)", script), re.findall(r"--queue-limit (\d+)", script)
    metrics = find(documents, "HorizontalPodAutoscaler")["spec"]["metrics"]
    wanted = {one["pods"]["metric"]["name"]: int(one["pods"]["target"]["averageValue"]) for one in metrics}
    assert wanted["specbuild_running_requests"] < int(batch)
    assert wanted["specbuild_queue_depth"] < int(limit)


def test_health_is_asked_where_triton_answers() -> None:
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert SERVER[probe]["httpGet"] == {"path": "/v2/health/ready", "port": "http"}
    assert "http://localhost:8000/v2/health/ready" in (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")


def test_there_is_time_to_finish_what_runs() -> None:
    (drain,) = re.findall(r"--exit-timeout-secs=(\d+)", (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8"))
    before = SERVER["lifecycle"]["preStop"]["sleep"]["seconds"]
    unready = SERVER["readinessProbe"]["periodSeconds"] * SERVER["readinessProbe"]["failureThreshold"]
    assert before > unready, "balancers that ask for health themselves have seen it go"
    assert POD["spec"]["terminationGracePeriodSeconds"] > before + int(drain)


def test_nothing_may_do_more_than_it_must() -> None:
    assert POD["spec"]["securityContext"]["runAsNonRoot"]
    assert not POD["spec"]["automountServiceAccountToken"]
    assert not POD["spec"]["enableServiceLinks"], "SPECBUILD_… of a Service would be taken for settings"
    for container in (SERVER, *POD["spec"]["initContainers"]):
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert not context["allowPrivilegeEscalation"]
    assert "egress" not in find(BASE, "NetworkPolicy")["spec"]
    (user,) = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert user == (str(POD["spec"]["securityContext"]["runAsUser"]), str(POD["spec"]["securityContext"]["runAsGroup"]))


def test_volumes_and_mounts_agree() -> None:
    volumes = {volume["name"] for volume in POD["spec"]["volumes"]}
    assert {mount["name"] for one in (SERVER, *POD["spec"]["initContainers"]) for mount in one["volumeMounts"]} == volumes
    claims = [volume["persistentVolumeClaim"]["claimName"] for volume in POD["spec"]["volumes"] if "persistentVolumeClaim" in volume]
    assert [find(BASE, "PersistentVolumeClaim", claim)["spec"]["accessModes"] for claim in claims] == [["ReadOnlyMany"]]


@pytest.mark.parametrize("name", NAMES)
def test_the_commands_of_the_init_container_work(
    name: str, tiny_bundle: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (script,) = scripts(base() if name == "base" else overlay(name))
    tool = tmp_path / "bin"
    tool.mkdir()
    (tool / "nvidia-smi").write_text("#!/bin/sh\n")
    (tool / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tool), prepend=":")
    places = {"/bundle": str(tiny_bundle), "/models": str(tmp_path / "models")}
    commands = [[places.get(word, word) for word in shlex.split(line)] for line in script.splitlines()]
    assert commands[0][0] == "rm"
    assert [run(command[1:]) for command in commands if command[0] == "specbuild"] == [0, 0]
    message = from_text((tmp_path / "models" / "specbuild" / "config.pbtxt").read_text(encoding="utf-8"))
    assert message.parameters["bundle"].string_value == str(tiny_bundle)
    assert message.parameters["batch"].string_value in script
