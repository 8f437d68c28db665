"""Secrets that are not shown, and the files that they are in."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from ledger.credentials import (
    Credentials,
    Secret,
    environment_settings,
    read_credentials,
    read_secret,
)
from ledger.errors import InvalidArgument

PLANTED = "tops3cret"


def private(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_secret_is_not_shown() -> None:
    secret = Secret(PLANTED)
    credentials = Credentials(user="ann", password=secret)
    for shown in (repr(secret), str(secret), f"{secret}", f"{secret!r:>40}", repr(credentials)):
        assert PLANTED not in shown
        assert "***" in shown
    assert secret.reveal() == PLANTED
    assert secret == Secret(PLANTED)
    assert secret != Secret("other")
    assert secret != PLANTED
    assert pickle.loads(pickle.dumps(credentials)) == credentials


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'user = "ann"\npassword = "tops3cret"\n',
            Credentials(user="ann", password=Secret(PLANTED)),
        ),
        (
            'user = "ann"\npassword_file = "other"\nmechanism = "scram-sha-512"\n',
            Credentials(user="ann", password=Secret("of.the.file"), mechanism="SCRAM-SHA-512"),
        ),
        ('token = "a.b.c"', Credentials(token=Secret("a.b.c"))),
        ('token_file = "other"', Credentials(token=Secret("of.the.file"))),
    ],
)
def test_credentials_are_read(tmp_path: Path, text: str, expected: Credentials) -> None:
    private(tmp_path / "other", "of.the.file\n")
    assert read_credentials(private(tmp_path / "c.toml", text)) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "give one"),
        ('user = "ann"', "give one"),
        ('password = "tops3cret"', "needs the user"),
        ('user = "ann"\npassword = "tops3cret"\ntoken = "tops3cret"', "give one"),
        ('user = "ann"\ntoken = "tops3cret"', "names its user itself"),
        ('user = "ann"\npassword = "tops3cret"\nmechanism = "PLAIN"', "mechanism is 'PLAIN'"),
        ('user = "ann"\npasswd = "tops3cret"', "'passwd' is unknown or no text; known are user"),
        ('user = "ann"\npassword = 7', "'password' is unknown or no text"),
        ('password = "tops3cret', "is not TOML"),
        ('user = "a"\npassword_file = "no"', "secret in .*no cannot be read: No such file"),
        ('user = "a"\npassword_file = "no"\npassword="tops3cret"', "not both"),
        ('user = "\xff"', "give one"),
        ('user = "ann"\npassword = ""', "the password is empty"),
        ('token = "tops3cret\\n"', "characters that no token has"),
        ('token = "tops3cret two"', "characters that no token has"),
        ('token = "tops3cret\u20ac"', "characters that no token has"),
        ('token = "a.b.c"\ntls = true', "'tls' is unknown or no text"),
        ('token = "a.b.c"\nmetadata_tls = "yes"', "'metadata_tls' is unknown or no true or false"),
    ],
)
def test_a_wrong_file_is_explained_without_its_secrets(tmp_path: Path, text: str, why: str) -> None:
    path = private(tmp_path / "c.toml", text)
    with pytest.raises(InvalidArgument, match=why) as caught:
        read_credentials(path)
    assert str(tmp_path) in str(caught.value)
    assert PLANTED not in str(caught.value)


@pytest.mark.parametrize("name", ["password", "token"])
def test_a_secret_that_a_repr_would_show_is_refused(name: str) -> None:
    user = {"user": "ann"} if name == "password" else {}
    for given in (PLANTED, PLANTED.encode()):
        with pytest.raises(InvalidArgument, match=rf"give {name}=Secret\(") as caught:
            Credentials(**user, **{name: given})  # type: ignore[arg-type]
        assert PLANTED not in str(caught.value)
    with pytest.raises(InvalidArgument, match="made of a str, not of bytes"):
        Secret(PLANTED.encode())  # type: ignore[arg-type]


def test_bytes_in_the_environment_that_are_no_text_are_explained() -> None:
    """They are surrogates in Python's strings, which no encoder accepts."""
    environment = {"LEDGERSTREAM_USER": "ann", "LEDGERSTREAM_PASSWORD": f"{PLANTED}\udcff"}
    with pytest.raises(InvalidArgument, match="the password is not text in UTF-8"):
        environment_settings(environment)
    with pytest.raises(InvalidArgument, match="the user is not text in UTF-8"):
        environment_settings(
            environment | {"LEDGERSTREAM_USER": "\udcff"} | {"LEDGERSTREAM_PASSWORD": "x"}
        )
    with pytest.raises(InvalidArgument, match="the token is not text in UTF-8"):
        environment_settings({"LEDGERSTREAM_TOKEN": f"{PLANTED}\udcff"})


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o602])
def test_a_file_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = private(tmp_path / "secret", PLANTED, mode)
    with pytest.raises(InvalidArgument, match=rf"has mode 0{mode:o}: others can read.* chmod 600"):
        read_secret(path)
    for closed in (0o400, 0o711):
        path.chmod(closed)
        assert read_secret(path).reveal() == PLANTED


def test_what_is_no_file_of_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="is empty"):
        read_secret(private(tmp_path / "empty", "\n"))
    with pytest.raises(InvalidArgument, match="cannot be read: Is a directory"):
        read_secret(tmp_path)
    big = private(tmp_path / "big", "a" * 70_000)
    with pytest.raises(InvalidArgument, match="more than 65536 bytes"):
        read_secret(big)
    big.write_bytes(b"\xff")
    with pytest.raises(InvalidArgument, match="not text in UTF-8"):
        read_secret(big)
    with pytest.raises(InvalidArgument, match="not a file"):
        read_secret(Path(os.devnull))
