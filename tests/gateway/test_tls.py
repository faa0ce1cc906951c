"""HTTPS: answers and streams over it, certificates of clients, and files that cannot be used."""

import asyncio
import ssl
import subprocess

import httpx
import pytest
import uvloop

from baton.cli.ports import readiness_of
from baton.core.errors import ConfigError
from baton.core.messages import FinishReason
from baton.gateway.outlet import ChunkOutlet
from baton.gateway.tls import server_context
from baton.shell.gateway_settings import TlsSettings

from .certificates import make_certificate, tls_settings
from .fake_door import FakeDoor
from .models import ids
from .rig import served


def trusting(certificate: str, own: tuple[str, str] | None = None) -> ssl.SSLContext:
    """What a client has that trusts this certificate; own: the client's, with its key."""
    context = ssl.create_default_context(cafile=certificate)
    if own is not None:
        context.load_cert_chain(*own)
    return context


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_stream_over_tls_is_written_past_the_coroutine_and_comes_whole(
    tmp_path, monkeypatch, loop
):
    settings, direct = tls_settings(tmp_path), []
    write = ChunkOutlet.write

    def counted(self, data):
        taken = write(self, data)
        direct.append(taken)
        return taken

    monkeypatch.setattr(ChunkOutlet, "write", counted)

    async def scenario():
        door = FakeDoor()
        door.script = [ids("a")]
        async with (
            served(door, tls=server_context(settings)) as (url, *_),
            httpx.AsyncClient(base_url=url, verify=trusting(settings.ssl_certfile)) as http,
        ):
            body = {"prompt": "zz", "stream": True}
            async with http.stream("POST", "/v1/completions", json=body) as answer:
                lines = answer.aiter_lines()
                text = await anext(lines)
                for _ in range(200):
                    door.say(door.submitted[0].request, ids("b"))
                    await asyncio.sleep(0)
                door.finish(door.submitted[0].request, FinishReason.STOP)
                text += "".join([line async for line in lines])
            assert url.startswith("https://")
            return text

    with asyncio.Runner(loop_factory=loop) as runner:
        text = runner.run(asyncio.wait_for(scenario(), 30))
    assert text.count('"text":"a"') == 1
    assert text.count('"text":"b"') == 200
    assert text.endswith("data: [DONE]")
    assert direct.count(True) > 100, "the direct way is the common one over TLS too"


def test_clients_without_a_certificate_are_refused_if_it_is_required(tmp_path):
    certificate, key = make_certificate(tmp_path, "client")
    settings = tls_settings(tmp_path, ssl_ca_certs=certificate, ssl_cert_reqs=2)

    async def ask(url, own):
        verify = trusting(settings.ssl_certfile, own)
        async with httpx.AsyncClient(base_url=url, verify=verify) as http:
            return (await http.get("/health")).status_code

    async def scenario():
        async with served(FakeDoor(), tls=server_context(settings)) as (url, *_):
            assert await ask(url, (certificate, key)) == 200
            with pytest.raises(httpx.TransportError):
                await ask(url, None)

    asyncio.run(asyncio.wait_for(scenario(), 30))


@pytest.mark.parametrize("required", [False, True])
def test_the_supervisor_sees_that_a_service_with_tls_is_ready(tmp_path, required):
    stranger, _ = make_certificate(tmp_path, "client")
    settings = tls_settings(
        tmp_path, **({"ssl_ca_certs": stranger, "ssl_cert_reqs": 2} if required else {})
    )

    async def scenario():
        async with served(FakeDoor(), tls=server_context(settings)) as (url, *_):
            port = int(url.rpartition(":")[2])
            probe = readiness_of("127.0.0.1", port, tls=settings)
            for _ in range(20):  # a busy machine may take longer for a handshake than it has
                if (why := await asyncio.to_thread(probe)) is None:
                    return
            raise AssertionError(why)

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_without_a_certificate_it_is_plain_http():
    assert server_context(TlsSettings()) is None


def test_files_that_cannot_be_used_are_named(tmp_path):
    certificate, key = make_certificate(tmp_path)
    _, other = make_certificate(tmp_path, "other")
    missing, text, locked = (str(tmp_path / n) for n in ("none", "text", "locked"))
    (tmp_path / "text").write_text("not PEM")
    encrypt = ["openssl", "ec", "-in", key, "-out", locked, "-aes128", "-passout", "pass:x"]
    subprocess.run(encrypt, check=True, capture_output=True)
    pair = {"ssl_certfile": certificate, "ssl_keyfile": key}
    rows = [
        ({"ssl_keyfile": key}, ["--ssl-keyfile", key, "--ssl-certfile"]),
        ({"ssl_ca_certs": certificate}, ["--ssl-ca-certs", certificate, "--ssl-certfile"]),
        ({"ssl_cert_reqs": 1}, ["--ssl-cert-reqs 1", "--ssl-certfile"]),
        (pair | {"ssl_cert_reqs": 2}, ["--ssl-cert-reqs 2", "--ssl-ca-certs"]),
        (pair | {"ssl_certfile": missing}, ["--ssl-certfile", missing, "No such file"]),
        (pair | {"ssl_keyfile": missing}, ["--ssl-keyfile", missing, "No such file"]),
        (pair | {"ssl_keyfile": str(tmp_path)}, ["--ssl-keyfile", "directory"]),
        (pair | {"ssl_certfile": text}, ["--ssl-certfile", text, "PEM"]),
        (pair | {"ssl_keyfile": other}, [certificate, other]),
        (pair | {"ssl_keyfile": locked}, [locked, "without a password"]),
        ({"ssl_certfile": certificate}, [certificate, "give it with --ssl-keyfile"]),
        (pair | {"ssl_ca_certs": missing}, ["--ssl-ca-certs", missing]),
        (pair | {"ssl_ca_certs": text}, ["--ssl-ca-certs", text, "PEM"]),
    ]
    for fields, words in rows:
        with pytest.raises(ConfigError) as raised:
            server_context(TlsSettings(**fields))
        assert [w for w in words if w not in str(raised.value)] == [], str(raised.value)


@pytest.mark.parametrize("level", [-1, 3])
def test_levels_beyond_those_that_there_are(level):
    with pytest.raises(ConfigError, match="--ssl-cert-reqs"):
        TlsSettings(ssl_cert_reqs=level)
