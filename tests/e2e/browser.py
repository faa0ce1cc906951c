"""A headless Chromium, driven over its DevTools protocol: what a page asks for, says and shows."""

import asyncio
import base64
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-default-apps", "--disable-extensions", "--hide-scrollbars", "--mute-audio"),
    *("--disable-dev-shm-usage", "--force-color-profile=srgb", "--remote-debugging-port=0"),
)
START_S, CALL_S = 30.0, 20.0


class Tab:
    """One page of the browser.

    Attributes:
        asked: the URL of everything that the page has asked for
        complaints: what the console shows as a warning or an error, and exceptions
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._number = socket, 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                self._waiting.pop(said["id"]).set_result(said)
            else:
                self._hear(said["method"], said["params"])

    def _hear(self, method: str, params: dict[str, Any]) -> None:
        match method:
            case "Network.requestWillBeSent":
                self.asked.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"])[:600])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(params["args"])[:600])
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.complaints.append(json.dumps(params["entry"])[:600])

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol; its result."""
        self._number += 1
        answer = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        said = await asyncio.wait_for(answer, CALL_S)
        assert "error" not in said, said
        return dict(said["result"])

    async def open(self, url: str) -> None:
        """Go to a page."""
        for domain in ("Page", "Network", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'", why="the page is loaded")

    async def value(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        said = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    async def until(self, expression: str, *, why: str, seconds: float = 20) -> None:
        """Wait until an expression is true."""
        until = asyncio.get_running_loop().time() + seconds
        while not await self.value(f"!!({expression})"):
            if asyncio.get_running_loop().time() > until:
                shown = await self.value("document.body.innerText")
                raise AssertionError(
                    f"not within {seconds} s: {why}; complaints:"
                    f" {self.complaints}; the page shows:\n{shown}"
                )
            await asyncio.sleep(0.05)

    async def type(self, text: str) -> None:
        """Type into what has the focus."""
        await self.call("Input.insertText", text=text)

    async def press(self, key: str, code: int) -> None:
        """Press a key."""
        text = {"Enter": "\r"}.get(key)
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **({"text": text} if text and kind == "keyDown" else {}),
            )

    async def look(self, *, width: int, height: int, dark: bool, phone: bool = False) -> None:
        """Show the page at a size and in a scheme of colours."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def screenshot(self, path: Path) -> None:
        """Save what is seen, as PNG."""
        said = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(said["data"]))

    async def close(self) -> None:
        await self._socket.close()
        self._reader.cancel()


@asynccontextmanager
async def tab(directory: Path) -> AsyncIterator[Tab]:
    """A page of a browser that begins and ends here, with a profile of its own."""
    assert CHROMIUM is not None, "chromium is not installed"
    with subprocess.Popen(
        [CHROMIUM, *FLAGS, f"--user-data-dir={directory}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as browser:
        try:
            port = await _port(directory / "DevToolsActivePort", browser)
            async with aiohttp.ClientSession() as http:
                async with http.put(f"http://127.0.0.1:{port}/json/new?about:blank") as answer:
                    address = (await answer.json())["webSocketDebuggerUrl"]
                async with http.ws_connect(address, max_msg_size=0) as socket:
                    found = Tab(socket)
                    yield found
                    await found.close()
        finally:
            browser.terminate()
            browser.wait(10)


async def _port(file: Path, browser: subprocess.Popen[bytes]) -> int:
    until = asyncio.get_running_loop().time() + START_S
    while not (file.exists() and len(lines := file.read_text().splitlines()) == 2):
        assert browser.poll() is None, "chromium has ended"
        assert asyncio.get_running_loop().time() < until, "chromium does not start"
        await asyncio.sleep(0.05)
    return int(lines[0])
