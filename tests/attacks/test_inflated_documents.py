"""A document of the metadata, of a few KB, that inflates to millions of values: it is refused
before it takes memory, and what does not need it continues."""

from __future__ import annotations

import re
import subprocess
import sys
import zlib

import pytest

from ledger.metastore import open_store
from tests.attacks.clusters import VICTIM, AttackedCluster, append
from tests.stream.whole_streams import read_values
from tests.system.cluster import environment

pytestmark = pytest.mark.system

MIB = 1 << 20
BOMB = zlib.compress(b"[" + b"[]," * 5_333_000 + b"1]", 9)
_MEASURED = """
import atexit, runpy, sys
status = lambda: sys.stderr.write(open("/proc/self/status").read())
atexit.register(status)
sys.argv[0] = "ledgerstream"
runpy.run_module("stream.cli", run_name="__main__")
"""


def run_measured(cluster: AttackedCluster, *arguments: str) -> tuple[int, str, int]:
    """Returns the exit code of a command, its stderr, and the most memory that it had, in bytes."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _MEASURED, *arguments, *cluster.as_admin()],
        capture_output=True,
        env=environment(LEDGERSTREAM_CLUSTER=cluster.processes.uri),
        timeout=120,
        check=False,
    )
    said, _, status = done.stderr.decode().partition("Name:\t")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return done.returncode, said, int(found.group(1)) * 1024


async def test_an_inflated_document_is_refused_unparsed(target: AttackedCluster) -> None:
    assert len(BOMB) < 20_000
    command = ("janitor", "--once") if target.is_secured else ("read", f"{VICTIM}/bomb")
    async with target.namespace() as namespace, open_store(target.processes.uri) as store:
        bomb = f"/ledgerstream/namespaces/{VICTIM}/streams/bomb"
        await store.create(bomb, BOMB)
        try:
            code, said, most = run_measured(target, *command)
            assert "elements, limit 1000000" in said, (code, said)
            assert "Traceback" not in said
            assert most < 180 * MIB, f"{command} took {most >> 20} MiB"
            await append(namespace, "beside-a-bomb", [b"a"])
            assert await read_values(namespace, "beside-a-bomb") == [b"a"]
        finally:
            await store.delete(bomb)
