"""The metrics endpoint: a small HTTP server in threads of its own.

/metrics   Prometheus text, or OpenMetrics if the scraper asks for it
/healthz   200 while the process serves
/readyz    200 if the daemon can work, else 503 and why
/          links to these

With a web config, TLS and passwords as in `loopopt.export.webconfig`; the two health paths need no password,
because those who ask (service managers, kubelets) cannot give one.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from loopopt.errors import LoopoptError, UsageError
from loopopt.export.collector import SnapshotCollector
from loopopt.export.snapshot import Snapshot
from loopopt.export.webconfig import Certificates, Passwords, WebConfig

_LOG: Final = logging.getLogger(__name__)
_TEXT: Final = "text/plain; charset=utf-8"
_OPEN: Final = ("/healthz", "/readyz")
_ASK: Final = {"WWW-Authenticate": 'Basic realm="loopopt", charset="UTF-8"'}
_LANDING: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>loopopt</title></head>
<body><h1>loopopt</h1><ul>
<li><a href="metrics">metrics</a></li>
<li><a href="healthz">healthz</a></li>
<li><a href="readyz">readyz</a></li>
</ul></body></html>
"""


class MetricsServer:
    """A running endpoint; made by `start_server`.

    Attributes:
        host: address it listens on.
        port: port it listens on (the chosen one if 0 was asked for).
        scheme: "http", or "https" with a certificate.
    """

    def __init__(self, server: _Server) -> None:
        self._server = server
        self.scheme = "http" if server.certificates is None else "https"
        self.host = str(server.server_address[0])
        self.port = int(server.server_address[1])
        self._thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="loopopt-metrics", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Base address, for messages."""
        return f"{self.scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def close(self) -> None:
        """Stop serving and free the port; closing twice is nothing."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def start_server(
    snapshot: Callable[[], Snapshot], host: str = "127.0.0.1", port: int = 0, web: WebConfig | None = None
) -> MetricsServer:
    """Serve a job's metrics.

    Args:
        snapshot: called once per scrape, in a thread of the server.
        host: address to listen on; others than loopback can be reached by anybody who reaches the node.
        port: 0 lets the system choose.
        web: TLS, passwords and headers; none of them by default.

    Raises:
        UsageError: the address cannot be listened on, or the certificate cannot be used.
    """
    try:
        return MetricsServer(_Server(snapshot, host, port, web or WebConfig()))
    except (OSError, OverflowError) as err:
        reason = getattr(err, "strerror", None) or str(err)
        raise UsageError(f"metrics address {host}:{port}: {reason}; choose another host or port") from err


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a scraper that keeps its connection open must not keep the daemon from ending

    def __init__(self, snapshot: Callable[[], Snapshot], host: str, port: int, web: WebConfig) -> None:
        self.snapshot = snapshot
        self.headers = web.headers
        self.passwords = Passwords(web.users)
        self.certificates = Certificates(web) if web.cert_file is not None else None
        self.registry = CollectorRegistry()
        self.registry.register(SnapshotCollector(snapshot))
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind without the base class's reverse look-up of the host name, which can take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept; the TLS handshake is left to the connection's own thread, so that a slow peer holds up nobody."""
        connection, address = super().get_request()
        if self.certificates is None:
            return connection, address
        try:
            self.certificates.reload()
        except OSError as err:
            _LOG.warning("the renewed certificate cannot be used, the former one stays: %s", err)
        context = self.certificates.context
        return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that broke is the peer's affair."""
        _LOG.debug("metrics request from %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 30  # an idle or stuck peer does not hold a thread for ever
    server_version = "loopopt"
    sys_version = ""
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        """Prepare the connection, TLS first."""
        if isinstance(self.request, ssl.SSLSocket):
            self.request.settimeout(self.timeout)
            self.request.do_handshake()
        super().setup()

    def do_GET(self) -> None:
        """Answer one request."""
        parts = urlsplit(self.path)
        if parts.path not in _OPEN and not self.server.passwords.let_in(self.headers.get("Authorization", "")):
            self._answer(HTTPStatus.UNAUTHORIZED, _TEXT, b"user and password are needed\n", _ASK)
            return
        routes: dict[str, Callable[[str], tuple[HTTPStatus, str, bytes]]] = {
            "/": lambda _: (HTTPStatus.OK, "text/html; charset=utf-8", _LANDING.encode()),
            "/metrics": self._metrics,
            "/healthz": lambda _: (HTTPStatus.OK, _TEXT, b"ok\n"),
            "/readyz": self._ready,
        }
        route = routes.get(parts.path)
        if route is None:
            self._answer(HTTPStatus.NOT_FOUND, _TEXT, b"not found; try /metrics\n")
            return
        try:
            status, kind, body = route(parts.query)
        except LoopoptError as err:
            _LOG.warning("%s could not be served: %s", parts.path, err)
            status, kind, body = HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"{err}\n".encode()
        except Exception as err:  # noqa: BLE001 - door: a scrape that fails must not end the server or go unseen
            _LOG.warning("%s could not be served", parts.path, exc_info=True)
            status, kind, body = HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, f"internal error: {err!r}\n".encode()
        self._answer(status, kind, body)

    def do_HEAD(self) -> None:
        """Answer one request without its body."""
        self.do_GET()

    def _metrics(self, query: str) -> tuple[HTTPStatus, str, bytes]:
        encode, kind = choose_encoder(self.headers.get("Accept", ""))
        names = parse_qs(query).get("name[]")
        registry = self.server.registry
        return HTTPStatus.OK, kind, encode(registry.restricted_registry(names) if names else registry)

    def _ready(self, query: str) -> tuple[HTTPStatus, str, bytes]:
        reason = self.server.snapshot().not_ready
        if reason:
            return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"{reason}\n".encode()
        return HTTPStatus.OK, _TEXT, b"ready\n"

    def _answer(self, status: HTTPStatus, kind: str, body: bytes, more: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**self.server.headers, **(more or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes come every few seconds: only at debug level."""
        _LOG.debug("metrics: " + format, *args)
