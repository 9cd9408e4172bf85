"""The Kubernetes manifests: valid by the schemas of old and new releases, restricted, and of one piece."""

from __future__ import annotations

import copy
import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from manifests import KUBERNETES, KUSTOMIZATIONS, ROOT, Manifest, one, pod_spec, rendered, written

from loopopt.cli import jobs
from loopopt.cli.main import cli
from loopopt.cli.settings import loop_config

RELEASES = ("1.29", kubernetes_validate.latest_version())
"""The oldest with native sidecars, and the newest that is known."""
PODMONITOR = json.loads((Path(__file__).with_name("podmonitor.schema.json")).read_text())


def _check(manifest: Manifest, release: str) -> None:
    if manifest["kind"] == "PodMonitor":
        jsonschema.validate(manifest, PODMONITOR)
    else:
        kubernetes_validate.validate(manifest, release, strict=True)


@pytest.mark.parametrize("release", RELEASES)
def test_every_file_is_valid(release: str) -> None:
    """Each document by itself, whether or not kustomize is here; unknown fields are refused."""
    seen = 0
    for path, documents in written().items():
        for document in documents:
            if document["kind"] == "Kustomization" or path.endswith("nodes.yaml"):  # a patch is half a document
                continue
            _check(document, release)
            seen += 1
    assert seen >= 9


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", KUSTOMIZATIONS)
def test_what_is_rendered_is_valid(name: str, release: str) -> None:
    """What would be applied."""
    manifests = rendered(name)
    for manifest in manifests:
        _check(manifest, release)
    kinds = {m["kind"] for m in manifests}
    assert kinds >= {"Job", "CronJob", "NetworkPolicy", "PodMonitor", "ConfigMap", "Namespace"}
    assert len({m["metadata"].get("namespace", m["metadata"]["name"]) for m in manifests}) == 1


def test_a_wrong_field_is_found() -> None:
    """The checks above can fail."""
    job = copy.deepcopy(one(written()["base/job.yaml"], "Job"))
    job["spec"]["template"]["spec"]["initContainers"][0]["restartPolicies"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError, match="restartPolicies"):
        _check(job, RELEASES[0])


def _restricted(spec: Manifest) -> list[str]:
    """What in a pod breaks the Pod Security Standard `restricted`, plus the root file system, which it leaves open."""
    pod = spec.get("securityContext", {})
    wrong = [f"pod: {k}" for k in ("hostNetwork", "hostPID", "hostIPC") if spec.get(k)]
    kinds = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
    wrong += [f"volume {v['name']}" for v in spec.get("volumes", []) if not set(v) - {"name"} <= kinds]
    for container in spec.get("initContainers", []) + spec["containers"]:
        own = container.get("securityContext", {})
        merged: dict[str, Any] = {**pod, **own}
        held = {
            "runAsNonRoot": merged.get("runAsNonRoot") is True and merged.get("runAsUser") != 0,
            "seccompProfile": merged.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost"),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "privileged": not own.get("privileged"),
            "capabilities": own.get("capabilities") == {"drop": ["ALL"]},
            "hostPort": not any(p.get("hostPort") for p in container.get("ports", [])),
            "readOnlyRootFilesystem": own.get("readOnlyRootFilesystem") is True,
        }
        wrong += [f"{container['name']}: {name}" for name, holds in held.items() if not holds]
    return wrong


