"""Requests to the HTTP servers of bookies, at the address in their registration, within limits.

They are made in a thread with the standard library: a command makes one and ends.
"""

from __future__ import annotations

import base64
import http.client
import ssl
from functools import partial
from typing import Any

import trio

from ledger.core.bounded_json import parse_json
from ledger.credentials import read_credentials
from ledger.errors import BookieUnavailable, InvalidArgument
from ledger.metastore.bookies import BookieInfo
from ledger.options import ClientOptions
from ledger.runtime.certificates import client_tls
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
    options: ClientOptions | None = None,
) -> Any:
    """Returns the JSON of a reply.

    `info` is the registration of the bookie, None if it has none. `options` say which certificates
    are trusted, and which credentials are sent: in clear only if they allow that. Raises
    BookieUnavailable if there is no reply, InvalidArgument if the bookie has no HTTP server or
    refuses the request.
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
        context = client_tls(options or ClientOptions()).current()
    headers = _authorization(options, is_encrypted=context is not None)
    try:
        status, data = await trio.to_thread.run_sync(
            partial(_request, host, port, context, method, path, body, headers),
            abandon_on_cancel=True,
        )
    except ssl.SSLError as error:
        why = f"no TLS over HTTP with bookie {bookie_id} at {host}:{port}"
        raise BookieUnavailable(f"{why}: {cause_of(error, names_cure=True)}") from error
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
        if status == 401 and context is None and "Authorization" not in headers:
            cause = (
                f"{cause}; credentials are not sent over HTTP in clear. Cure: http_tls,"
                " or secrets_in_clear_allowed in the settings and the credentials file"
            )
        raise InvalidArgument(f"bookie {bookie_id} answers {status}: {cause}")
    return answer


def _authorization(options: ClientOptions | None, *, is_encrypted: bool) -> dict[str, str]:
    """Returns the header that says who the caller is. Raises InvalidArgument."""
    if options is None or not (is_encrypted or options.secrets_in_clear_allowed):
        return {}
    credentials = options.credentials
    if options.credentials_file:
        credentials = read_credentials(options.credentials_file)
    if credentials is None:
        return {}
    if credentials.token is not None:
        return {"Authorization": f"Bearer {credentials.token.reveal()}"}
    assert credentials.password is not None
    pair = f"{credentials.user}:{credentials.password.reveal()}".encode()
    return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}


def _request(
    host: str,
    port: int,
    context: ssl.SSLContext | None,
    method: str,
    path: str,
    body: bytes,
    headers: dict[str, str],
) -> tuple[int, bytes]:
    connection = (
        http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
        if context is None
        else http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=context)
    )
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read(_ANSWER_BYTES_MAX)
    finally:
        connection.close()
