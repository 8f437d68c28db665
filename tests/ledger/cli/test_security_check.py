"""What settings leave open."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.cli.security_check import open_settings
from ledger.security_setup import SecurityDirectory


def secure_settings(directory: Any) -> dict[str, Any]:
    return dict(SecurityDirectory(directory).bookie_settings("one"))


def test_the_settings_that_are_made_leave_nothing_open(tmp_path: Any) -> None:
    assert open_settings(secure_settings(tmp_path)) == []


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"authentication_mechanisms": []}, "no client is authenticated"),
        (
            {"authentication_mechanisms": ["SCRAM-SHA-256", "DIGEST-MD5"]},
            "DIGEST-MD5, which is weak, is a mechanism",
        ),
        ({"secrets_in_clear_allowed": True}, "tokens and passwords may come in clear"),
        ({"anonymous_allowed": True}, "anonymous clients are served"),
        ({"permissions": False}, "every client may do everything"),
        ({"tls_required": False}, "it serves requests that are not encrypted"),
        ({"tls_to_bookies": "off"}, "it copies entries of others in clear"),
        (
            {"cluster_secret_file": ""},
            "passwords of new ledgers are in the metadata, so that a reader of it can write",
        ),
        (
            {"derived_keys_required": False},
            "ledgers of clients without the key of a namespace are served as ledgers of it",
        ),
    ],
)
def test_each_setting_that_leaves_something_open_is_found(
    tmp_path: Any, changed: dict[str, Any], what: str
) -> None:
    found = open_settings({**secure_settings(tmp_path), **changed})
    assert [one for one, _ in found] == [what]


def test_settings_that_are_missing_do_not_pass_for_closed() -> None:
    assert len(open_settings({})) == 5
