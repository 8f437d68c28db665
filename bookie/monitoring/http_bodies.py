"""The bodies of HTTP requests, which are JSON objects of a few bytes, and those of answers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from ledger.shown_text import escaped_json

BODY_BYTES_MAX = 4096
AUDITED_BODY = "audited_body"
"""Key in the scope of a request: its JSON body, once it was read."""

Handler = Callable[[Request], Awaitable[Response]]


class EscapedJson(JSONResponse):
    """An answer in JSON that a terminal may show: causes of errors quote what others wrote."""

    def render(self, content: object) -> bytes:
        return escaped_json(super().render(content).decode()).encode()


async def json_object(request: Request, wanted: str) -> dict[str, object]:
    """Returns a request's JSON body, or {} without one. Raises HTTPException, which names what is
    `wanted`."""
    body = bytearray()
    try:
        async with aclosing(request.stream()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > BODY_BYTES_MAX:
                    raise HTTPException(413, f"the body has more than {BODY_BYTES_MAX} bytes")
    except ClientDisconnect as error:
        raise HTTPException(400, "the body ended early") from error
    if not body.strip():
        return {}
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise HTTPException(400, f"the body must be {wanted}")
    request.scope[AUDITED_BODY] = found
    return found
