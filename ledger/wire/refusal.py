"""A request that cannot be served but can be answered: the codecs raise it, servers send it."""

from __future__ import annotations

from ledger.errors import RemoteProtocolError
from ledger.wire.messages import Response


class RequestRefused(RemoteProtocolError):
    """The frame names its operation well enough for the peer to get an answer.

    A server encodes `response` with the codec that raised this, sends it and goes on; after
    any other RemoteProtocolError it closes the connection.
    """

    def __init__(self, cause: str, response: Response) -> None:
        super().__init__(cause)
        self.response = response
