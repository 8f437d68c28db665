"""The server's side of TLS: who must encrypt, handshakes within a time limit, and their counts.

TLS begins with Apache's START_TLS on the bookie's port, or with the first byte on a port of its
own. A peer whose handshake fails or takes too long must cost nothing but its own connection.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import trio

from ledger.errors import RemoteProtocolError
from ledger.runtime.certificates import TlsContext, is_for_host
from ledger.runtime.logs import OF_PEER
from ledger.runtime.network import Transport
from ledger.runtime.tls import cause_of, new_scratch, open_tls
from ledger.wire import v2, v3
from ledger.wire.connection import is_version_3
from ledger.wire.messages import AuthRequest, Request

_log = logging.getLogger(__name__)

_DAY_S = 86_400.0
_WARNED_S = 30 * _DAY_S
_ALERT_S = 5.0
"""How long a peer whose handshake failed may take to read the alert."""
_HANDSHAKE: Final = 0x16
"""The first byte of a handshake; a frame begins with its length, whose highest byte is smaller."""
_EARLY_BYTES_MAX: Final = 4096


@dataclass(slots=True)
class TlsStatistics:
    """Counts of TLS handshakes, and the certificate in use."""

    certificate_expires_at_s: float = 0.0
    """In seconds since 1970; 0 without TLS."""
    handshakes: int = 0
    handshakes_failed: int = 0
    refused_in_clear: int = 0
    """Connections on which a request was refused because it was not encrypted."""
    reloads_failed: int = 0
    """Times that changed files could not be loaded."""


class HandshakeFailed(trio.ClosedResourceError):
    """No encrypted connection was made; the text says why."""


class ServerTls:
    """TLS of one bookie, for all of its connections; used by one thread.

    Args:
        context: the bookie's certificate, followed as its files change.
        is_required: nothing but START_TLS is carried out in clear.
        handshake_s_max: how long a peer may take.
    """

    def __init__(
        self, context: TlsContext, *, is_required: bool = False, handshake_s_max: float = 10.0
    ) -> None:
        self.context = context
        self.is_required = is_required
        self.statistics = TlsStatistics()
        self._handshake_s_max = handshake_s_max
        self._scratch = new_scratch()

    async def accept(
        self, transport: Transport, behind: bytes | None = None
    ) -> tuple[Transport, Request | None]:
        """Returns an encrypted transport over `transport`, after the handshake. Raises
        HandshakeFailed, which was logged: then the caller closes `transport`.

        `behind`: what was received in clear behind START_TLS; None if there was no such request.
        The second result is the AUTH that came so, if any. Raises RemoteProtocolError for other
        requests in clear.
        """
        early, received = None, b""
        try:
            with trio.fail_after(self._handshake_s_max):
                if behind is not None:
                    early, received = await self._receive_early(transport, behind)
                encrypted = await open_tls(
                    transport,
                    self.context.current(),
                    self._scratch,
                    is_server=True,
                    received=received,
                )
        except trio.TooSlowError:
            cause = f"it took longer than {self._handshake_s_max:g} s"
        except (ssl.SSLError, OSError, trio.ClosedResourceError) as error:
            cause = cause_of(error)
        else:
            self.statistics.handshakes += 1
            return encrypted, early
        self.statistics.handshakes_failed += 1
        peer = transport.peer
        _log.warning("tls handshake failed peer=%s cause=%s", peer, cause, extra=OF_PEER)
        await self._let_read_alert(transport)
        raise HandshakeFailed(cause)

    async def _receive_early(
        self, transport: Transport, received: bytes
    ) -> tuple[Request | None, bytes]:
        """Returns the AUTH in clear before the handshake, and what was received behind it.

        Apache's clients begin to authenticate as soon as they are connected, and do not wait for
        TLS. Raises RemoteProtocolError if it is another request.
        """
        needed = 1
        while True:
            if received and received[0] == _HANDSHAKE:
                return None, received
            if len(received) >= 4:
                needed = 4 + int.from_bytes(received[:4], "big")
                if needed > _EARLY_BYTES_MAX:
                    raise _in_clear(f"{needed} bytes")
            if len(received) >= max(needed, 5):
                break
            await transport.wait_readable()
            try:
                count = transport.recv_into(self._scratch)
            except BlockingIOError:
                continue
            if count == 0:
                raise ConnectionResetError("the peer closed the connection before the handshake")
            received += bytes(self._scratch[:count])
        codec = v3 if is_version_3(received[4]) else v2
        request = codec.decode_request(received[4:needed])
        if not isinstance(request.body, AuthRequest):
            raise _in_clear(type(request.body).__name__)
        return request, received[needed:]

    def now(self) -> TlsStatistics:
        """Returns the counts at this moment."""
        own = self.context.own
        return replace(
            self.statistics,
            certificate_expires_at_s=own.expires_at_s if own is not None else 0.0,
            reloads_failed=self.context.reloads_failed,
        )

    def check_names(self, host: str) -> None:
        """Logs an error if the certificate is not for `host`, which clients look for."""
        own = self.context.own
        if own is not None and not is_for_host(own.names, host):
            names = (*own.names.dns_names, *own.names.ip_addresses)
            _log.error(
                "the certificate is not for %s but for %s: clients that check host names refuse "
                "this bookie. Cure: a certificate with that name",
                host,
                ", ".join(names) or "no host",
            )

    async def warn_of_expiry(self, now_ms: Callable[[], int]) -> None:
        """Warns once a day from 30 days before the certificate expires; runs until cancelled."""
        while True:
            self.context.current()  # it may have been renewed since the last handshake
            own = self.context.own
            if own is not None:
                left_s = own.expires_at_s - now_ms() / 1000
                if left_s <= 0:
                    _log.error("the certificate has expired, clients refuse it days_ago=%.1f",
                               -left_s / _DAY_S)  # fmt: skip
                elif left_s < _WARNED_S:
                    _log.warning("the certificate expires soon days_left=%.1f", left_s / _DAY_S)
            await trio.sleep(_DAY_S)

    async def _let_read_alert(self, transport: Transport) -> None:
        """Gives the peer a moment to read why: with unread bytes of it a close would be a reset,
        which drops the alert."""
        with trio.move_on_after(_ALERT_S):
            try:
                transport.end_sending()
                while True:
                    await transport.wait_readable()
                    try:
                        if not transport.recv_into(self._scratch):
                            return
                    except BlockingIOError:
                        continue
            except (OSError, trio.ClosedResourceError):
                return


def _in_clear(what: str) -> RemoteProtocolError:
    # Another one than the peer may have written it.
    return RemoteProtocolError(f"{what} in clear behind the request to start TLS")
