"""Content that others wrote, with codes that control a terminal: no command shows them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
import trio

from ledger.client import LedgerClient
from ledger.metastore import open_store
from ledger.metastore.bookies import BookieInfo, encode_info
from tests.attacks.clusters import VICTIM, AttackedCluster
from tests.system.cluster import StandaloneCluster

pytestmark = pytest.mark.system

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202etxt\u200b\u2028\x7f"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\x9b31m\u202etxt\u200b\u2028\x7f"
HIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")
STYLE = re.compile(r"\x1b\[[01]m")
"""What tables themselves write: bold, and its end."""
NAMESPACES = "/ledgerstream/namespaces"
BOOKIES = "/ledgers/available"
LINES = f"{VICTIM}/escapes"


@pytest.fixture(scope="module")
def hostile(open_cluster: AttackedCluster) -> Iterator[StandaloneCluster]:
    """A cluster with names, values, documents and a bookie that are escape sequences."""
    processes = open_cluster.processes
    arguments = ("--key", ESCAPES, "--header", f"{ESCAPES}={ESCAPES}")
    processes.run("append", LINES, *arguments, stdin=f"{ESCAPES}\n".encode())
    trio.run(plant, processes.uri)
    yield processes
    trio.run(remove, processes.uri)


HOSTILE_NODES = (
    f"{NAMESPACES}/{ESCAPES}",
    f"{NAMESPACES}/{VICTIM}/streams/{ESCAPES}",
    f"{BOOKIES}/{ESCAPES}",
    f"{BOOKIES}/127.0.0.1:1",
)


async def plant(uri: str) -> None:
    document = json.dumps({"kind": ESCAPES, "version": 1}).encode()
    info = BookieInfo("127.0.0.1", 1, properties={"version": ESCAPES, "software": ESCAPES})
    contents = (document, document, b"", encode_info(info))
    async with open_store(uri) as store:
        for path, content in zip(HOSTILE_NODES, contents, strict=True):
            await store.create(path, content)


async def remove(uri: str) -> None:
    async with open_store(uri) as store:
        for path in HOSTILE_NODES:
            await store.delete(path)


@pytest.fixture(scope="module")
def ledger(hostile: StandaloneCluster) -> str:
    """A ledger with an entry and custom metadata that are escape sequences."""

    async def create() -> str:
        async with LedgerClient.connect(hostile.uri) as client:
            async with client.create_ledger(custom={ESCAPES: ESCAPES.encode()}) as writer:
                await writer.append(ESCAPES.encode())
            return str(writer.ledger_id)

    return trio.run(create)


def shown(cluster: StandaloneCluster, *arguments: str) -> tuple[str, str]:
    """Returns what a command prints on a terminal, and on a stderr that is none."""
    done = cluster.run_on_terminal(*arguments)
    return done.stdout.decode().replace("\r\n", "\n"), done.stderr.decode()


def assert_shows_no_codes(cluster: StandaloneCluster, *arguments: str) -> None:
    output, errors = shown(cluster, *arguments)
    assert output or errors
    for text in (STYLE.sub("", output), errors):
        assert HIDDEN.search(text) is None, text
        assert "Traceback" not in text


@pytest.mark.parametrize(
    "arguments",
    [
        ("read", LINES),
        ("read", LINES, "-f", r"%k %v %h %n\n"),
        ("read", LINES, "--json"),
        ("tail", LINES, "--from", "earliest", "--count", "1"),
        ("ledger", "read", "LEDGER"),
        ("ledger", "read", "LEDGER", "--json"),
        ("ledger", "show", "LEDGER"),
        ("ledger", "show", "LEDGER", "--json"),
        ("namespace", "list"),
        ("namespace", "show", ESCAPES),
        ("stream", "list", VICTIM),
        ("stream", "list", VICTIM, "--json"),
        ("stream", "show", f"{VICTIM}/{ESCAPES}"),
        ("bookie", "list"),
        ("bookie", "list", "--json"),
        ("status",),
        ("status", "--json"),
        ("janitor", "--once"),
        ("retention", "explain", LINES),
        ("cursor", "list", f"{VICTIM}/{ESCAPES}"),
        ("context", "show", ESCAPES),
        ("metadata", "import", ESCAPES),
        (ESCAPES,),
    ],
    ids=lambda arguments: " ".join(arguments).replace(ESCAPES, "HOSTILE"),
)
def test_no_command_shows_codes_that_control_a_terminal(
    hostile: StandaloneCluster, ledger: str, arguments: tuple[str, ...]
) -> None:
    assert_shows_no_codes(hostile, *(ledger if one == "LEDGER" else one for one in arguments))


async def test_nor_does_one_of_a_secured_cluster(secured_cluster: AttackedCluster) -> None:
    async with (
        secured_cluster.namespace() as namespace,
        namespace.writer("escapes", create=True) as writer,
    ):
        await writer.append(ESCAPES.encode(), key=ESCAPES.encode())
    commands = (("read", LINES), ("read", LINES, "--json"), ("user", "list"))
    path = f"/ledgerstream/users/{ESCAPES}"
    async with open_store(secured_cluster.processes.uri) as store:
        await store.create(path, ESCAPES.encode())
        try:
            for command in commands:
                arguments = *command, *secured_cluster.as_admin()
                assert_shows_no_codes(secured_cluster.processes, *arguments)
        finally:
            await store.delete(path)


def test_json_on_a_terminal_is_the_same_document(hostile: StandaloneCluster) -> None:
    output, _ = shown(hostile, "read", LINES, "--json")
    record = json.loads(output)
    assert (record["key"], record["value"]) == (ESCAPES, ESCAPES)
    assert record["headers"] == [[ESCAPES, ESCAPES]]


def test_a_terminal_gets_bytes_as_they_are_only_if_it_asks_for_them(
    hostile: StandaloneCluster, ledger: str
) -> None:
    assert shown(hostile, "read", LINES)[0] == f"{SHOWN}\n"
    assert shown(hostile, "ledger", "read", ledger)[0] == f"{SHOWN}\n"
    assert shown(hostile, "read", LINES, "--raw")[0] == f"{ESCAPES}\n"
    assert shown(hostile, "ledger", "read", ledger, "--raw")[0] == f"{ESCAPES}\n"


def test_a_pipe_gets_bytes_as_they_are(hostile: StandaloneCluster, ledger: str) -> None:
    assert hostile.run("read", LINES) == f"{ESCAPES}\n".encode()
    assert hostile.run("ledger", "read", ledger) == f"{ESCAPES}\n".encode()
