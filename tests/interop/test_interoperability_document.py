"""The programs in docs/interoperability.md run on Apache's bookies, as documented.

Reading from a cluster changes no node of ZooKeeper and fences no writer.
"""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import trio
from kazoo.client import KazooClient

from tests.interop.conftest import GetApacheBookies, GetJava
from tests.interop.java_client import JavaClient, payload
from tests.interop.timeouts import PATIENCE_S
from tests.interop.versions import VERSIONS
from tests.system.cluster import environment
from tests.tidy.checkout import ROOT

pytestmark = [pytest.mark.interop, pytest.mark.zookeeper]

NEWEST = VERSIONS[-1]
SIZE = 100


def programs() -> list[str]:
    text = (ROOT / "docs" / "interoperability.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


async def output_of(*arguments: str) -> list[str]:
    """Returns the lines that a Python program prints; its exit code must be 0."""
    done = await trio.run_process(
        [sys.executable, "-W", "error", *arguments],
        capture_stdout=True,
        stderr=subprocess.STDOUT,
        env=environment(),
        check=False,
    )
    output = done.stdout.decode()
    assert done.returncode == 0, output
    return output.splitlines()


async def written(java: JavaClient, count: int) -> tuple[int, int]:
    """Creates an open ledger of `count` entries as Pulsar does; returns its handle and id."""
    made = await java.call("create", digest="CRC32C", password=b"")
    handle = made["handle"]
    await java.call("append_many", handle=handle, seed=1, count=count, size=SIZE)
    return handle, made["ledger"]


def nodes_of(uri: str) -> dict[str, tuple[bytes, int, int]]:
    """Returns every node of the cluster: data, version and last change, also of its children."""
    hosts, _, path = uri.removeprefix("zk://").partition("/")
    zookeeper = KazooClient(hosts=hosts)
    zookeeper.start()
    found: dict[str, tuple[bytes, int, int]] = {}
    try:
        todo = ["/" + path.rpartition("/")[0]]
        while todo:
            at = todo.pop()
            data, stat = zookeeper.get(at)
            found[at] = (data, stat.mzxid, stat.pzxid)
            todo += [f"{at.rstrip('/')}/{child}" for child in zookeeper.get_children(at)]
    finally:
        zookeeper.stop()
        zookeeper.close()
    return found


async def test_ten_lines_read_a_ledger_of_an_existing_cluster(
    apache_bookies: GetApacheBookies, java: GetJava, tmp_path: Path
) -> None:
    reading, _ = programs()
    assert len([line for line in reading.splitlines() if line]) == 10, "ten lines, as promised"
    program = tmp_path / "read.py"
    program.write_text(reading)
    uri = apache_bookies(NEWEST).uri
    async with java(NEWEST, uri) as writer:
        handle, ledger_id = await written(writer, 50)
        # The next entry confirms the previous one.
        await writer.call("append_many", handle=handle, seed=1, first=50, count=1, size=SIZE)
        before = await trio.to_thread.run_sync(partial(nodes_of, uri))
        with trio.fail_after(PATIENCE_S):
            lines = await output_of(str(program), uri, str(ledger_id))
        assert await trio.to_thread.run_sync(partial(nodes_of, uri)) == before
        assert lines == [f"{i} {payload(1, i, SIZE)[:20]!r}" for i in range(50)]
        await writer.call("append_many", handle=handle, seed=1, first=51, count=9, size=SIZE)
        closed = await writer.call("close", handle=handle)
        assert closed["last"] == 59, "the writer was left alone"


async def test_ten_lines_write_a_ledger_that_java_reads(
    apache_bookies: GetApacheBookies, java: GetJava, tmp_path: Path
) -> None:
    _, writing = programs()
    program = tmp_path / "write.py"
    program.write_text(writing)
    uri = apache_bookies(NEWEST).uri
    with trio.fail_after(PATIENCE_S):
        (line,) = await output_of(str(program), uri)
    async with java(NEWEST, uri) as reader:
        opened = await reader.call("open", ledger=int(line), digest="CRC32C", password=b"secret")
        assert opened["closed"]
        assert opened["lac"] == 99


async def test_the_example_lists_and_tails(apache_bookies: GetApacheBookies, java: GetJava) -> None:
    uri = apache_bookies(NEWEST).uri
    example = ["-m", "examples.bookkeeper_reader", uri]
    async with java(NEWEST, uri) as writer:
        handle, ledger_id = await written(writer, 20)
        with trio.fail_after(PATIENCE_S):
            listed = {
                line.split("\t")[0]: line.split("\t")[1:] for line in await output_of(*example)
            }
            assert listed[str(ledger_id)][:2] == ["open", "-"]

            tailed: list[str] = []

            async def tail() -> None:
                tailed.extend(await output_of(*example, str(ledger_id)))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(tail)
                await writer.call(
                    "append_many", handle=handle, seed=1, first=20, count=20, size=SIZE
                )
                await writer.call("close", handle=handle)
        assert tailed == [f"{i}\t{SIZE}\t{payload(1, i, SIZE)[:40]!r}" for i in range(40)]
        listed = {line.split("\t")[0]: line.split("\t")[1:] for line in await output_of(*example)}
        assert listed[str(ledger_id)][:2] == ["closed", "39"]
