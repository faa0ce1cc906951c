"""Self-signed certificates, made on the spot by the openssl command."""

import shutil
import subprocess
from pathlib import Path

import pytest

from baton.shell.gateway_settings import TlsSettings


def make_certificate(directory: Path, name: str = "server") -> tuple[str, str]:
    """A certificate for 127.0.0.1, which signs itself, and its key: two files."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command")
    certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    names = ("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
    files = ("-keyout", str(key), "-out", str(certificate))
    subprocess.run(
        ["openssl", "req", "-x509", "-days", "1", *curve, *names, *files],
        check=True,
        capture_output=True,
    )
    return str(certificate), str(key)


def tls_settings(directory: Path, **others: object) -> TlsSettings:
    certificate, key = make_certificate(directory)
    return TlsSettings(ssl_certfile=certificate, ssl_keyfile=key, **others)
