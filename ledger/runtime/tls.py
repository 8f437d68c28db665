"""TLS over any transport: a transport like the one below it, that encrypts what it carries.

The standard library's `ssl` works on buffers in memory (`ssl.MemoryBIO`), so that a gathered send
is encrypted and sent in one piece, and a whole chunk is received before it is decrypted. A record
that was begun is always finished: the last byte of a send whose records are not all sent counts as
not accepted, and the caller that sends it again has the rest sent. The end of a connection is
believed without TLS's own closing message, because each frame above has its length.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final

import trio

from ledger.runtime.network import PeerCertificate, Transport

_PIECE_BYTES = 64 * 1024
"""Bytes that are encrypted or received at once. OpenSSL keeps buffers of this size for each
connection."""
_ANSWERS_BYTES_MAX = 64 * 1024
"""Answers of TLS itself (to changes of keys) that a peer may leave unread."""


def new_scratch() -> memoryview:
    """Returns the buffer in which connections of one thread receive encrypted bytes."""
    return memoryview(bytearray(_PIECE_BYTES))


class TlsTransport:
    """One encrypted connection. Made by `open_tls`."""

    __slots__ = (
        "_failure",
        "_has_more",
        "_incoming",
        "_inner",
        "_is_ended",
        "_outgoing",
        "_owed",
        "_scratch",
        "_session",
        "_unsent",
        "peer",
        "peer_certificate",
    )

    def __init__(
        self,
        inner: Transport,
        context: ssl.SSLContext,
        scratch: memoryview,
        *,
        is_server: bool,
        server_hostname: str | None,
    ) -> None:
        self.peer = inner.peer
        self.peer_certificate: PeerCertificate | None = None
        self._inner = inner
        self._scratch = scratch
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._session = context.wrap_bio(
            self._incoming, self._outgoing, server_side=is_server, server_hostname=server_hostname
        )
        self._unsent = memoryview(b"")
        """Encrypted bytes that the transport below has not accepted."""
        self._owed = 0
        """1 if the first byte of the next send was encrypted already."""
        self._has_more = False
        """Decrypted bytes, or the end, may be read without the transport below."""
        self._is_ended = False
        self._failure: ssl.SSLError | None = None
        """What the peer objected to; a send after it would only report that TLS has ended."""

    async def handshake(self, received: bytes = b"") -> None:
        """Returns when both sides use the keys they agreed on. `received` are its first bytes, if
        they were received already. Raises ssl.SSLError, OSError, trio.ClosedResourceError; the
        caller bounds the time."""
        self._incoming.write(received)
        is_done = False
        while not is_done:
            try:
                self._session.do_handshake()
                is_done = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                self._take_encrypted()
                self._try_flush()  # the alert, by which the peer learns the cause
                raise
            self._take_encrypted()
            while not self._try_flush():
                await self._inner.wait_writable()
            while not is_done:
                await self._inner.wait_readable()
                try:
                    count = self._inner.recv_into(self._scratch)
                except BlockingIOError:
                    continue
                if count == 0:
                    raise ConnectionResetError("the peer closed the connection in the handshake")
                self._incoming.write(self._scratch[:count])
                break
        self._has_more = self._incoming.pending > 0
        found = self._session.getpeercert()
        if found:
            self.peer_certificate = peer_certificate_of(found)

    @property
    def version(self) -> str:
        """The version of TLS in use, like "TLSv1.3"."""
        return self._session.version() or ""

    # ---- sending

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Encrypts and sends `data`, see `Transport.send`."""
        if self._failure is not None:
            raise self._failure
        if self._unsent and not self._try_flush():
            raise BlockingIOError(11, "encrypted bytes wait to be sent")
        view = memoryview(data)
        done, self._owed = self._owed, 0
        while done < len(view):
            done += self._session.write(view[done : done + _PIECE_BYTES])
            self._take_encrypted()
            if not self._try_flush():
                self._owed = 1
                done -= 1
                break
        if done == 0:
            raise BlockingIOError(11, "encrypted bytes wait to be sent")
        return done

    def _take_encrypted(self) -> None:
        encrypted = self._outgoing.read()
        if encrypted:
            self._unsent = memoryview(
                bytes(self._unsent) + encrypted if self._unsent else encrypted
            )

    def _try_flush(self) -> bool:
        """Returns whether the transport below has accepted all encrypted bytes. Raises OSError."""
        unsent = self._unsent
        try:
            while unsent:
                unsent = unsent[self._inner.send(unsent) :]
        except BlockingIOError:
            return False
        finally:
            self._unsent = unsent
        return True

    # ---- receiving

    def recv_into(self, buffer: memoryview) -> int:
        """Puts decrypted bytes into `buffer`, see `Transport.recv_into`."""
        size, scratch = len(buffer), self._scratch
        done = self._decrypt(buffer) if self._has_more else 0
        while done < size and not self._is_ended:
            try:
                count = self._inner.recv_into(scratch)
            except BlockingIOError:
                if done:
                    break
                raise
            if count == 0:
                self._is_ended = True
                break
            self._incoming.write(scratch[:count])
            done += self._decrypt(buffer[done:] if done else buffer)
            if count < len(scratch) and done:
                break
        self._has_more = self._has_more or self._is_ended
        return done

    def _decrypt(self, buffer: memoryview) -> int:
        """Returns how many decrypted bytes were put into `buffer`; notes whether there are more."""
        incoming, read, size, done = self._incoming, self._session.read, len(buffer), 0
        self._has_more = False
        try:
            while done < size:
                count: int = read(size - done, buffer[done:])  # type: ignore[assignment]
                if count == 0:
                    self._is_ended = True
                    return done
                done += count
                if not incoming.pending and not self._session.pending():
                    break  # a further read would cost more than this whole record: it raises
            else:
                self._has_more = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._is_ended = True
        except ssl.SSLError as error:
            self._failure = error
            raise
        if self._outgoing.pending:
            self._answer()
        return done

    def _answer(self) -> None:
        self._take_encrypted()
        if not self._try_flush() and len(self._unsent) > _PIECE_BYTES * 2 + _ANSWERS_BYTES_MAX:
            raise ConnectionAbortedError(f"{self.peer} changes keys and takes no answers")

    # ---- waiting and the end

    async def wait_readable(self) -> None:
        if self._has_more:
            await trio.lowlevel.checkpoint()
        else:
            await self._inner.wait_readable()

    async def wait_writable(self) -> None:
        await self._inner.wait_writable()

    def end_sending(self) -> None:
        self._try_flush()
        self._inner.end_sending()

    def close(self) -> None:
        self._inner.close()


