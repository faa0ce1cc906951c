"""Free ports, and the readiness probe against a tiny server."""

import http.server
import socket
import threading

import pytest

from baton.cli.ports import free_port as choose_port
from baton.cli.ports import readiness_of, url_of
from baton.core.errors import ConfigError
from baton.shell.gateway_settings import TlsSettings


def test_a_port_in_use_is_refused():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}.*in use.*--port"):
            choose_port("127.0.0.1", port)


def test_port_zero_takes_a_free_one():
    assert choose_port("127.0.0.1", choose_port("127.0.0.1", 0)) > 0


NO_TLS = TlsSettings()


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:9"),
        ("0.0.0.0", "http://127.0.0.1:9"),
        ("::", "http://[::1]:9"),
        ("box", "http://box:9"),
    ],
)
def test_urls(host, url):
    assert url_of(host, 9, tls=NO_TLS) == url


def test_urls_with_a_certificate():
    assert url_of("::", 9, tls=TlsSettings(ssl_certfile="x")) == "https://[::1]:9"


@pytest.fixture
def answering():
    """A server on loopback that answers /ready with what is set; gives (port, answer)."""
    answer = {"status": 200, "body": b""}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            assert self.path == "/ready"
            self.send_response(answer["status"])
            self.end_headers()
            self.wfile.write(answer["body"])

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_address[1], answer
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "waits_for"),
    [
        (200, b'{"ready": true, "why": "2 workers"}', None),
        (503, b'{"ready": false, "why": "no decode worker"}', "no decode worker"),
        (503, b"busy", "the gateway is not ready"),
        (500, b"[]", "the gateway is not ready"),
    ],
)
def test_the_probe_tells_what_is_missing(answering, status, body, waits_for):
    port, answer = answering
    answer.update(status=status, body=body)
    assert readiness_of("0.0.0.0", port, tls=NO_TLS)() == waits_for


def test_the_probe_of_nobody(free_port):
    assert readiness_of("127.0.0.1", free_port, tls=NO_TLS)() == "the gateway is loading"


def test_the_probe_of_something_else():
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        assert (
            readiness_of("127.0.0.1", mute.getsockname()[1], tls=NO_TLS)()
            == "the gateway does not answer yet"
        )
