"""The page, /status.json and /metrics, on the loopback address.

What: `Server(snapshot, port)`: serves from a thread of its own until `close`; `address` is where.
Why: a run on a cluster's node is looked at through a browser or `swjoin top`; a page that needs nothing from elsewhere works
there, too. Nothing can be changed through it, and only this machine can reach it.
Stays out: what is shown (`monitor.status_board`), how it looks (`page.html`), metrics' names (`monitor.prometheus`).

A page of another site that has its name resolve to 127.0.0.1 could read along; so only requests for 127.0.0.1 or localhost are
answered. The page's own script and style are known by their hashes, and it may speak to nobody else.
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
_WATCHED_S = 2.0  # somebody who has asked so lately looks on
_LAST_LOOK_S = 1.2  # and gets so long to see how the run ended
Snapshot = Callable[[float, int], dict[str, Any]]


def page() -> tuple[bytes, dict[str, str]]:
    """The page, and the headers that it is served with."""
    text = resources.files("swjoin.monitor").joinpath("page.html").read_text()

    def hashed(tag: str) -> str:
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        return "'sha256-" + base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode() + "'"

    policy = (
        f"default-src 'none'; script-src {hashed('script')}; style-src {hashed('style')}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text.encode(), {"content-security-policy": policy}


def application(snapshot: Snapshot, asked: Callable[[], None]) -> Any:
    """The ASGI application. asked: is called when somebody has taken a snapshot."""
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
        answer = json.dumps(snapshot(since_s, version), separators=(",", ":"))
        asked()
        return Response(answer, media_type="application/json", headers=common)

    async def metrics(_: Request) -> Response:
        content, kind = exposition(snapshot(float("inf"), -1))
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

            app = application(snapshot, self._asked)
        except ModuleNotFoundError as error:
            text = f"the dashboard needs {error.name}, which is missing; {how_to_install('dashboard')}"
            raise UserError(text) from None
        self._socket = _listen(port)
        self.port = int(self._socket.getsockname()[1])
        self.address = f"http://{HOST}:{self.port}/"
        self._asked_s = -1e9
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="dashboard", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + _START_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)
        if not self._server.started:
            raise UserError(f"the dashboard does not start at {self.address}")

    def _asked(self) -> None:
        self._asked_s = time.monotonic()

    def close(self) -> None:
        """Whoever looks on gets a moment to see the last snapshot."""
        ended_s = time.monotonic()
        if ended_s - self._asked_s < _WATCHED_S:
            while self._asked_s <= ended_s and time.monotonic() < ended_s + _LAST_LOOK_S:
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