async def open_tls(
    transport: Transport,
    context: ssl.SSLContext,
    scratch: memoryview,
    *,
    is_server: bool = False,
    server_hostname: str | None = None,
    received: bytes = b"",
) -> TlsTransport:
    """Returns an encrypted transport over `transport`, after the handshake.

    Args:
        scratch: from `new_scratch`; connections of one thread may share it.
        server_hostname: of a client, the name that the certificate is checked for.
        received: the first bytes of the peer, if they were received already.

    Raises ssl.SSLError, OSError, trio.ClosedResourceError. The caller bounds the time, and closes
    `transport` after an error.
    """
    encrypted = TlsTransport(
        transport, context, scratch, is_server=is_server, server_hostname=server_hostname
    )
    await encrypted.handshake(received)
    return encrypted


_UNKNOWN_AUTHORITY: Final = (18, 19, 20, 21)
"""X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT and its neighbours in OpenSSL's x509_vfy.h."""


def cause_of(error: Exception, *, names_cure: bool = False) -> str:
    """Returns one line on why TLS failed, for logs and errors; `names_cure`: for a client, also
    what it may set."""
    if isinstance(error, ssl.SSLCertVerificationError):
        cure = ""
        if names_cure and error.verify_code in _UNKNOWN_AUTHORITY:
            cure = ". Cure: `tls_ca_file` must have the certificate of the authority that signed it"
        return f"its certificate is not accepted: {error.verify_message}{cure}"
    if isinstance(error, ssl.SSLError):
        # The rest of the text is a place in the source of Python's `ssl`.
        return (error.reason or str(error)).replace("_", " ").lower()
    return str(error) or type(error).__name__


def peer_certificate_of(found: Mapping[str, Any]) -> PeerCertificate:
    """Returns what `SSLObject.getpeercert` found, of a certificate that was verified."""
    subject = [attribute for part in found.get("subject", ()) for attribute in part]
    names = found.get("subjectAltName", ())

    def alternative(kind: str) -> tuple[str, ...]:
        return tuple(value for name, value in names if name == kind)

    def values(kind: str) -> tuple[str, ...]:
        return tuple(value for name, value in subject if name == kind)

    return PeerCertificate(
        common_name=next(iter(values("commonName")), ""),
        organizational_units=values("organizationalUnitName"),
        dns_names=alternative("DNS"),
        ip_addresses=alternative("IP Address"),
        uris=alternative("URI"),
        emails=alternative("email"),
        expires_at_s=ssl.cert_time_to_seconds(found["notAfter"]) if "notAfter" in found else 0.0,
    )
