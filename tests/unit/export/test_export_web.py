"""TLS, passwords and headers by the web-config file, over real sockets; the file's own mistakes are named."""

from __future__ import annotations

import base64
import http.client
import os
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from exported_job import JOB

from loopopt.errors import UsageError
from loopopt.export import MetricsServer, read_web_config, start_server

bcrypt = pytest.importorskip("bcrypt")
pytest.importorskip("yaml")


def hashed(password: str) -> str:
    """A cheap bcrypt hash."""
    return str(bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode())


def certificate(folder: Path, name: str = "server") -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not on PATH")
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


def written(folder: Path, text: str) -> Path:
    """A web-config file."""
    path = folder / "web.yml"
    path.write_text(text)
    return path


def get(server: MetricsServer, path: str, login: str = "", context: ssl.SSLContext | None = None) -> tuple[int, str]:
    """Status and body."""
    if context is None:
        connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
    else:
        connection = http.client.HTTPSConnection(server.host, server.port, timeout=30, context=context)
    headers = {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()} if login else {}
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_password_is_asked_for(tmp_path: Path) -> None:
    """Only the right user with the right password gets the page; the health paths are open to the kubelet."""
    web = read_web_config(written(tmp_path, f"basic_auth_users: {{scraper: '{hashed('open sesame')}'}}"))
    with start_server(lambda: JOB, web=web) as server:
        assert server.url.startswith("http://")
        for login in ("", "scraper:wrong", "nobody:open sesame", "scraper", ":"):
            assert get(server, "/metrics", login)[0] == 401
        for _ in range(2):
            assert get(server, "/metrics", "scraper:open sesame")[0] == 200
        assert get(server, "/", "scraper:open sesame")[0] == 200
        assert get(server, "/")[0] == get(server, "/nothing")[0] == 401
        assert get(server, "/healthz")[0] == get(server, "/readyz")[0] == 200


@pytest.mark.parametrize("header", ["Bearer x", "Basic", "Basic !!!", "Basic //79", "Basic OjpA"])
def test_a_malformed_login_is_refused(tmp_path: Path, header: str) -> None:
    """It is answered as a wrong one."""
    web = read_web_config(written(tmp_path, f"basic_auth_users: {{scraper: '{hashed('x')}'}}"))
    with start_server(lambda: JOB, web=web) as server:
        connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
        connection.request("GET", "/metrics", headers={"Authorization": header})
        answer = connection.getresponse()
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"].startswith("Basic ")
        connection.close()


def test_tls_and_a_renewed_certificate(tmp_path: Path) -> None:
    """Pages come over TLS, with the headers asked for; plain HTTP gets nothing; a new certificate needs no restart."""
    cert, key = certificate(tmp_path)
    text = "tls_server_config: {cert_file: server.crt, key_file: server.key, min_version: TLS13}\n"
    text += "http_server_config: {headers: {Strict-Transport-Security: max-age=60}}\n"
    with start_server(lambda: JOB, web=read_web_config(written(tmp_path, text))) as server:
        assert server.url.startswith("https://")
        context = ssl.create_default_context(cafile=str(cert))
        assert get(server, "/metrics", context=context)[0] == 200
        with pytest.raises((http.client.HTTPException, OSError)):
            get(server, "/metrics")
        new_cert, new_key = certificate(tmp_path, "renewed")
        os.replace(new_key, key)
        os.replace(new_cert, cert)
        with pytest.raises(ssl.SSLCertVerificationError):
            get(server, "/metrics", context=context)
        assert get(server, "/metrics", context=ssl.create_default_context(cafile=str(cert)))[0] == 200


def test_clients_may_need_a_certificate(tmp_path: Path) -> None:
    """With a client CA only clients with a certificate are answered."""
    cert, _ = certificate(tmp_path)
    client, client_key = certificate(tmp_path, "client")
    text = "tls_server_config: {cert_file: server.crt, key_file: server.key, client_ca_file: client.crt}"
    with start_server(lambda: JOB, web=read_web_config(written(tmp_path, text))) as server:
        context = ssl.create_default_context(cafile=str(cert))
        with pytest.raises((http.client.HTTPException, OSError)):
            get(server, "/metrics", context=context)
        context.load_cert_chain(client, client_key)
        assert get(server, "/metrics", context=context)[0] == 200


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("basic_auth: {}", "unknown entry 'basic_auth'"),
        ("tls_server_config: {cert: x}", "unknown entry 'cert'"),
        ("tls_server_config: {cert_file: x}", "both cert_file and key_file"),
        ("tls_server_config: {cert_file: x, key_file: y, min_version: TLS10}", "min_version"),
        ("tls_server_config: {cert_file: x, key_file: y, client_auth_type: Maybe}", "client_auth_type"),
        (
            "tls_server_config: {cert_file: x, key_file: y, client_auth_type: RequireAndVerifyClientCert}",
            "client_ca_file",
        ),
        ("basic_auth_users: {me: secret}", "'me' must be a bcrypt hash"),
        ("basic_auth_users: [me]", "must be a mapping"),
        ('http_server_config: {headers: {X: "a\\r\\nB: c"}}', "more than one line"),
        ("a: [", "not YAML"),
        ("just words", "must be a mapping"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, text: str, named: str) -> None:
    """A protection that is asked for in a wrong way is an error, never left out."""
    with pytest.raises(UsageError, match=named) as caught:
        read_web_config(written(tmp_path, text))
    assert "web.yml" in str(caught.value)


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    """Neither the web config nor the certificate may be missing."""
    with pytest.raises(UsageError, match=r"none\.yml"):
        read_web_config(tmp_path / "none.yml")
    web = read_web_config(written(tmp_path, "tls_server_config: {cert_file: gone.crt, key_file: gone.key}"))
    with pytest.raises(UsageError, match=r"gone\.crt"):
        start_server(lambda: JOB, web=web)
