"""Reads the Kubernetes manifests: from the files as they are, and as kustomize renders them."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
KUSTOMIZATIONS = ("base", "overlays/two-nodes")

Manifest = dict[str, Any]


def written() -> dict[str, list[Manifest]]:
    """Documents of every file by its path under deploy/kubernetes."""
    files = sorted(KUBERNETES.rglob("*.yaml"))
    return {str(f.relative_to(KUBERNETES)): [d for d in yaml.safe_load_all(f.read_text()) if d] for f in files}


@cache
def _rendered_text(name: str) -> str:
    if shutil.which("kustomize"):
        command = ["kustomize", "build"]
    elif shutil.which("kubectl"):
        command = ["kubectl", "kustomize"]
    else:
        pytest.skip("needs kustomize or kubectl (1.24 or newer)")
    said = subprocess.run([*command, str(KUBERNETES / name)], capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stderr
    assert "deprecated" not in said.stderr.lower(), said.stderr
    return said.stdout


def rendered(name: str) -> list[Manifest]:
    """What `kubectl apply -k` would send. Skips where there is no kustomize."""
    return [d for d in yaml.safe_load_all(_rendered_text(name)) if d]


def one(manifests: list[Manifest], kind: str) -> Manifest:
    """The only one of its kind."""
    (found,) = [m for m in manifests if m["kind"] == kind]
    return found


def pod_spec(manifest: Manifest) -> Manifest:
    """Of a Job or CronJob."""
    spec = manifest["spec"]
    if manifest["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    found: Manifest = spec["template"]["spec"]
    return found
