"""Who the peer of one connection is: what it has to encrypt and to prove before it is served.

A request that comes too early is refused in the forms of Apache's bookies. What takes time, a TLS
handshake or an answer to AUTH, is done by the receive loop before it looks at the next request. A
peer must never become another user than it was, nor be believed for what it sent in clear.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from bookie.core.sessions import Proof
from bookie.server.audit import ConnectionAudit
from bookie.server.auth_session import AuthSession, answer_when_unknown
from bookie.server.encryption import HandshakeFailed, ServerTls
from bookie.server.error_replies import error_reply
from ledger.core.authentication.names import ANONYMOUS
from ledger.errors import MetadataUnavailable, RemoteProtocolError, Status, Unauthorized
from ledger.runtime.logs import OF_PEER
from ledger.runtime.network import Transport
from ledger.wire.messages import (
    AddRequest,
    AddResponse,
    AuthRequest,
    AuthResponse,
    ErrorResponse,
    ReadRequest,
    ReadResponse,
    Request,
    ResponseBody,
    StartTlsRequest,
    StartTlsResponse,
)
from ledger.wire.v3_forms import REQUEST_OF_TYPE

_log = logging.getLogger(__name__)

Reply = Callable[[Request, ResponseBody], None]

_NOT_ENCRYPTED = "is not encrypted, and this bookie requires TLS"
_NOT_AUTHENTICATED = "came before authentication"


class Identity:
    """The identity of one peer.

    Args:
        tls: how the connection may be encrypted; None if never.
        begins_encrypted: with its first byte.
        session: authenticates the peer; None: every peer is served.
        audit: records who the peer is, and what is refused without an answer.
        begun: called when the peer has proved who it is.
    """

    def __init__(
        self,
        tls: ServerTls | None,
        *,
        begins_encrypted: bool,
        session: AuthSession | None,
        audit: ConnectionAudit | None = None,
        begun: Callable[[Proof], None] | None = None,
    ) -> None:
        self.user = ANONYMOUS
        """The user whose requests these are."""
        self.proof: Proof | None = None
        """What it proved that by, which the connection rests on; None: nothing."""
        self._begun = begun
        self.starts_tls = begins_encrypted
        """Whether the next bytes are those of a TLS handshake."""
        self.auth_request: Request | None = None
        """An AUTH that is to be answered before anything behind it is looked at."""
        self._tls = tls
        self._begins_encrypted = begins_encrypted
        self._must_encrypt = tls is not None and tls.is_required
        self._session = session
        self._audit = audit
        self._is_refusal_logged = False
        self._update()

    def _update(self) -> None:
        is_known = self._session is None or self.proof is not None
        self.is_settled = self._tls is None and is_known
        """Whether all requests but AUTH may be carried out, as far as it depends on who sends
        them."""
        self.is_pending = self.starts_tls or self.auth_request is not None

    def admit(self, request: Request, transport: Transport, reply: Reply) -> bool:
        """Returns whether an AUTH is carried out, or any request while the peer is not settled. If
        not, it was refused, or is to be answered by `start_tls` or `authenticate`. Raises
        Unauthorized: the operation has no refusal that the peer would understand."""
        try:
            return self._is_encrypted(request, transport, reply) and (
                self._session is None or self._is_known(self._session, request, transport, reply)
            )
        finally:
            self._update()

    def _is_encrypted(self, request: Request, transport: Transport, reply: Reply) -> bool:
        if self._tls is None:
            return True
        if isinstance(request.body, StartTlsRequest):
            self.starts_tls = True
            reply(request, StartTlsResponse(Status.OK))
            return False
        if not self._must_encrypt:
            self._tls = None  # TLS begins with the first request or never
            return True
        if self._log_refusal(request, transport, _NOT_ENCRYPTED):
            self._tls.statistics.refused_in_clear += 1
        refusal = error_reply(request.body, Status.UNAUTHORIZED)
        if request.version != 3 and not isinstance(refusal, AddResponse | ReadResponse):
            raise self._unanswered(request, _NOT_ENCRYPTED)
        if self._audit is not None and isinstance(request.body, AuthRequest):
            self._audit.unauthenticated("", self.why_refused)
        reply(request, refusal)
        return False

    @property
    def why_refused(self) -> str:
        """Why nothing is served yet; "" once that is no longer so."""
        if self._tls is not None and self._must_encrypt:
            return _NOT_ENCRYPTED
        session = self._session
        return _NOT_AUTHENTICATED if session is not None and session.user is None else ""

    def _log_refusal(self, request: Request, transport: Transport, why: str) -> bool:
        """Logs it once per connection, not for each request of a flood; returns whether it did."""
        is_first, self._is_refusal_logged = not self._is_refusal_logged, True
        if is_first:
            _log.warning(
                "request refused peer=%s cause=%s %s",
                transport.peer,
                type(request.body).__name__,
                why,
                extra=OF_PEER,
            )
        return is_first

    def _is_known(
        self, session: AuthSession, request: Request, transport: Transport, reply: Reply
    ) -> bool:
        body = request.body
        if isinstance(body, AuthRequest):
            if self.proof is not None and not body.payload:
                return True  # Java's client of DIGEST-MD5 sends such a message behind the end
            self.auth_request = request
            return False
        if isinstance(body, StartTlsRequest):
            return True
        user = session.admitted_user(transport)
        if user is not None:
            self.user = user
            if session.proof is not None:
                self._authenticated(session.proof)
            return True
        self._log_refusal(request, transport, _NOT_AUTHENTICATED)
        if request.version == 3:
            operation = int(REQUEST_OF_TYPE[type(body)].operation)
            reply(request, ErrorResponse(Status.UNAUTHORIZED, operation))
        elif isinstance(body, AddRequest | ReadRequest):
            reply(request, error_reply(body, Status.UNAUTHORIZED))
        else:
            raise self._unanswered(request, _NOT_AUTHENTICATED)
        return False

    def _authenticated(self, proof: Proof) -> None:
        self.user, self.proof = proof.user, proof
        if self._audit is not None:
            self._audit.authenticated(self.user, proof.mechanism)
        if self._begun is not None:
            self._begun(proof)

    def _unanswered(self, request: Request, why: str) -> Unauthorized:
        """Returns the error for a request whose refusal the peer would not understand."""
        if self._audit is not None:
            self._audit.refused(self.user, request.body, why)
        return Unauthorized(f"{type(request.body).__name__} {why}")

    async def start_tls(
        self, transport: Transport, behind: bytes
    ) -> tuple[Transport, Request | None]:
        """Returns the encrypted transport over `transport`, and an AUTH that is to be carried out
        as if it had come over it.

        `behind` was received in clear behind START_TLS. Another one may have written it, so that
        nothing there is carried out but an AUTH that says nothing: without a payload, or where no
        client is authenticated. Raises RemoteProtocolError for others, HandshakeFailed, which was
        logged.
        """
        assert self._tls is not None
        try:
            encrypted, early = await self._tls.accept(
                transport, None if self._begins_encrypted else behind
            )
        except HandshakeFailed as error:
            if self._audit is not None:
                self._audit.unauthenticated("TLS", str(error))
            raise
        if early is not None and self._session is not None:
            assert isinstance(early.body, AuthRequest)
            if early.body.payload:
                raise RemoteProtocolError(
                    f"a payload of plugin {early.body.plugin[:100]!r} in clear behind the request "
                    "to start TLS"
                )
        self._tls, self._must_encrypt, self.starts_tls = None, False, False
        if self._session is not None:
            self._session.is_encrypted = True
        self._update()
        return encrypted, early

    async def authenticate(self, reply: Reply) -> None:
        """Answers the AUTH that is pending; a refusal was logged. Raises Unauthorized if the peer
        had its chances, or the wire has no code for a refusal, and MetadataUnavailable."""
        request, session = self.auth_request, self._session
        assert request is not None
        assert session is not None
        body = request.body
        assert isinstance(body, AuthRequest)
        try:
            payload = await session.answer(body.plugin, body.payload)
        except Unauthorized:
            if request.version != 3 or session.is_over:
                raise
            reply(request, AuthResponse(Status.UNAUTHORIZED, body.plugin, b""))
        except MetadataUnavailable:
            unknown = answer_when_unknown(body.plugin)
            if unknown is not None:
                reply(request, AuthResponse(Status.OK, body.plugin, unknown))
            raise
        else:
            if session.proof is not None:
                self._authenticated(session.proof)
            reply(request, AuthResponse(Status.OK, body.plugin, payload))
        self.auth_request = None
        self._update()
