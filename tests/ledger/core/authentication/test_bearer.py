"""The message that carries a token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.authentication.bearer import bearer_message, token_in
from ledger.errors import Unauthorized


def test_a_token_is_carried() -> None:
    message = bearer_message("eyJ.e-_~+/.x==")
    assert message == b"n,,\x01auth=Bearer eyJ.e-_~+/.x==\x01\x01"
    assert token_in(message) == "eyJ.e-_~+/.x=="


def test_the_example_of_rfc_7628() -> None:
    message = (
        b"n,a=user@example.com,\x01host=server.example.com\x01port=143\x01"
        b"auth=Bearer vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==\x01\x01"
    )
    assert token_in(message) == "vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg=="


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
        b"n,,\x01auth=Bearer a\x01",
        b"p=x,,\x01auth=Bearer a\x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer " + b"a" * 20_000 + b"\x01\x01",
    ],
)
def test_messages_that_are_none(message: bytes) -> None:
    with pytest.raises(Unauthorized):
        token_in(message)


@pytest.mark.parametrize("token", ["", "a b", "a\x01", "ä", "a" * 20_000])
def test_what_cannot_be_a_token_is_not_sent_nor_shown(token: str) -> None:
    with pytest.raises(Unauthorized) as caught:
        bearer_message(token)
    assert len(token) < 5 or token not in str(caught.value)


@given(st.binary(max_size=100))
def test_no_bytes_of_a_peer_cause_another_error(message: bytes) -> None:
    for given_bytes in (message, b"n,,\x01" + message, b"n,,\x01auth=Bearer " + message):
        try:
            token_in(given_bytes)
        except Unauthorized:
            continue
