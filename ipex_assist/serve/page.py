"""The chat page at `/`: one HTML file with the libraries it uses, and restrictive security headers."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from fastapi import FastAPI, Request
from starlette.responses import Response

FILE = Path(__file__).parent / "page" / "index.html"
_VENDORED = re.compile(r'(<script data-vendor="(\w+\.js)"[^>]*>)(?=</script>)')
_INLINE = re.compile(r"<(script|style)\b[^>]*>(.*?)</\1>", re.DOTALL)


def whole_page() -> str:
    """The page with what its scripts name by data-vendor, of page/vendor, in them: a browser asks for nothing else."""
    vendor = FILE.parent / "vendor"
    page = FILE.read_text(encoding="utf-8")
    return _VENDORED.sub(lambda found: found[1] + (vendor / found[2]).read_text(encoding="utf-8"), page)


def content_security_policy(page: str) -> str:
    """A policy that allows only this page's own scripts and styles, by their hashes.

    It may connect to its own server only, must not be framed, and by trusted types cannot turn strings into elements.
    """
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, content in _INLINE.findall(page):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        hashes[kind].append(f"'sha256-{digest}'")
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {' '.join(hashes['script'])}",
            f"style-src {' '.join(hashes['style'])}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        ]
    )


def add_page(app: FastAPI) -> None:
    """Serve the page at `/`. The file is read once; a matching ETag gets 304."""
    page = whole_page()
    content = page.encode()
    headers = {
        "Content-Security-Policy": content_security_policy(page),
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-cache",
        "ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
    }

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def index(request: Request) -> Response:
        if headers["ETag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, media_type="text/html; charset=utf-8", headers=headers)
