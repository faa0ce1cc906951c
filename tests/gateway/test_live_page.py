"""The files of the live page: their headers, and that they ask nobody else for anything."""

import re

import pytest

from baton.gateway.live_page import FOLDER, TYPES

from .fake_door import FakeDoor
from .rig import request

FILES = sorted(str(p.relative_to(FOLDER)) for p in FOLDER.rglob("*") if p.suffix in TYPES)


def get(path: str, **more):
    return request(FakeDoor(), "GET", path, **more)


def test_the_page_is_at_the_root():
    answer = get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert '<html lang="en">' in answer.text


def test_whoever_asks_for_the_head_alone_gets_it():
    answer = request(FakeDoor(), "HEAD", "/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize("file", FILES)
def test_every_file_has_its_type_and_is_sent_once(file):
    first = get(f"/page/{file}")
    assert first.status_code == 200
    assert first.headers["content-type"] == TYPES["." + file.rpartition(".")[2]]
    assert first.headers["cache-control"] == "no-cache"
    assert first.content == (FOLDER / file).read_bytes()
    again = get(f"/page/{file}", headers={"if-none-match": f'"other", W/{first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert get(f"/page/{file}", headers={"if-none-match": '"other"'}).status_code == 200


@pytest.mark.parametrize("path", ["/page/", "/page/nothing.js", "/page/uplot/LICENSE"])
def test_there_is_nothing_else(path):
    assert get(path).status_code == 404


@pytest.mark.parametrize("path", ["/page/%2e%2e/app.py", "/page/..%2fapp.py", "/page//etc/passwd"])
def test_no_path_leads_out_of_the_folder(path):
    assert get(path).status_code == 404


def test_nothing_refers_to_another_origin():
    for file in FILES:
        text = (FOLDER / file).read_text()
        found = set(re.findall(r"https?://[^\s\"')]+", text))
        # the name of a kind of document, and a comment at the head of the library
        assert found <= {"http://www.w3.org/2000/svg", "https://github.com/leeoniya/uPlot"}, file
        assert not re.findall(r"""(?:src|href)=["'](?://|/)""", text), "it may lie below a path"


def test_what_the_page_refers_to_is_there():
    page = (FOLDER / "index.html").read_text()
    linked = set(re.findall(r'(?:src|href)="([^"#]+)"', page))
    modules = {
        f"page/{name}"
        for file in FILES
        if file.endswith(".js") and "/" not in file
        for name in re.findall(r'from "\./([^"]+)"', (FOLDER / file).read_text())
    }
    assert {path.removeprefix("page/") for path in linked | modules} <= set(FILES)
    assert "page/app.js" in linked
    assert not re.findall(r"<script(?![^>]*src=)|\son\w+=|style=", page), "nothing is inline"


def test_the_library_has_its_licence_beside_it():
    assert "MIT License" in (FOLDER / "uplot" / "LICENSE").read_text()


@pytest.mark.parametrize("path", ["/", "/page/app.js"])
def test_it_needs_no_key_because_it_holds_no_data(path):
    assert get(path, client=("10.0.0.7", 5), settings={"api_keys": ("k",)}).status_code == 200


@pytest.mark.parametrize("path", ["/api/", "/", "/api/page/app.js", "/page/app.js"])
def test_a_root_path_that_a_proxy_strips_or_hands_on(path):
    assert get(path, settings={"root_path": "/api"}).status_code == 200


def test_the_root_path_without_its_slash_leads_to_the_page():
    answer = get("/api", settings={"root_path": "/api"})
    assert (answer.status_code, answer.headers["location"]) == (307, "http://gateway/api/")
