"""The dashboard's HTTP server: its page, /status.json and /metrics, on the loopback address.

What: `Server(snapshot, port)`: serves `address` from a thread of its own until `close`.
Why: a run on a cluster's node is monitored by a browser or `swjoin top`, also where the internet cannot be reached: the page
loads nothing from elsewhere. The server is read-only, and only this machine can connect to it.
Stays out: the content (`monitor.status_board`), the page's layout (`page.html`), metrics' names (`monitor.prometheus`).

Only requests for the hosts 127.0.0.1 and localhost are answered: a foreign site could let its name resolve to 127.0.0.1. The
page's content security policy admits its own script and style, by their hashes, and connections to this server only.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any

from swjoin.core.errors import UserError, how_to_install

HOST = "127.0.0.1"
_START_S, _STOP_S = 10.0, 2.0
_WATCHED_S = 2.0  # a client whose last request is younger is still polling
_LAST_POLL_S = 1.2  # and gets this long to fetch the last snapshot
Snapshot = Callable[[float, int, "str | None"], dict[str, Any]]


def page() -> tuple[bytes, dict[str, str]]:
    """The page and its headers."""
    text = resources.files("swjoin.monitor").joinpath("page.html").read_text()

    def hashed(tag: str) -> str:
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        return "'sha256-" + base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode() + "'"

    policy = (
        f"default-src 'none'; script-src {hashed('script')}; style-src {hashed('style')}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text.encode(), {"content-security-policy": policy}


def application(snapshot: Snapshot, on_snapshot: Callable[[], None]) -> Any:
    """The ASGI application. on_snapshot: called after every answered /status.json."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from swjoin.monitor.prometheus import exposition

    body, page_headers = page()
    common = {"cache-control": "no-store", "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}

    async def index(_: Request) -> Response:
        return Response(body, media_type="text/html", headers={**common, **page_headers})

    async def status(request: Request) -> Response:
        try:
            since_s, version = float(request.query_params.get("since", 0)), int(request.query_params.get("map", -1))
        except ValueError:
            return Response("since is a number of seconds, map a version\n", 400, common, "text/plain")
        answer = json.dumps(snapshot(since_s, version, request.query_params.get("query")), separators=(",", ":"))
        on_snapshot()
        return Response(answer, media_type="application/json", headers=common)

    async def metrics(_: Request) -> Response:
        content, kind = exposition(snapshot(float("inf"), -1, None))
        return Response(content, headers={**common, "content-type": kind})

    def get(path: str, handler: Callable[[Request], Awaitable[Response]]) -> Route:
        return Route(path, handler, methods=["GET"])

    return Starlette(
        routes=[get("/", index), get("/status.json", status), get("/metrics", metrics)],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"], www_redirect=False)],
    )


class Server:
    """Serves until `close`. UserError when the port is taken, or a library is missing."""

    def __init__(self, snapshot: Snapshot, port: int) -> None:
        try:
            import prometheus_client  # noqa: F401
            import uvicorn

            app = application(snapshot, self._note_poll)
        except ModuleNotFoundError as error:
            text = f"the dashboard needs {error.name}, which is missing; {how_to_install('dashboard')}"
            raise UserError(text) from None
        self._socket = _listen(port)
        self.port = int(self._socket.getsockname()[1])
        self.address = f"http://{HOST}:{self.port}/"
        self._polled_s = -1e9
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="dashboard", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + _START_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)
        if not self._server.started:
            raise UserError(f"the dashboard does not start at {self.address}")

    def _note_poll(self) -> None:
        self._polled_s = time.monotonic()

    def close(self) -> None:
        """Stop, after polling clients have had a moment to fetch the last snapshot."""
        ended_s = time.monotonic()
        if ended_s - self._polled_s < _WATCHED_S:
            while self._polled_s <= ended_s and time.monotonic() < ended_s + _LAST_POLL_S:
                time.sleep(0.01)
        self._server.should_exit = True
        self._thread.join(_STOP_S)
        self._socket.close()


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(64)
    except OSError as error:
        listener.close()
        raise UserError(
            f"--dashboard {port}: {HOST}:{port} cannot be used ({error.strerror}); choose another port, or 0"
        ) from None
    return listener
