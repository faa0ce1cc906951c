"""Finds and downloads a wheel of a Python package
index (PEP 503, PEP 691), and checks its digest."""

import ssl
from collections.abc import Iterator, Sequence
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit
from urllib.request import url2pathname

import httpx
import msgspec

from baton.core.errors import ConfigError

JSON = "application/vnd.pypi.simple.v1+json"
ACCEPT = f"{JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
TIMEOUT_S = 30.0  # most time without a byte
STATES, DIRECTORY = "sha256=", "file:"
CHUNK = 1 << 20


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """The source of packages.

    Attributes:
        urls: URLs of simple indexes, asked in this order; `file:` for a directory with that layout
        certificates: file with CA certificates; None = the system's
        proxy: URL of a proxy; None = that of the environment
    """

    urls: tuple[str, ...]
    certificates: str | None = None
    proxy: str | None = None


class Wheel(msgspec.Struct, frozen=True):
    """A wheel by name and version; the first file that matches is taken."""

    project: str
    version: str

    @property
    def stem(self) -> str:
        """The beginning of its file name."""
        return f"{self.project.replace('-', '_')}-{self.version}-"


class Listed(msgspec.Struct, frozen=True):
    """A file of an index; `sha256` is empty if the index does not state it."""

    name: str
    url: str
    sha256: str


class _File(msgspec.Struct):
    filename: str
    url: str
    hashes: dict[str, str] = {}


class _Page(msgspec.Struct):
    files: list[_File]


class _Missed(Exception):
    """The index does not have the wheel."""


def fetch(wheel: Wheel, index: Index, into: Path) -> Path:
    """Download a wheel into a directory; returns the file.

    Raises:
        ConfigError: no index has the wheel, or the file does not match the index's digest
    """
    said = []
    try:
        verify = (
            ssl.create_default_context(cafile=index.certificates) if index.certificates else True
        )
    except OSError as error:
        raise ConfigError(
            f"the certificates {index.certificates} of pip's settings cannot be read: {error}"
        ) from error
    with httpx.Client(
        verify=verify, proxy=index.proxy, timeout=TIMEOUT_S, follow_redirects=True
    ) as client:
        for url in index.urls:
            try:
                return _download(client, _find(client, url, wheel), into)
            except (_Missed, httpx.HTTPError, httpx.InvalidURL) as error:
                said.append(f"{_without_password(url)}: {error or type(error).__name__}")
    raise ConfigError(
        f"{wheel.project} {wheel.version} cannot be fetched "
        f"({'; '.join(said) or 'pip is told to use no index'})"
    )


def _find(client: httpx.Client, url: str, wheel: Wheel) -> Listed:
    url = f"{url.rstrip('/')}/{wheel.project}/"
    for file in (
        _listed_by_directory(url) if url.startswith(DIRECTORY) else _listed_by_server(client, url)
    ):
        if file.name.startswith(wheel.stem) and file.name.endswith(".whl") and "/" not in file.name:
            return file
    raise _Missed(f"it has no wheel of version {wheel.version}")


def _listed_by_server(client: httpx.Client, url: str) -> Sequence[Listed]:
    answer = client.get(url, headers={"Accept": ACCEPT})
    if answer.status_code != 200:
        raise _Missed(f"it answers {answer.status_code}")
    return read_page(answer.text, answer.headers.get("Content-Type", ""), base=str(answer.url))


def _listed_by_directory(url: str) -> Sequence[Listed]:
    try:
        return read_page((_path(url) / "index.html").read_text(), "text/html", base=url)
    except (OSError, UnicodeDecodeError) as error:
        raise _Missed(str(error)) from error


def read_page(text: str, kind: str, *, base: str) -> Sequence[Listed]:
    """Return the files on a project's page, in HTML or JSON.

    Raises:
        _Missed: the page is neither
    """
    if not kind.startswith(JSON):
        anchors = _Anchors()
        anchors.feed(text)
        return [_listed(urljoin(base, target)) for target in anchors.targets]
    try:
        page = msgspec.json.decode(text, type=_Page)
    except msgspec.DecodeError as error:
        raise _Missed(f"its answer does not parse: {error}") from error
    return [
        Listed(f.filename, urljoin(base, f.url), f.hashes.get("sha256", "")) for f in page.files
    ]


def _listed(url: str) -> Listed:
    plain, fragment = urldefrag(url)
    name = unquote(urlsplit(plain).path).rpartition("/")[2]
    return Listed(name, plain, fragment.removeprefix(STATES) if fragment.startswith(STATES) else "")


def _download(client: httpx.Client, file: Listed, into: Path) -> Path:
    """Download a file. Raises ConfigError if its digest is wrong."""
    target, digest = into / file.name, sha256()
    with target.open("wb") as out:
        for chunk in (
            _from_directory(file) if file.url.startswith(DIRECTORY) else _from_server(client, file)
        ):
            digest.update(chunk)
            out.write(chunk)
    if file.sha256 and digest.hexdigest() != file.sha256.lower():
        raise ConfigError(
            f"{file.name} has sha256 {digest.hexdigest()}, and its index states "
            f"{file.sha256}: it is not used"
        )
    return target


def _from_server(client: httpx.Client, file: Listed) -> Iterator[bytes]:
    with client.stream("GET", file.url) as answer:
        if answer.status_code != 200:
            raise _Missed(f"it lists {file.name} and answers {answer.status_code} for it")
        yield from answer.iter_bytes(CHUNK)


def _from_directory(file: Listed) -> Iterator[bytes]:
    try:
        with _path(file.url).open("rb") as source:
            while chunk := source.read(CHUNK):
                yield chunk
    except OSError as error:
        raise _Missed(str(error)) from error


def _path(url: str) -> Path:
    return Path(url2pathname(urlsplit(url).path))


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


class _Anchors(HTMLParser):
    """Collects the targets of a page's links."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser."""
        self.targets += [value for name, value in attrs if tag == "a" and name == "href" and value]