@pytest.mark.parametrize("name", KUSTOMIZATIONS)
def test_pods_are_restricted(name: str) -> None:
    """As the namespace's label demands of them."""
    manifests = rendered(name)
    labels = one(manifests, "Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert [_restricted(pod_spec(one(manifests, kind))) for kind in ("Job", "CronJob")] == [[], []]
    assert pod_spec(one(manifests, "Job"))["automountServiceAccountToken"] is False


def _job(name: str) -> tuple[Manifest, Manifest, Manifest]:
    """Pod, sidecar and trainer."""
    spec = pod_spec(one(rendered(name), "Job"))
    (sidecar,), (trainer,) = spec["initContainers"], spec["containers"]
    return spec, sidecar, trainer


@pytest.mark.parametrize("name", KUSTOMIZATIONS)
def test_sidecar_and_trainer_meet(name: str) -> None:
    """One user, one absolute path, one job directory, on a volume of limited size; the trainer never waits."""
    spec, sidecar, trainer = _job(name)
    assert sidecar["restartPolicy"] == "Always"
    assert "startupProbe" not in sidecar
    assert not any({"runAsUser", "runAsGroup"} & set(c["securityContext"]) for c in (sidecar, trainer))
    mounts = [{m["name"]: m["mountPath"] for m in c["volumeMounts"]}["loopopt"] for c in (sidecar, trainer)]
    assert mounts[0] == mounts[1]
    assert all(v["emptyDir"]["sizeLimit"] for v in spec["volumes"])

    environment = {e["name"]: e["value"] for e in trainer["env"]}
    command, option, directory, *rest = sidecar["args"]
    assert (command, option) == ("daemon", "--dir")
    assert environment["LOOPOPT"] == "1"
    assert environment["LOOPOPT_DIR"] == directory
    assert Path(directory).parent == Path(mounts[0])
    assert {e["name"]: e["value"] for e in sidecar["env"]}["LOOPOPT_HOME"] == mounts[0]
    jobs.check_socket_path(Path(directory))

    assert rest[::2] == ["--set"] * (len(rest) // 2)
    config = loop_config(rest[1::2])
    volume = next(v for v in spec["volumes"] if v["name"] == "loopopt")
    assert int(volume["emptyDir"]["sizeLimit"].removesuffix("Gi")) * 2**30 >= 4 * config.trace_max_bytes
    assert config.metrics_port == sidecar["ports"][0]["containerPort"]
    assert config.metrics_host == "0.0.0.0"


@pytest.mark.parametrize("name", KUSTOMIZATIONS)
def test_selectors_and_ports_fit(name: str) -> None:
    """Prometheus finds the pods, is let in by the policy, and torchrun finds the first pod."""
    manifests = rendered(name)
    _, sidecar, trainer = _job(name)
    port = sidecar["ports"][0]["name"]
    labels = one(manifests, "Job")["spec"]["template"]["metadata"]["labels"].items()
    monitor = one(manifests, "PodMonitor")["spec"]
    policy = one(manifests, "NetworkPolicy")["spec"]
    service = one(manifests, "Service")
    assert len(port) <= 15, "longest name of a port"
    for selector in (monitor["selector"]["matchLabels"], policy["podSelector"]["matchLabels"]):
        assert selector.items() <= labels
    assert service["spec"]["selector"].items() <= labels
    assert monitor["jobLabel"] in dict(labels)
    assert [e["port"] for e in monitor["podMetricsEndpoints"]] == [port]
    opened = [p for rule in policy["ingress"] for p in rule.get("ports", [])]
    assert opened == [{"protocol": "TCP", "port": port}]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert pod_spec(one(manifests, "Job"))["subdomain"] == service["metadata"]["name"]
    nodes = one(manifests, "Job")["spec"]["completions"]
    assert f"--nnodes={nodes}" in trainer["command"]
    if nodes > 1:
        assert f"--master-addr=train-0.{service['metadata']['name']}" in trainer["command"]


def test_dashboards_are_config_maps() -> None:
    """Every dashboard, with the label that Grafana's sidecar looks for, each small enough for a ConfigMap."""
    maps = [m for m in rendered("base") if m["kind"] == "ConfigMap"]
    held = {name: text for m in maps for name, text in m["data"].items()}
    assert all(m["metadata"]["labels"]["grafana_dashboard"] == "1" for m in maps)
    assert held == {f.name: f.read_text() for f in (ROOT / "grafana" / "dashboards").glob("*.json")}
    assert all(len(json.dumps(m)) < 1_000_000 for m in maps)


def _refresh_script() -> str:
    (cronjob,) = [d for d in written()["base/refresh.yaml"] if d["kind"] == "CronJob"]
    (container,) = pod_spec(cronjob)["containers"]
    shell, flag, script = container["command"]
    assert (shell, flag) == ("/bin/sh", "-c")
    return str(script)


def test_nightly_refresh_asks_every_running_job(tmp_path: Path) -> None:
    """The script goes through all pods, and ends as the last one that failed; no two nights overlap."""
    calls = tmp_path / "calls"
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(
        f'#!/bin/sh\necho "$*" >> {calls}\n[ "$1" = get ] && echo "pod/a-0 pod/b-0" || [ "$2" = pod/b-0 ] || exit 9\n'
    )
    kubectl.chmod(kubectl.stat().st_mode | stat.S_IXUSR)
    path = f"{tmp_path}:{os.environ['PATH']}"
    said = subprocess.run(["/bin/sh", "-c", _refresh_script()], env={"PATH": path}, capture_output=True, text=True)
    assert said.returncode == 9, said.stderr
    listed, *asked = calls.read_text().splitlines()
    assert "batch.kubernetes.io/job-completion-index=0" in listed
    assert asked == [f"exec pod/{n}-0 --container loopopt -- loopopt refresh --all" for n in "ab"]
    (cronjob,) = [d for d in written()["base/refresh.yaml"] if d["kind"] == "CronJob"]
    assert cronjob["spec"]["concurrencyPolicy"] == "Forbid"
    command = cli.get_command(None, "refresh")  # type: ignore[arg-type]
    assert command is not None
    assert "--all" in {o for p in command.params for o in p.opts}


def test_nothing_else_lies_in_the_folder() -> None:
    """Every manifest is used by some kustomization."""
    for folder in KUSTOMIZATIONS:
        (kustomization,) = written()[f"{folder}/kustomization.yaml"]
        named = {*kustomization["resources"], *(p["path"] for p in kustomization.get("patches", []) if "path" in p)}
        assert {f.name for f in (KUBERNETES / folder).glob("*.yaml")} - {"kustomization.yaml"} <= named
