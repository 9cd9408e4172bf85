"""The endpoint, over real sockets."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from exported_job import JOB

from loopopt.errors import StoreError, UsageError
from loopopt.export import MetricsServer, Snapshot, start_server

GOLDEN = Path(__file__).with_name("metrics.golden.txt")


def get(server: MetricsServer, path: str, method: str = "GET", accept: str = "") -> tuple[int, str | None, str]:
    """Status, content type and body."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
    try:
        connection.request(method, path, headers={"Accept": accept} if accept else {})
        response = connection.getresponse()
        return response.status, response.headers["Content-Type"], response.read().decode()
    finally:
        connection.close()


def test_metrics_are_served_on_loopback() -> None:
    """By default the page is served on 127.0.0.1 only, in Prometheus' text format, fresh at every scrape."""
    jobs = [JOB, replace(JOB, version="9.9.9")]
    with start_server(lambda: jobs.pop(0)) as server:
        assert server.host == "127.0.0.1"
        assert server.url == f"http://127.0.0.1:{server.port}"
        status, kind, body = get(server, "/metrics")
        assert (status, body) == (200, GOLDEN.read_text())
        assert kind is not None
        assert kind.startswith("text/plain; version=0.0.4")
        assert 'version="9.9.9"' in get(server, "/metrics")[2]


def test_openmetrics_on_request() -> None:
    """A scraper that asks for OpenMetrics gets it."""
    with start_server(lambda: JOB) as server:
        status, kind, body = get(server, "/metrics", accept="application/openmetrics-text;version=1.0.0,*/*;q=0.1")
    assert status == 200
    assert kind is not None
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith("# EOF\n")
    assert "# UNIT loopopt_sampled_seconds seconds\n" in body


def test_a_scrape_may_ask_for_some_metrics() -> None:
    """`name[]` narrows the page."""
    with start_server(lambda: JOB) as server:
        body = get(server, "/metrics?name[]=loopopt_rollbacks_total")[2]
    assert [line for line in body.splitlines() if not line.startswith("#")] == ["loopopt_rollbacks_total 1.0"]


def test_other_paths() -> None:
    """Health, landing page, HEAD, and a path that is not there."""
    with start_server(lambda: JOB) as server:
        assert get(server, "/healthz") == (200, "text/plain; charset=utf-8", "ok\n")
        assert get(server, "/readyz") == (200, "text/plain; charset=utf-8", "ready\n")
        status, kind, body = get(server, "/")
        assert (status, kind) == (200, "text/html; charset=utf-8")
        assert '<a href="metrics">' in body
        assert get(server, "/metrics", method="HEAD")[::2] == (200, "")
        assert get(server, "/nothing")[0] == 404
        assert get(server, "/metrics", method="POST")[0] == 501


def test_not_ready_says_why() -> None:
    """While the daemon cannot work, /readyz is 503 with the reason and /healthz stays 200."""
    with start_server(lambda: replace(JOB, not_ready="no rank has registered")) as server:
        assert get(server, "/readyz")[::2] == (503, "no rank has registered\n")
        assert get(server, "/healthz")[0] == 200


def _store_fails() -> Snapshot:
    raise StoreError("/job/state.sqlite: disk I/O error")


def _breaks() -> Snapshot:
    raise ZeroDivisionError("division by zero")


@pytest.mark.parametrize(
    ("snapshot", "status", "text"),
    [(_store_fails, 503, "state.sqlite: disk I/O error"), (_breaks, 500, "ZeroDivisionError")],
)
def test_a_failing_snapshot_fails_the_scrape_alone(snapshot: Callable[[], Snapshot], status: int, text: str) -> None:
    """A scrape that cannot be answered is an error to the scraper, and the server goes on."""
    with start_server(snapshot) as server:
        for path in ("/metrics", "/readyz", "/metrics"):
            actual, _, body = get(server, path)
            assert actual == status
            assert text in body
        assert get(server, "/healthz")[0] == 200


def test_a_taken_port_is_a_usage_error() -> None:
    """An address that cannot be had is an error that names it."""
    with start_server(lambda: JOB) as server:
        with pytest.raises(UsageError, match=rf"127\.0\.0\.1:{server.port}: .*choose another"):
            start_server(lambda: JOB, port=server.port)
        with pytest.raises(UsageError, match="70000"):
            start_server(lambda: JOB, port=70000)


def test_closing_frees_the_port_whoever_is_connected() -> None:
    """A scraper that keeps its connection open keeps neither the daemon nor the port."""
    server = start_server(lambda: JOB)
    idle = socket.create_connection((server.host, server.port), timeout=30)
    connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
    connection.request("GET", "/healthz")
    assert connection.getresponse().read() == b"ok\n"
    server.close()
    with start_server(lambda: JOB, port=server.port) as again:
        assert again.port == server.port
    idle.close()
    connection.close()


def test_scrapes_at_once_all_get_the_page() -> None:
    """Several scrapers do not disturb each other."""
    bodies: list[str] = []
    with start_server(lambda: JOB) as server:
        threads = [threading.Thread(target=lambda: bodies.append(get(server, "/metrics")[2])) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert bodies == [GOLDEN.read_text()] * 8


def test_ipv6_loopback() -> None:
    """An IPv6 address works where the machine has one."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 loopback on this machine")
    with start_server(lambda: JOB, host="::1") as server:
        assert server.url == f"http://[::1]:{server.port}"
        assert get(server, "/healthz")[0] == 200
