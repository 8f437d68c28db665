"""Who a client is, out of its options, a file of credentials and the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.credentials import Credentials, Secret
from ledger.errors import InvalidArgument
from ledger.options import ClientOptions

PASSWORD = "not-to-be-shown"
ANN = Credentials(user="ann", password=Secret(PASSWORD))


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "ann.toml"
    path.write_text(
        f'user = "ann"\npassword = "{PASSWORD}"\ntls = "start_tls"\ntls_ca_file = "ca.pem"\n'
    )
    path.chmod(0o600)
    return str(path)


def test_a_file_says_who_the_client_is_and_how_it_encrypts(file: str, tmp_path: Path) -> None:
    options = ClientOptions(read_timeout_s=7).completed(file, {})
    assert options.credentials_file == file
    assert (options.tls, options.tls_ca_file) == ("start_tls", str(tmp_path / "ca.pem"))
    assert options.read_timeout_s == 7


def test_an_option_that_is_given_goes_before_the_file(file: str) -> None:
    assert ClientOptions(tls="direct").completed(file, {}).tls == "direct"


def test_credentials_may_be_given_as_such(file: str) -> None:
    options = ClientOptions().completed(ANN, {"LEDGERSTREAM_CREDENTIALS": file})
    assert (options.credentials, options.credentials_file) == (ANN, "")
    assert PASSWORD not in repr(options)


def test_credentials_are_given_once(file: str) -> None:
    for options in (ClientOptions(credentials=ANN), ClientOptions(credentials_file=file)):
        with pytest.raises(InvalidArgument, match="not both"):
            options.completed(file, {})


def test_the_environment_counts_where_nothing_else_says_it(file: str) -> None:
    environment = {"LEDGERSTREAM_CREDENTIALS": file, "LEDGERSTREAM_CLIENT_TLS": "direct"}
    options = ClientOptions(read_timeout_s=7).completed(None, environment)
    assert (options.credentials_file, options.tls, options.read_timeout_s) == (file, "direct", 7)
    said = ClientOptions(credentials=ANN)
    assert said.completed(None, environment) is said
    in_clear = ClientOptions(tls_checks_host_names=False)
    assert in_clear.completed(None, environment) is in_clear


def test_the_environment_may_have_the_secret_itself() -> None:
    environment = {"LEDGERSTREAM_USER": "ann", "LEDGERSTREAM_PASSWORD": PASSWORD}
    assert ClientOptions().completed(None, environment).credentials == ANN
    token = ClientOptions().completed(None, {"LEDGERSTREAM_TOKEN": PASSWORD}).credentials
    assert token == Credentials(token=Secret(PASSWORD))


def test_a_file_that_cannot_be_used_is_an_error_that_names_it(tmp_path: Path) -> None:
    for given, environment in (
        (tmp_path / "none.toml", {}),
        (None, {"LEDGERSTREAM_CREDENTIALS": str(tmp_path / "none.toml")}),
    ):
        with pytest.raises(InvalidArgument, match=r"none\.toml cannot be read"):
            ClientOptions().completed(given, environment)
