"""The files of the pages, read once at the start: scripts, styles and the vendored libraries."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from aiohttp import web

STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml",
}  # fmt: skip


class StaticFiles:
    """Serves the files below `STATIC`. A page's own path is in the fragment, so `/` is the only page."""

    def __init__(self) -> None:
        self._files = {
            f"/{path.relative_to(STATIC).as_posix()}": path.read_bytes()
            for path in sorted(STATIC.rglob("*"))
            if path.suffix in _TYPES
        }
        self._files["/"] = self._files.pop("/index.html")
        self._etags = {name: f'"{sha256(content).hexdigest()[:16]}"' for name, content in self._files.items()}

    def handlers(self) -> list[web.RouteDef]:
        """Return the handler of each file."""
        return [web.get(name, self._serve) for name in self._files]

    async def _serve(self, request: web.Request) -> web.Response:
        name, etag = request.path, self._etags[request.path]
        headers = {"ETag": etag, "Cache-Control": "no-cache"}
        if request.headers.get("If-None-Match") == etag:
            return web.Response(status=304, headers=headers)
        kind = _TYPES[Path(name).suffix or ".html"]
        return web.Response(body=self._files[name], content_type=kind, charset="utf-8", headers=headers)
