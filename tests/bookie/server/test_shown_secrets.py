"""No repr, error, log line or audit line of a process has a secret in it."""

from __future__ import annotations

import logging
import pprint
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bookie.server.tokens import JwtVerifier
from ledger.core.authentication.bearer import bearer_message
from ledger.core.authentication.names import DIGEST_MD5, SCRAM_SHA_256, SCRAM_SHA_512
from ledger.core.authentication.scram import HASHES
from ledger.core.entry import Digest, DigestType, master_key
from ledger.credentials import Credentials, Secret, read_client_settings, read_credentials
from ledger.errors import InvalidArgument, Status, Unauthorized
from ledger.metastore import ClusterAddress
from ledger.metastore.cluster_secret import load_keys
from ledger.metastore.memory import MemoryStore
from ledger.metastore.users import UserStore, new_user
from ledger.metastore.zookeeper_access import load_access
from ledger.options import ClientOptions
from ledger.runtime.certificates import TlsContext, TlsFiles, server_context
from ledger.wire.messages import (
    AddRequest,
    AuthRequest,
    AuthResponse,
    BatchReadRequest,
    ReadRequest,
    Request,
    Response,
    WriteLacRequest,
)
from tests.bookie.server.test_authentication import guarded
from tests.bookie.server.test_tokens import ED, private, token
from tests.certificates import Authority
from tests.planted_secrets import PlantedSecrets, recognisable

PASSWORD, WRONG = recognisable("password"), recognisable("wrong")
LEDGERS, CLUSTER = recognisable("ledger"), recognisable("cluster-secret")
ZOOKEEPER, TOKEN = recognisable("zookeeper"), token()


def planted() -> PlantedSecrets:
    secrets = PlantedSecrets()
    for name in ("PASSWORD", "WRONG", "LEDGERS", "CLUSTER", "ZOOKEEPER"):
        secrets.plant(name, globals()[name])
    secrets.plant("the key of LEDGERS", master_key(LEDGERS.encode()))
    secrets.plant("TOKEN", TOKEN.rpartition(".")[2])
    return secrets


def show(secrets: PlantedSecrets, where: str, *values: Any) -> None:
    for value in values:
        for text in (repr(value), str(value), f"{value}", pprint.pformat(value)):
            secrets.search(f"{where}: {type(value).__name__}", text)


def show_error(secrets: PlantedSecrets, where: str, error: BaseException) -> None:
    """Searches an error, those that it comes from, and its traceback."""
    show(secrets, where, error, error.args, vars(error))
    secrets.search(where, "".join(traceback.format_exception(error)))
    for cause in (error.__cause__, error.__context__):
        if cause is not None:
            show_error(secrets, where, cause)


