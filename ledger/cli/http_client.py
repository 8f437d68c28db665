"""Requests to the HTTP servers of bookies, at the address in their registration, within limits.

They are made in a thread with the standard library: a command makes one and ends.
"""

from __future__ import annotations

import http.client
import ssl
from typing import Any

import trio

from ledger.core.bounded_json import parse_json
from ledger.errors import BookieUnavailable, InvalidArgument
from ledger.metastore.bookies import BookieInfo
from ledger.options import ClientOptions
from ledger.runtime.certificates import TlsContext, client_tls
from ledger.runtime.tls import cause_of

_TIMEOUT_S = 10.0
_ANSWER_BYTES_MAX = 4 << 20


async def ask(
    bookie_id: str,
    info: BookieInfo | None,
    path: str,
    *,
    method: str = "GET",
    body: bytes = b"",
    tls: TlsContext | None = None,
) -> Any:
    """Returns the JSON of a reply.

    `info` is the registration of the bookie, None if it has none. `tls` is for servers that
    encrypt; None trusts the authorities of the system. Raises BookieUnavailable if there is no
    reply, InvalidArgument if the bookie has no HTTP server or refuses the request.
    """
    if info is None:
        raise BookieUnavailable(
            f"bookie {bookie_id} is not registered: it is down, or the id is wrong; `ledgerstream "
            f"bookie list` shows all"
        )
    if info.http is None:
        raise InvalidArgument(
            f"bookie {bookie_id} has no HTTP server. Cure: set http_port in its settings"
        )
    host, port = info.http
    context: ssl.SSLContext | None = None
    if info.is_http_encrypted:
        context = (tls or client_tls(ClientOptions())).current()
    try:
        status, data = await trio.to_thread.run_sync(
            _request, host, port, context, method, path, body, abandon_on_cancel=True
        )
    except ssl.SSLError as error:
        raise BookieUnavailable(
            f"no TLS over HTTP with bookie {bookie_id} at {host}:{port}: {cause_of(error)}"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise BookieUnavailable(
            f"bookie {bookie_id} does not answer over HTTP at {host}:{port}: "
            f"{error or type(error).__name__}"
        ) from error
    try:
        answer = parse_json(data)
    except ValueError as error:
        raise BookieUnavailable(
            f"the server at {host}:{port} is no bookie of this software: it answers "
            f"'{data[:100].decode(errors='replace')}'"
        ) from error
    if status != 200:
        cause = answer.get("error", answer) if isinstance(answer, dict) else answer
        raise InvalidArgument(f"bookie {bookie_id} answers {status}: {cause}")
    return answer


def _request(
    host: str, port: int, context: ssl.SSLContext | None, method: str, path: str, body: bytes
) -> tuple[int, bytes]:
    connection = (
        http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
        if context is None
        else http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=context)
    )
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read(_ANSWER_BYTES_MAX)
    finally:
        connection.close()
