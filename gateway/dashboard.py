"""/dashboard: the page, its files, and the data behind it under /admin/dashboard, which takes an admin key where there
are any. The page itself shows nothing without that data, so it needs no key. Nothing on it comes from another host."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Annotated

import msgspec
from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.responses import StreamingResponse

from core.errors import NotFound, Overloaded
from gateway.board import MOST_VIEWERS, Board

FOLDER = Path(__file__).parent / "page"
TYPES = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}  # fmt: skip
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS = {
    "content-security-policy": POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin", "cache-control": "no-cache",
}  # fmt: skip
NOT_KEPT = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
A_DAY_S = 86_400.0


def add_dashboard(app: FastAPI, board: Board) -> None:
    """The page and its files, read once."""
    files = {path.name: (path.read_bytes(), TYPES[path.suffix]) for path in FOLDER.iterdir() if path.suffix in TYPES}

    @app.get("/dashboard", include_in_schema=False)
    async def page(request: Request) -> Response:
        return _file(request, *files["index.html"])

    @app.get("/dashboard/{name}", include_in_schema=False)
    async def part(name: str, request: Request) -> Response:
        if name not in files:
            raise NotFound(f"the dashboard has no file {name}", code="unknown_route")
        return _file(request, *files[name])

    app.include_router(_data(board))


def _file(request: Request, body: bytes, kind: str) -> Response:
    tag = f'"{sha256(body).hexdigest()[:16]}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={**HEADERS, "etag": tag})
    return Response(body, media_type=kind, headers={**HEADERS, "etag": tag})


def _data(board: Board) -> APIRouter:
    """For this page alone: its shape goes with the page's version, so it is no part of the admin API's schema."""
    router = APIRouter(prefix="/admin/dashboard", include_in_schema=False)

    @router.get("/stream")
    async def stream() -> Response:
        """One snapshot a second, as server-sent events."""
        if board.viewers >= MOST_VIEWERS:
            raise Overloaded(f"{MOST_VIEWERS} dashboards are open already", code="too_many_viewers", retry_after_s=30.0)
        return StreamingResponse(board.frames(), media_type="text/event-stream", headers=NOT_KEPT)

    @router.get("/now")
    async def now() -> Response:
        return _json(board.snapshot())

    @router.get("/history")
    async def history(window_s: Annotated[float, Query(gt=0, le=A_DAY_S)] = 600.0) -> Response:
        return _json(board.history(window_s))

    @router.get("/requests")
    async def requests() -> Response:
        return _json(board.requests())

    @router.get("/frontier")
    async def frontier(service: str) -> Response:
        return _json(await board.frontier(service))

    return router


def _json(answer: object) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json", headers=NOT_KEPT)
