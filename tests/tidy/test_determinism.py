"""What runs in the simulator must repeat exactly under one seed: no clocks, chance or threads.

Time comes in as an argument or from trio, chance as a `random.Random`. Only the real sides of
the doors and the places that put a process together may touch the machine's own; each is named
here with its reason.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.checkout import PRODUCT, name_of, python_files, tree_of

# Path (or folder, with a trailing slash) -> why it may.
REAL_SIDES = {
    "bookie/cli/bookie.py": "composition root",
    "bookie/cli/standalone.py": "composition root",
    "bookie/cli/directories.py": "composition root, for a bookie that is stopped",
    "ledger/cli/http_client.py": "called by commands, in a thread",
    "bookie/monitoring/http_authentication.py": "part of the same: hashes passwords in a thread",
    "bookie/monitoring/http.py": "real sockets, beside the bookie; loads libraries in a thread",
    "bookie/process.py": "composition root of one bookie process, with its C library's memory",
    "bookie/standalone/cluster.py": "composition root: starts processes",
    "bookie/standalone/forks.py": "forks processes",
    "bookie/standalone/supervisor.py": "starts processes",
    "bookie/standalone/zookeeper_process.py": "composition root of a ZooKeeper process",
    "bookie/storage/disk/real_disk.py": "the disk door's real side: files on threads",
    "bookie/storage/disk/read_only_disk.py": "part of the same: read only",
    "bookie/storage/disk/reads.py": "part of the same: reads, with a buffer for each thread",
    "bookie/storage/disk/threads.py": "part of the same: the threads",
    "bookie/storage/index/rocksdb.py": "the index door's real side",
    "bookie/testing/in_process.py": "a real cluster inside a test: a thread of its own",
    "connectors/spark/client/client_cache.py": "the client of a process, for Spark's threads",
    "connectors/spark/existence.py": "called by Spark's driver: says how long it tried",
    "connectors/spark/monitoring/lag.py": "a listener that Spark calls from threads of its own",
    "connectors/spark/monitoring/progress.py": "a bar on a terminal, beside Spark's job",
    "connectors/spark/sink/task_ledgers.py": "a Spark task: waits for the loop in a thread",
    "connectors/spark/sink/task_writer.py": "a Spark task, which keeps to a rate",
    "connectors/spark/source/stream_reader.py": "called by Spark's engine in a thread",
    "ledger/cli/": "composition root",
    "ledger/metastore/sqlite/notices.py": "part of the metadata door's real side: inotify, pidfds",
    "ledger/metastore/sqlite/store.py": "the metadata door's real side: SQLite on a thread",
    "ledger/metastore/zookeeper/session.py": "the metadata door's real side: waits for kazoo's end",
    "ledger/metastore/zookeeper/threads.py": "part of the same: kazoo's thread",
    "ledger/runtime/bridge.py": "a trio loop in a thread, for callers that are not trio",
    "ledger/runtime/shared_loop.py": "the one such loop of a process",
    "stream/aio/": "callers of that loop in asyncio",
    "stream/blocking/": "callers of that loop in threads",
    "stream/bridge/": "what those callers share",
    "stream/cli/": "composition root",
}
# Names a file may use though it is simulated: only its production entry does.
PERMITTED = {
    "bookie/startup/power_loss.py": {"uuid.uuid4"},
    "bookie/storage/yielding.py": {"time.sleep"},
    "ledger/client.py": {"random.SystemRandom", "time.time_ns"},
}
BANNED_MODULES = {"time", "secrets", "threading", "multiprocessing", "concurrent", "uuid"}
BANNED_NAMES = {
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
    "os.urandom",
    "os.getpid",
    "trio.to_thread.run_sync",
    "trio.from_thread.run",
    "random.SystemRandom",
}
BANNED_BUILTINS = {"id", "hash"}


def _imported(tree: ast.Module) -> dict[str, str]:
    """Local name -> full dotted name, for every import in the file."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                names[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _dotted(node: ast.expr, imported: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return imported.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value, imported)
        return f"{owner}.{node.attr}" if owner else None
    return None


def _is_banned(name: str) -> bool:
    module, _, rest = name.partition(".")
    if module in BANNED_MODULES:
        return bool(rest)
    # `random.Random` is how chance is passed in; its module-level functions share hidden state.
    return name in BANNED_NAMES or (module == "random" and rest[:1].islower())


def _is_set(node: ast.expr) -> bool:
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return isinstance(node, ast.Set | ast.SetComp) or (
        is_call and node.func.id in {"set", "frozenset"}  # type: ignore[attr-defined]
    )


def indeterminate(tree: ast.Module) -> Iterator[str]:
    """Each use of the machine's own time, chance, threads or order of addresses."""
    imported = _imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            name = _dotted(node, imported)
            if name and _is_banned(name):
                yield f"line {node.lineno}: {name}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in BANNED_BUILTINS and node.func.id not in imported:
                yield f"line {node.lineno}: {node.func.id}()"
        elif isinstance(node, ast.Global):
            yield f"line {node.lineno}: global {', '.join(node.names)}"
        elif isinstance(node, ast.For | ast.comprehension) and _is_set(node.iter):
            yield f"line {node.iter.lineno}: iteration over a set"


def _is_real_side(path: Path) -> bool:
    name = name_of(path)
    return any(
        name == real or (real.endswith("/") and name.startswith(real)) for real in REAL_SIDES
    )


SIMULATED = [path for path in python_files(*PRODUCT) if not _is_real_side(path)]


@pytest.mark.parametrize("path", SIMULATED, ids=name_of)
def test_simulated_code_is_determinate(path: Path) -> None:
    permitted = PERMITTED.get(name_of(path), set())
    found = [use for use in indeterminate(tree_of(path)) if use.split(": ")[1] not in permitted]
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time()",
        "import time as t\nx = t.monotonic",
        "from time import time\ntime()",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import datetime as d\nd.utcnow()",
        "import random\nrandom.random()",
        "from random import choice\nchoice([1])",
        "import os\nos.urandom(8)",
        "from uuid import uuid4\nuuid4()",
        "import threading\nthreading.Thread()",
        "import trio\ntrio.to_thread.run_sync(print)",
        "id(object())",
        "for x in {1, 2}: pass",
        "[x for x in set([1])]",
        "def f():\n    global x\n    x = 1",
    ],
)
def test_the_machines_own_is_noticed(source: str) -> None:
    assert list(indeterminate(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    [
        "import random\nrng = random.Random(7)\nrng.random()",
        "import trio\ntrio.current_time()",
        "def f(id: int) -> int:\n    return id",
        "for x in sorted({1, 2}): pass",
        "timeout = 1\ndef time() -> int:\n    return 1\ntime()",
    ],
)
def test_what_is_passed_in_is_fine(source: str) -> None:
    assert not list(indeterminate(ast.parse(source)))
