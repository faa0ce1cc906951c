"""HTTPS: the TLS context of the server, from the operator's files."""

import ssl

from baton.core.errors import ConfigError
from baton.shell.gateway_settings import TlsSettings


def server_context(settings: TlsSettings) -> ssl.SSLContext | None:
    """Read the files; returns None without a certificate: plain HTTP.

    Raises:
        ConfigError: a file cannot be used, or one that is needed is missing
    """
    certificate, key, authorities = (
        settings.ssl_certfile,
        settings.ssl_keyfile,
        settings.ssl_ca_certs,
    )
    if certificate is None:
        for flag, given in (
            ("--ssl-keyfile", key),
            ("--ssl-ca-certs", authorities),
            ("--ssl-cert-reqs", settings.ssl_cert_reqs),
        ):
            if given:
                raise ConfigError(
                    f"{flag} {given} needs a certificate; give --ssl-certfile too, or neither"
                )
        return None
    if settings.ssl_cert_reqs != ssl.CERT_NONE and authorities is None:
        raise ConfigError(
            f"--ssl-cert-reqs {settings.ssl_cert_reqs} checks certificates of clients; name the "
            "authorities that sign them with --ssl-ca-certs"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_pair(context, certificate, key)
    if authorities is not None:
        _load_authorities(context, authorities)
    context.verify_mode = ssl.VerifyMode(settings.ssl_cert_reqs)
    return context


def _load_pair(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    for flag, file in (("--ssl-certfile", certificate), ("--ssl-keyfile", key)):
        if file is not None:
            _require_readable(flag, file)
    try:
        # OpenSSL would ask for the password of an encrypted key on the terminal
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        named = f"--ssl-certfile {certificate}" + ("" if key is None else f", --ssl-keyfile {key}")
        raise ConfigError(
            f"{named}: not a certificate and its key: {error}; both must be in PEM format, the key "
            "without a password" + (", or give it with --ssl-keyfile" if key is None else "")
        ) from error


def _load_authorities(context: ssl.SSLContext, file: str) -> None:
    _require_readable("--ssl-ca-certs", file)
    try:
        context.load_verify_locations(file)
    except ssl.SSLError as error:
        raise ConfigError(
            f"--ssl-ca-certs {file}: not a list of certificates: {error}; it must be in PEM format"
        ) from error


def _require_readable(flag: str, file: str) -> None:
    try:
        with open(file, "rb"):
            pass
    except OSError as error:
        raise ConfigError(
            f"{flag} {file}: cannot be read: {error.strerror}; name a file in PEM format that this "
            "user can read"
        ) from error
