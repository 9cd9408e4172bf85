"""TLS and passwords of the metrics endpoint, by the web-config file that Prometheus' own exporters read.

    tls_server_config:
      cert_file: server.crt              # paths are relative to this file
      key_file: server.key
      client_ca_file: clients.crt        # with it, client certificates are checked
      client_auth_type: RequireAndVerifyClientCert
      min_version: TLS13
    basic_auth_users:
      prometheus: $2y$10$...             # bcrypt, for example from `htpasswd -nBC 10 ""`
    http_server_config:
      headers:
        Strict-Transport-Security: max-age=31536000

An entry that is not understood is an error: a protection that was asked for is never left out in silence.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from loopopt.errors import UsageError

_VERSIONS: Final = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH: Final = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_NOBODY: Final = "$2b$10$Ui1VGCPCp8cv7ChXpEOaV.yZNcX/CtjpaE0F1NSv0.KEJMYqJUzAq"
"""Checked for an unknown user, so that the answer takes as long as for a known one."""
_REMEMBERED: Final = 64


@dataclass(frozen=True, slots=True)
class WebConfig:
    """One web-config file, checked.

    Attributes:
        cert_file, key_file: the server's certificate and key; None serves plain HTTP.
        client_ca_file: certificates that clients' ones are checked against.
        client_auth: whether clients must have one.
        min_version: lowest TLS version.
        users: bcrypt hashes by user; empty lets everybody in.
        headers: sent with every answer.
    """

    cert_file: Path | None = None
    key_file: Path | None = None
    client_ca_file: Path | None = None
    client_auth: ssl.VerifyMode = ssl.CERT_NONE
    min_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    users: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


def read_web_config(path: Path) -> WebConfig:
    """Read and check a web-config file.

    Raises:
        UsageError: it cannot be read, an entry is unknown or wrong, or the extra `web` is not installed.
    """
    try:
        import bcrypt  # noqa: F401  (said now, not at the first scrape)
        import yaml
    except ImportError as err:
        raise UsageError(f"web_config={path}: needs the packages of loopopt[web] ({err.name} is missing)") from err
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as err:
        raise UsageError(f"web_config={path}: {err.strerror}") from err
    except (yaml.YAMLError, UnicodeDecodeError) as err:
        raise UsageError(f"web_config={path}: not YAML: {' '.join(str(err).split())}") from err
    return _checked(path, _section(path, "the file", content, _TOP))


_TOP: Final = ("tls_server_config", "basic_auth_users", "http_server_config")
_TLS: Final = ("cert_file", "key_file", "client_ca_file", "client_auth_type", "min_version")


def _checked(path: Path, top: Mapping[str, Any]) -> WebConfig:
    tls = _section(path, "tls_server_config", top.get("tls_server_config"), _TLS)
    users = _section(path, "basic_auth_users", top.get("basic_auth_users"), None)
    http = _section(path, "http_server_config", top.get("http_server_config"), ("headers",))
    headers = _section(path, "headers", http.get("headers"), None)
    for user, hashed in users.items():
        if not str(hashed).startswith(("$2a$", "$2b$", "$2y$")) or len(str(hashed)) != 60:
            raise UsageError(f"web_config={path}: the password of {user!r} must be a bcrypt hash")
    for name, value in headers.items():
        if any(c in f"{name}{value}" for c in "\r\n"):
            raise UsageError(f"web_config={path}: header {name!r} has more than one line")
    files = {key: path.parent / str(tls[key]) for key in ("cert_file", "key_file", "client_ca_file") if tls.get(key)}
    if tls and not ("cert_file" in files and "key_file" in files):
        raise UsageError(f"web_config={path}: tls_server_config needs both cert_file and key_file")
    default = "RequireAndVerifyClientCert" if "client_ca_file" in files else "NoClientCert"
    auth = str(tls.get("client_auth_type") or default)
    version = str(tls.get("min_version") or "TLS12")
    if auth not in _CLIENT_AUTH:
        raise UsageError(f"web_config={path}: client_auth_type must be one of {', '.join(_CLIENT_AUTH)}")
    if _CLIENT_AUTH[auth] is not ssl.CERT_NONE and "client_ca_file" not in files:
        raise UsageError(f"web_config={path}: client_auth_type {auth} needs client_ca_file")
    if version not in _VERSIONS:
        raise UsageError(f"web_config={path}: min_version must be one of {', '.join(_VERSIONS)}")
    return WebConfig(
        cert_file=files.get("cert_file"),
        key_file=files.get("key_file"),
        client_ca_file=files.get("client_ca_file"),
        client_auth=_CLIENT_AUTH[auth],
        min_version=_VERSIONS[version],
        users={str(user): str(hashed) for user, hashed in users.items()},
        headers={str(name): str(value) for name, value in headers.items()},
    )


def _section(path: Path, name: str, value: Any, known: tuple[str, ...] | None) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError(f"web_config={path}: {name} must be a mapping")
    unknown = [str(key) for key in value if known is not None and key not in known]
    if unknown:
        raise UsageError(f"web_config={path}: {name} has the unknown entry {unknown[0]!r}")
    return value


class Certificates:
    """The TLS context of a web config; a certificate renewed on disk is used from the next connection on.

    Raises:
        UsageError: the files cannot be used.
    """

    def __init__(self, config: WebConfig) -> None:
        self._config = config
        self._read: tuple[int, ...] = ()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = config.min_version
        try:
            self.reload()
            if config.client_ca_file is not None:
                self.context.load_verify_locations(config.client_ca_file)
        except OSError as err:  # ssl.SSLError is one
            name = getattr(err, "filename", None) or config.cert_file
            raise UsageError(f"web_config: certificate {name}: {err.strerror or err}") from err
        self.context.verify_mode = config.client_auth

    def reload(self) -> None:
        """Read certificate and key if they have changed.

        Raises:
            OSError: they cannot be used; the former ones stay in use.
        """
        assert self._config.cert_file is not None
        assert self._config.key_file is not None
        stamps = tuple(os.stat(path).st_mtime_ns for path in (self._config.cert_file, self._config.key_file))
        if stamps != self._read:
            self.context.load_cert_chain(self._config.cert_file, self._config.key_file)
            self._read = stamps


class Passwords:
    """Checks `Authorization` headers. A bcrypt check is slow on purpose, so one that passed is remembered."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self._passed: dict[bytes, None] = {}

    def let_in(self, header: str) -> bool:
        """Whether the header names a user and that user's password; with no users at all, always."""
        if not self._users:
            return True
        scheme, _, encoded = header.partition(" ")
        if scheme.lower() != "basic":
            return False
        try:
            user, _, password = base64.b64decode(encoded, validate=True).decode("utf-8").partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return False
        hashed = self._users.get(user)
        token = hashlib.sha256(f"{user}\0{hashed}\0{password}".encode()).digest()
        if token in self._passed:
            return True
        import bcrypt

        try:
            right = bcrypt.checkpw(password.encode()[:72], (hashed or _NOBODY).encode()) and hashed is not None
        except ValueError:  # a hash that only looked like one
            return False
        if right and len(self._passed) < _REMEMBERED:
            self._passed[token] = None
        return right
