"""Content that others wrote, with codes that control a terminal: no command shows them."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import termios
from collections.abc import Iterator
from fcntl import ioctl

import pytest
import trio

from ledger.client import LedgerClient
from ledger.metastore import open_store
from tests.system.cluster import COMMAND, StandaloneCluster, environment

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202etxt\u200b\u2028\x7f"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\x9b31m\u202etxt\u200b\u2028\x7f"
HIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")
STYLE = re.compile(r"\x1b\[[01]m")
"""What tables themselves write: bold, and its end."""
LEDGER = 1
"""Ledger 0 is the segment of the stream."""
NAMESPACES = "/ledgerstream/namespaces"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A cluster with names, values and documents that are escape sequences."""
    cluster = StandaloneCluster(tmp_path_factory.mktemp("hostile") / "cluster", None, ())
    cluster.start()
    try:
        arguments = ("--key", ESCAPES, "--header", f"{ESCAPES}={ESCAPES}")
        cluster.run("append", "hostile/lines", *arguments, stdin=f"{ESCAPES}\n".encode())
        trio.run(plant, cluster.uri)
        yield cluster
    finally:
        cluster.stop()


async def plant(uri: str) -> None:
    async with LedgerClient.connect(uri) as client:
        async with client.create_ledger(custom={ESCAPES: ESCAPES.encode()}) as writer:
            await writer.append(ESCAPES.encode())
        assert writer.ledger_id == LEDGER
    async with open_store(uri) as store:
        document = json.dumps({"kind": ESCAPES, "version": 1}).encode()
        await store.create(f"{NAMESPACES}/{ESCAPES}", document)
        await store.create(f"{NAMESPACES}/hostile/streams/{ESCAPES}", document)


def shown(cluster: StandaloneCluster, *arguments: str) -> tuple[str, str]:
    """Returns what a command prints on a terminal, and on a stderr that is none."""
    terminal, its_end = os.openpty()
    ioctl(its_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))
    variables = environment(LEDGERSTREAM_CLUSTER=cluster.uri, TERM="xterm")
    command = [*COMMAND, *arguments]
    with subprocess.Popen(
        command, stdout=its_end, stderr=subprocess.PIPE, env=variables
    ) as process:
        os.close(its_end)
        output = b""
        try:
            while chunk := os.read(terminal, 65536):
                output += chunk
        except OSError:
            pass  # EIO: the command has ended
        finally:
            os.close(terminal)
        assert process.stderr is not None
        errors = process.stderr.read()
        process.wait(60)
    return output.decode().replace("\r\n", "\n"), errors.decode()


@pytest.mark.parametrize(
    "arguments",
    [
        ("read", "hostile/lines"),
        ("read", "hostile/lines", "-f", r"%k %v %h %n\n"),
        ("read", "hostile/lines", "--json"),
        ("tail", "hostile/lines", "--from", "earliest", "--count", "1"),
        ("ledger", "read", str(LEDGER)),
        ("ledger", "read", str(LEDGER), "--json"),
        ("ledger", "show", str(LEDGER)),
        ("ledger", "show", str(LEDGER), "--json"),
        ("namespace", "list"),
        ("namespace", "show", ESCAPES),
        ("stream", "list", "hostile"),
        ("stream", "list", "hostile", "--json"),
        ("stream", "show", f"hostile/{ESCAPES}"),
        ("status",),
        ("status", "--json"),
        ("janitor", "--once"),
        ("retention", "explain", "hostile/lines"),
        ("cursor", "list", f"hostile/{ESCAPES}"),
        ("context", "show", ESCAPES),
        ("metadata", "import", ESCAPES),
        (ESCAPES,),
    ],
    ids=lambda arguments: " ".join(arguments).replace(ESCAPES, "HOSTILE"),
)
def test_no_command_shows_codes_that_control_a_terminal(
    hostile: StandaloneCluster, arguments: tuple[str, ...]
) -> None:
    output, errors = shown(hostile, *arguments)
    assert output or errors
    for text in (STYLE.sub("", output), errors):
        assert HIDDEN.search(text) is None, text
        assert "Traceback" not in text


def test_json_on_a_terminal_is_the_same_document(hostile: StandaloneCluster) -> None:
    output, _ = shown(hostile, "read", "hostile/lines", "--json")
    record = json.loads(output)
    assert (record["key"], record["value"]) == (ESCAPES, ESCAPES)
    assert record["headers"] == [[ESCAPES, ESCAPES]]


def test_a_terminal_gets_bytes_as_they_are_only_if_it_asks_for_them(
    hostile: StandaloneCluster,
) -> None:
    assert shown(hostile, "read", "hostile/lines")[0] == f"{SHOWN}\n"
    assert shown(hostile, "ledger", "read", str(LEDGER))[0] == f"{SHOWN}\n"
    assert shown(hostile, "read", "hostile/lines", "--raw")[0] == f"{ESCAPES}\n"
    assert shown(hostile, "ledger", "read", str(LEDGER), "--raw")[0] == f"{ESCAPES}\n"


def test_a_pipe_gets_bytes_as_they_are(hostile: StandaloneCluster) -> None:
    assert hostile.run("read", "hostile/lines") == f"{ESCAPES}\n".encode()
    assert hostile.run("ledger", "read", str(LEDGER)) == f"{ESCAPES}\n".encode()
