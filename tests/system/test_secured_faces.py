"""Every face of a client takes the same credentials, and reports the same if it is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from examples import append_and_tail
from ledger.client import LedgerClient
from ledger.errors import Unauthorized
from stream import EARLIEST, Namespace, aio, blocking
from tests.secure_users import credentials_file, new_user
from tests.system.cluster import StandaloneCluster, wait_for

pytestmark = pytest.mark.system

Credentials = Path | None


class Face:
    """Streams of the namespace "faces", by one of the faces."""

    name: str

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def append(self, credentials: Credentials, stream: str, value: bytes) -> None:
        raise NotImplementedError

    def read(self, credentials: Credentials, stream: str) -> list[bytes]:
        raise NotImplementedError


class Trio(Face):
    name = "trio"

    def append(self, credentials: Credentials, stream: str, value: bytes) -> None:
        async def main() -> None:
            async with (
                Namespace.connect(self.uri, "faces", credentials=credentials) as namespace,
                namespace.writer(stream, create=True) as writer,
            ):
                await writer.append(value)

        trio.run(main)

    def read(self, credentials: Credentials, stream: str) -> list[bytes]:
        async def main() -> list[bytes]:
            async with Namespace.connect(self.uri, "faces", credentials=credentials) as namespace:
                return [bytes(each.value or b"") for each in await namespace.read_last(stream, 10)]

        return trio.run(main)


class Client(Trio):
    """A client that namespaces share."""

    name = "client"

    def read(self, credentials: Credentials, stream: str) -> list[bytes]:
        async def main() -> list[bytes]:
            async with LedgerClient.connect(self.uri, credentials=credentials) as client:
                records = await Namespace(client, "faces").read_last(stream, 10)
                return [bytes(each.value or b"") for each in records]

        return trio.run(main)


class Asyncio(Face):
    name = "asyncio"

    def append(self, credentials: Credentials, stream: str, value: bytes) -> None:
        async def main() -> None:
            async with (
                aio.LedgerClient.connect(self.uri, credentials=credentials) as client,
                aio.Namespace(client, "faces").writer(stream, create=True) as writer,
            ):
                await writer.append(value)

        asyncio.run(main())

    def read(self, credentials: Credentials, stream: str) -> list[bytes]:
        async def main() -> list[bytes]:
            connecting = aio.Namespace.connect(self.uri, "faces", credentials=credentials)
            async with connecting as namespace:
                return [bytes(each.value or b"") for each in await namespace.read_last(stream, 10)]

        return asyncio.run(main())


class Blocking(Face):
    name = "blocking"

    def append(self, credentials: Credentials, stream: str, value: bytes) -> None:
        with (
            blocking.LedgerClient.connect(self.uri, credentials=credentials) as client,
            blocking.Namespace(client, "faces").writer(stream, create=True) as writer,
        ):
            writer.append(value)

    def read(self, credentials: Credentials, stream: str) -> list[bytes]:
        connecting = blocking.Namespace.connect(self.uri, "faces", credentials=credentials)
        with connecting as namespace, namespace.reader(stream, start=EARLIEST) as reader:
            return [bytes(each.value or b"") for batch in reader.read_to_end()
                    for each in batch.records()]  # fmt: skip


@pytest.fixture(params=[Trio, Client, Asyncio, Blocking], ids=lambda kind: kind.name)
def face(request: pytest.FixtureRequest, secure: StandaloneCluster) -> Face:
    make: Callable[[str], Face] = request.param
    return make(secure.uri)


@pytest.fixture(scope="module")
def admin(secure: StandaloneCluster) -> Path:
    secure.run("namespace", "create", "faces")
    return secure.directory / "security" / "admin.toml"


@pytest.fixture(scope="module")
def reader(secure: StandaloneCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_user(secure, tmp_path_factory.mktemp("reader"), "rita", "faces:read")


@pytest.fixture(scope="module")
def stranger(secure: StandaloneCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_user(secure, tmp_path_factory.mktemp("stranger"), "stan", "face-*:write")


def test_credentials_are_one_argument_or_one_variable(
    face: Face, admin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    face.append(admin, face.name, b"by argument")
    monkeypatch.setenv("LEDGERSTREAM_CREDENTIALS", str(admin))
    face.append(None, face.name, b"by variable")
    assert face.read(None, face.name) == [b"by argument", b"by variable"]
    assert face.read(admin, face.name) == [b"by argument", b"by variable"]


def may_read(face: Face, credentials: Path, stream: str) -> bool:
    try:
        return face.read(credentials, stream) == [b"kept"]
    except Unauthorized:
        return False  # bookies follow a grant within a second


def test_a_refusal_names_the_user_the_role_and_the_namespace(
    face: Face, admin: Path, reader: Path, stranger: Path
) -> None:
    stream = f"{face.name}-rights"
    face.append(admin, stream, b"kept")
    wait_for(lambda: may_read(face, reader, stream))
    needs_write = r"User 'rita' needs the role write on namespace 'faces'. Cure: .*grant rita faces"
    with pytest.raises(Unauthorized, match=needs_write):
        face.append(reader, f"{stream}-new", b"refused")
    with pytest.raises(Unauthorized, match=r"User 'stan' needs the role read on namespace 'faces'"):
        face.read(stranger, stream)
    with pytest.raises(Unauthorized, match=r"requires authentication, or the role read on"):
        face.read(None, stream)
    assert face.read(admin, stream) == [b"kept"]


def test_a_wrong_password_is_named_and_not_shown(
    face: Face, admin: Path, secure: StandaloneCluster, tmp_path: Path
) -> None:
    stream = f"{face.name}-password"
    face.append(admin, stream, b"kept")
    # A name of its own for each face, because a bookie makes those wait that fail again.
    wrong = credentials_file(secure, tmp_path / "wrong.toml", f"user-{face.name}", "not-its-p4ss")
    with pytest.raises(Unauthorized, match=f"refused to authenticate user 'user-{face.name}'") as e:
        face.read(wrong, stream)
    assert "Cure: the credentials" in str(e.value)
    assert "not-its-p4ss" not in str(e.value)


def test_the_example_runs_on_a_secure_cluster(
    secure: StandaloneCluster, admin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trio.run(append_and_tail.main, secure.uri, str(admin))
    assert capsys.readouterr().out.count("appended") == append_and_tail.RECORDS


def test_the_command_says_the_same(secure: StandaloneCluster, admin: Path, stranger: Path) -> None:
    secure.run("append", "faces/command", "--credentials", str(admin), stdin=b"kept\n")
    refused = secure.try_run(
        "read", "faces/command", "--from", "earliest", "--credentials", str(stranger)
    )
    assert (refused.returncode, refused.stdout) == (1, b"")
    assert b"User 'stan' needs the role read on namespace 'faces'" in refused.stderr
