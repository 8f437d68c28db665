"""Passwords and names in one form, by the examples of RFC 4013."""

from __future__ import annotations

import pytest

from ledger.core.authentication.names import MECHANISMS, PLUGINS, check_user_name
from ledger.core.authentication.saslprep import saslprep
from ledger.errors import InvalidArgument


@pytest.mark.parametrize(
    ("password", "prepared"),
    [
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
        ("pässword", "pässword"),
        ("pa\u0308ssword", "pässword"),
        ("\u0627\u0628", "\u0627\u0628"),
    ],
)
def test_a_password_has_one_form(password: str, prepared: str) -> None:
    assert saslprep(password) == prepared


@pytest.mark.parametrize(
    ("password", "why"),
    [
        ("\u0007", "character 1"),
        ("\u0627\u0031", "scripts of both directions"),
        ("\u0627a\u0627", "scripts of both directions"),
        ("", "empty"),
        ("\u00ad", "empty"),
        ("a\U0001f600", "character 2"),
        ("a\nb", "character 2"),
        ("\ud800", "character 1"),
        ("a" * 1025, "1025 characters, at most 1024"),
    ],
)
def test_odd_passwords_are_refused_and_not_shown(password: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why) as caught:
        saslprep(password)
    assert not password or password not in str(caught.value)


@pytest.mark.parametrize("name", ["a", "ann", "Ann.B-c_d@example.com", "system:sa:x", "1", "a+b"])
def test_names_that_are_allowed(name: str) -> None:
    assert check_user_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "-a", "a/b", "a b", "ünal", "a\n", "a" * 129, "anonymous", "Anonymous", "a*"],
)
def test_names_that_are_not(name: str) -> None:
    with pytest.raises(InvalidArgument, match="user name"):
        check_user_name(name)


def test_plugins_name_their_mechanism() -> None:
    assert set(PLUGINS) < set(MECHANISMS)
    assert len(set(PLUGINS.values())) == len(PLUGINS)
