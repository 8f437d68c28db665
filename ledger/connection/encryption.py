"""Encrypts connections to bookies: asks them to start TLS, or connects to their port for TLS.

A client that is to encrypt must never send a request in clear: a bookie that does not start
TLS, or something between that removes the offer, costs the connection. The certificate proves which
bookie answers: it must be for the host in the bookie's id, which is what ledgers' metadata names.
"""

from __future__ import annotations

import ssl

from ledger.connection.single_frames import receive_frame, send_frame
from ledger.errors import BookieUnavailable, RemoteProtocolError, Status
from ledger.options import ClientOptions
from ledger.runtime.certificates import TlsContext, client_tls
from ledger.runtime.network import Transport
from ledger.runtime.tls import cause_of, new_scratch, open_tls
from ledger.wire import v3
from ledger.wire.connection import ReceiveBuffer
from ledger.wire.messages import ErrorResponse, Request, StartTlsRequest, StartTlsResponse


class ClientTls:
    """How one client encrypts its connections; used by one thread."""

    def __init__(self, context: TlsContext, *, is_direct: bool, checks_host_names: bool) -> None:
        self._context = context
        self._is_direct = is_direct
        self._checks_host_names = checks_host_names
        self._scratch = new_scratch()

    @classmethod
    def of(cls, options: ClientOptions) -> ClientTls | None:
        """Returns None if nothing is encrypted. Raises InvalidArgument for files that are
        unusable."""
        if options.tls == "off":
            return None
        return cls(
            client_tls(options),
            is_direct=options.tls == "direct",
            checks_host_names=options.tls_checks_host_names,
        )

    async def encrypt(self, transport: Transport, bookie: str, host: str) -> Transport:
        """Returns an encrypted transport over `transport`, which carries nothing yet.

        `host` is the one that was connected to. Raises BookieUnavailable if the bookie does not
        encrypt or its certificate is not accepted, RemoteProtocolError, OSError. The caller bounds
        the time, and closes `transport` after an error.
        """
        if not self._is_direct:
            await _start_tls(transport, bookie)
        name = name_to_check(bookie, host)
        try:
            return await open_tls(
                transport, self._context.current(), self._scratch, server_hostname=name
            )
        except (ssl.SSLError, ConnectionResetError) as error:
            checked = f" for {name}" if self._checks_host_names else ""
            raise BookieUnavailable(
                f"no TLS with bookie {bookie} at {transport.peer}{checked}: "
                f"{cause_of(error, names_cure=True)}"
            ) from error


def name_to_check(bookie: str, host: str) -> str:
    """Returns the host that a bookie's certificate must be for: that in its id, or, if the id is a
    free name, `host`, to which we connect."""
    in_id, colon, port = bookie.rpartition(":")
    name = in_id if colon and in_id and port.isascii() and port.isdigit() else host
    return name.removeprefix("[").removesuffix("]")


async def _start_tls(transport: Transport, bookie: str) -> None:
    """Returns when the bookie has agreed to begin with the handshake."""
    # Always in v3, whatever the connection carries later, and before anything else.
    # Transaction id 0 is that of no request behind it: Apache's bookies may answer it twice.
    await send_frame(transport, v3.encode_request(Request(3, 0, StartTlsRequest())))
    buffer = ReceiveBuffer()
    frame = await receive_frame(transport, buffer)
    if frame is None:
        raise BookieUnavailable(f"bookie {bookie} closed the connection when asked to start TLS")
    answer = v3.decode_response(frame).body
    if not isinstance(answer, StartTlsResponse | ErrorResponse):
        raise RemoteProtocolError(
            f"bookie {bookie} answered START_TLS with {type(answer).__name__}"
        )
    if answer.status is not Status.OK:
        raise BookieUnavailable(
            f"bookie {bookie} at {transport.peer} does not start TLS ({answer.status.name}), and "
            "this client requires it. Cure: a certificate in the bookie's settings; if it has one, "
            "look at what is between"
        )
    if buffer.start != buffer.end:
        # In clear, so that anyone may have written it; it must not be taken for encrypted.
        raise RemoteProtocolError(f"bookie {bookie} sent more than its answer to START_TLS")
