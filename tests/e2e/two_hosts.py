"""Two machines on one: network and host name namespaces joined by a slow link. Needs root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loopopt import wire

METRICS_PORT = 9400
PROMETHEUS_PORT = 9090
RATE = ("rate", "1500mbit", "burst", "1mb", "latency", "200ms")


def why_not() -> str:
    """Empty if two hosts can be made here."""
    if os.geteuid() != 0:
        return "two hosts need root (network namespaces)"
    missing = [p for p in ("ip", "tc", "unshare") if shutil.which(p) is None]
    if missing:
        return f"two hosts need {', '.join(missing)} (Debian packages iproute2, util-linux)"
    name = f"lo-try-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode != 0:
        return f"two hosts need network namespaces: {tried.stderr.strip()}"
    inside = ["ip", "netns", "exec", name, "unshare", "--uts", "hostname", "try"]
    tried = subprocess.run(inside, capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], check=True)
    return f"two hosts need host name namespaces: {tried.stderr.strip()}" if tried.returncode else ""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@dataclass(frozen=True)
class Host:
    """One of the two; `name` is its host name, `address` the other's way to it."""

    number: int
    namespace: str
    name: str
    address: str
    link: str
    job_dir: Path

    def wrapped(self, command: list[str]) -> list[str]:
        """The command on this host."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$1" && shift && exec "$@"', "sh", self.name]
        return ["ip", "netns", "exec", self.namespace, *named, *command]

    def environment(self) -> dict[str, str]:
        """Of a rank or daemon."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("LOOPOPT")}
        threads = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1", "KINETO_LOG_LEVEL": "6"}
        armed = {wire.ENV_ENABLE: "1", wire.ENV_DIR: str(self.job_dir), wire.ENV_JOB: "both"}
        return {**clean, **threads, **armed, "GLOO_SOCKET_IFNAME": self.link}

    def start(self, command: list[str], stderr: Path) -> subprocess.Popen[str]:
        """Start it there."""
        with stderr.open("ab") as said:
            return subprocess.Popen(
                self.wrapped(command), env=self.environment(), stdout=subprocess.DEVNULL, stderr=said, text=True
            )

    def fetched(self, port: int, path: str) -> str:
        """A page of this host's loopback; empty if there is none."""
        code = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=10).read().decode())"
        command = self.wrapped([sys.executable, "-c", code, f"http://127.0.0.1:{port}{path}"])
        return subprocess.run(command, capture_output=True, text=True).stdout

    def metrics(self, port: int) -> dict[str, float]:
        """What a scrape on this host's loopback gives."""
        page = self.fetched(port, "/metrics")
        assert page, "no metrics are served"
        lines = [line for line in page.splitlines() if line and not line.startswith("#")]
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


class TwoHosts:
    """`with TwoHosts(folder) as hosts:` makes them, and removes them with every process on them."""

    def __init__(self, folder: Path) -> None:
        mark = str(os.getpid())
        self.hosts = tuple(
            Host(
                i, f"lo-{mark}-{i}", f"node{'ab'[i]}", f"10.77.7.{i + 1}", f"lo{mark}{'ab'[i]}"[-15:], folder / f"n{i}"
            )
            for i in range(2)
        )

    def __enter__(self) -> TwoHosts:
        for host in self.hosts:
            host.job_dir.mkdir(mode=0o700)
            _ip("netns", "add", host.namespace)
        first, second = self.hosts
        _ip(
            "link",
            "add",
            first.link,
            "netns",
            first.namespace,
            "type",
            "veth",
            "peer",
            second.link,
            "netns",
            second.namespace,
        )
        for host in self.hosts:
            _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", host.link)
            for link in ("lo", host.link):
                _ip("-n", host.namespace, "link", "set", link, "up")
            shaped = ["tc", "qdisc", "add", "dev", host.link, "root", "tbf", *RATE]
            subprocess.run(["ip", "netns", "exec", host.namespace, *shaped], check=True)
        return self

    def __exit__(self, *exception: object) -> None:
        for host in self.hosts:
            pids = subprocess.run(
                ["ip", "netns", "pids", host.namespace], capture_output=True, text=True
            ).stdout.split()
            for pid in pids:
                subprocess.run(["kill", "-9", pid], capture_output=True)
            subprocess.run(["ip", "netns", "del", host.namespace], capture_output=True)

    def torchrun(self, script: list[str], folder: Path) -> list[subprocess.Popen[str]]:
        """One rank on each."""
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
        command += ["--master-addr", self.hosts[0].address, "--master-port", "29555"]
        return [
            host.start([*command, "--node-rank", str(host.number), *script], folder / f"torchrun{host.number}.err")
            for host in self.hosts
        ]

    def prometheus(self, folder: Path) -> None:
        """One for both, on the first host; it ends with the hosts."""
        targets = [f"{host.address}:{METRICS_PORT}" for host in self.hosts]
        scrape = {"job_name": "loopopt", "scrape_interval": "1s", "static_configs": [{"targets": targets}]}
        settings = folder / "prometheus.yml"
        settings.write_text(json.dumps({"scrape_configs": [scrape]}))
        command = ["prometheus", f"--config.file={settings}", f"--storage.tsdb.path={folder / 'tsdb'}"]
        command.append(f"--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}")
        self.hosts[0].start(command, folder / "prometheus.err")

    def asked(self, query: str, wanted: Callable[[dict[str, float]], bool], limit_s: float = 60.0) -> bool:
        """Whether Prometheus comes to a wanted answer: values by the job's name (empty without one)."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            page = self.hosts[0].fetched(PROMETHEUS_PORT, f"/api/v1/query?query={urllib.parse.quote(query)}")
            found = json.loads(page)["data"]["result"] if page else []
            if wanted({one["metric"].get("training_job", ""): float(one["value"][1]) for one in found}):
                return True
            time.sleep(0.5)
        return False

    def cut(self, is_cut: bool) -> None:
        """Pull the cable, or put it back."""
        _ip("-n", self.hosts[0].namespace, "link", "set", self.hosts[0].link, "down" if is_cut else "up")


def steps_of(log: Path) -> int:
    """Steps the job has logged."""
    return len([json.loads(line) for line in log.read_text().splitlines()]) if log.exists() else 0