def private_file(path: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    return path


async def test_clients_and_bookies_show_no_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    secrets = planted()
    salts = dict.fromkeys(HASHES, b"0123456789abcdef")
    bob = new_user("bob", PASSWORD, salts=salts, now_ms=1, digest_md5=True)
    secrets.plant("the secret of DIGEST-MD5", bob.digest_md5 or b"")
    for mechanism, verifier in bob.verifiers.items():
        secrets.plant(f"stored key of {mechanism}", verifier.stored_key)
        secrets.plant(f"server key of {mechanism}", verifier.server_key)
    show(secrets, "a user", bob, bob.verifiers)
    audit = tmp_path / "audit.log"
    mechanisms = (SCRAM_SHA_256, SCRAM_SHA_512, DIGEST_MD5)
    async with (
        guarded(tmp_path, *mechanisms, audit_file=str(audit)) as cluster,
        MemoryStore(cluster.tree, lambda: 0) as store,
    ):
        await UserStore(store).create(bob)
        for mechanism in mechanisms:
            await use(cluster, mechanism, secrets)
        show(secrets, "the bookie", cluster.bookies[0], cluster.bookies[0].config, store)
        show(secrets, "users of the store", await UserStore(store).list())
    logged = [logging.Formatter().format(one) for one in caplog.records]
    secrets.search("the log", "\n".join(logged))
    assert any("authentication failed" in line for line in logged)
    secrets.search_files([audit])
    secrets.check()


async def use(cluster: Any, mechanism: str, secrets: PlantedSecrets) -> None:
    """Writes and reads a ledger, and fails to, by one mechanism."""
    password = LEDGERS.encode()
    who = Credentials(user="bob", password=Secret(PASSWORD), mechanism=mechanism)
    async with cluster.client(credentials=who, secrets_in_clear_allowed=True) as client:
        made = client.create_ledger(
            ensemble_size=1, write_quorum=1, ack_quorum=1, password=password
        )
        async with made as writer:
            await writer.append(b"x")
            show(secrets, "a writer", client, writer, writer.metadata, who)
        with pytest.raises(Unauthorized) as denied:
            await client.open_ledger(writer.ledger_id, password=WRONG.encode())
        show_error(secrets, "another key", denied.value)
        async with client.open_ledger(writer.ledger_id, password=password) as reader:
            show(secrets, "a reader", reader, reader.metadata, await reader.read(0, 0))
    other = Credentials(user="bob", password=Secret(WRONG), mechanism=mechanism)
    options: dict[str, Any] = {
        "credentials": other, "ensemble_change_timeout_s": 0.3, "secrets_in_clear_allowed": True,
    }  # fmt: skip
    show(secrets, "options", ClientOptions(**options))
    async with cluster.client(**options) as client:
        writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        with pytest.raises(Unauthorized) as refused:
            await writer.append(b"x")
        show_error(secrets, "a wrong password", refused.value)


def test_requests_show_no_key_and_no_proof() -> None:
    secrets = planted()
    key, entry = master_key(LEDGERS.encode()), b"entry"
    for body in (
        AddRequest(1, 2, key, entry),
        ReadRequest(1, 2, key, is_fencing=True),
        BatchReadRequest(1, 2, 3, 4, key, is_fencing=True),
        WriteLacRequest(1, 2, key, entry),
        AuthRequest("OAUTHBEARER", bearer_message(TOKEN)),
        AuthRequest("PLAIN", PASSWORD.encode()),
    ):
        show(secrets, "a request", Request(2, 0, body))
    answer = AuthResponse(Status.OK, "sasl", PASSWORD.encode())
    show(secrets, "an answer", Response(2, 0, answer), Digest(DigestType.HMAC, LEDGERS.encode()))
    secrets.check()


def wrong_files(directory: Path) -> dict[str, Callable[[], object]]:
    """Returns what fails, and has a secret to read first."""

    def credentials(name: str, text: str, mode: int = 0o600) -> Callable[[], object]:
        path = private_file(directory / name, text, mode)
        return lambda: read_credentials(path)

    _, key = Authority(directory).issue("bookie", "localhost", password=PASSWORD.encode())
    certificate, _ = Authority(directory, "other").issue("other", "localhost")
    wrong = str(private_file(directory / "key.password", WRONG))
    long = private_file(directory / "long", CLUSTER * 3000)
    short = private_file(directory / "short", f"{CLUSTER} {CLUSTER}\n")
    zookeeper = private_file(directory / "zookeeper", ZOOKEEPER)
    keys = private_file(directory / "keys.pem", private(ED))
    return {
        "not TOML": credentials("a", f"user = ann\npassword = {PASSWORD}"),
        "a text that does not end": credentials("b", f'password = "{PASSWORD}'),
        "others can read it": credentials("c", f'user = "ann"\npassword = "{PASSWORD}"', 0o644),
        "an unknown name": credentials("d", f'"{PASSWORD}" = 1\n'.replace(PASSWORD, "pasword")),
        "both": credentials("e", f'user = "a"\npassword = "{PASSWORD}"\ntoken = "{TOKEN}"'),
        "no user": credentials("f", f'password = "{PASSWORD}"'),
        "a list": credentials("g", f'user = "a"\npassword = ["{PASSWORD}"]'),
        "a mechanism": credentials("h", f'user = "a"\npassword = "{PASSWORD}"\nmechanism = "x"'),
        "a password with odd characters": lambda: new_user(
            "ann",
            f"\x00{PASSWORD}",
            salts=dict.fromkeys(HASHES, b"0" * 16),
            now_ms=0,
            digest_md5=True,
        ),
        "an odd token": lambda: bearer_message(f"{PASSWORD} "),
        "settings": lambda: read_client_settings(directory / "b"),
        "a secret that is too long": lambda: load_keys(str(long), {}),
        "a secret with spaces": lambda: load_keys(str(short), {}),
        "no user for ZooKeeper": lambda: load_access("", str(zookeeper), {}),
        "private keys as public ones": lambda: JwtVerifier(
            str(keys), audience="a", issuer="", user_claim="sub"
        ),
        "a key's password": lambda: TlsContext(
            TlsFiles(certificate=str(certificate), key=str(key), key_password=wrong),
            partial(server_context, "none"),
            is_server=True,
        ),
        "a user in the address": lambda: ClusterAddress.parse(f"zk://me:{ZOOKEEPER}@h:1/ledgers"),
        "another scheme": lambda: ClusterAddress.parse(f"http://me:{ZOOKEEPER}@h:1/ledgers"),
        "no scheme": lambda: ClusterAddress.parse(f"me:{ZOOKEEPER}@h:1/ledgers"),
    }


def test_errors_about_wrong_files_and_values_quote_no_secret(tmp_path: Path) -> None:
    secrets = planted()
    for what, fail in wrong_files(tmp_path).items():
        with pytest.raises((InvalidArgument, Unauthorized)) as failed:
            fail()
        show_error(secrets, what, failed.value)
    secrets.check()
