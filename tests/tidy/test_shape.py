"""Files and functions fit in a head, and modules say what they answer for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.checkout import PRODUCT, ROOT, name_of, python_files, tree_of

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
# The places where everything meets are the ones that rot: a lower wall for them.
LONG_FILES = {
    "bookie/bookie.py": "puts a bookie together: one place to see all of its parts",
    "bookie/config.py": "one table: the settings of a bookie, each with what it is for",
    "bookie/core/caches.py": "the write cache and the read cache, which share entries' places",
    "bookie/server/connection.py": "the loop of one connection, and the adds it throttles",
    "bookie/server/requests.py": "what each operation does, and what adds are refused",
    "bookie/storage/journal/journal.py": "the journal and the group it gathers for one write",
    "bookie/testing/cluster.py": "the simulated cluster: all that a test may do to its bookies",
    "ledger/client.py": "the facade: one method per operation, most of it docstrings",
    "ledger/core/recovery.py": "one state machine; what it knows of claims and adds is beside it",
    "ledger/connection/pool.py": "the connections of a client, and what each bookie understands",
    "connectors/spark/source/end_tracker.py": "the streams of a query, and who listens to them",
    "ledger/metastore/bookies.py": "the registry, and the bytes of what bookies publish in it",
    "ledger/metastore/memory.py": "the tree, and the session on it that follows the same rules",
    "ledger/metastore/sqlite/tree.py": "one file's tables: nodes, and the sessions that own some",
    "ledger/metastore/underreplication.py": "marks, locks and switches: one tree of Apache's",
    "ledger/reading/last_confirmed.py": "what a reader knows of the LAC, and its polls",
    "connectors/spark/source/stream_index.py": "what is known of one stream, and how it is found",
    "ledger/wire/v2.py": "one protocol: its layouts, and requests and responses in them",
    "stream/cli/streams.py": "the sub-commands of `stream`; half of it is their help",
    "stream/core/metadata/streams.py": "one document: its invariants and its legal changes",
    "stream/sinks/commit.py": "the attempts of one commit, which share what they have read",
    "stream/core/retention.py": "one policy, for streams and for partitioned ones",
    "stream/retention/trash.py": "deleted streams: each step into the trash, back, and out of it",
    "stream/store/streams.py": "namespaces and streams: their paths, and each way to change them",
    "tests/bookie/test_settings_arrive.py": "one table: each setting, and where it arrives",
    "tools/faces/generate.py": "one program; the exceptions it knows are in table.py",
    "stream/namespace.py": "the facade: one short method per operation, most of it docstrings",
}
"""Files of more than FILE_LINES_MAX lines, up to FILE_LINES_WALL, each with its reason."""
FILE_LINES_WALL = 700
SMALL_LINES = 60
SMALL_MODULES = {
    "bookie/autorecovery.py": "what a bookie's process may run beside the bookie",
    "bookie/startup/descriptors.py": "the limits of the process, apart from what decides them",
    "bookie/testing/volumes.py": "what a disk is made of; the disk that uses it is long already",
    "ledger/core/lac_hints.py": "a decision of the core, apart from the shell that asks it",
    "ledger/metastore/listed_ledgers.py": "a cache for one pass, which the store must not keep",
    "stream/core/merge_check.py": "a decision of the core, apart from the shell that asks it",
    "stream/core/strict_policy.py": "a decision of the core, apart from the shell that asks it",
    "ledger/wire/v2_status.py": "Apache's numbers alone, to be compared with Apache's table",
    "ledgerstream/aio.py": "a name of its own for `import ledgerstream.aio`",
    "ledgerstream/blocking.py": "a name of its own for `import ledgerstream.blocking`",
    "ledgerstream/spark.py": "a name of its own for `import ledgerstream.spark`",
    "ledgerstream/testing.py": "a name of its own for `import ledgerstream.testing`",
    "stream/aio/cursor_base.py": "the one part of cursors that is not generated",
    "stream/writing/conditional.py": "keeps the writer, where everything meets, below its wall",
}
"""Modules of less than SMALL_LINES lines that only one other imports, each with its reason."""
MEETING_PLACES = {
    "ledger/writing/writer.py": 300,
    "bookie/storage/ledger_storage.py": 300,
    "stream/writing/writer.py": 300,
}
UNWANTED_NAMES = {"util", "utils", "common", "helpers", "helper", "manager", "misc"}


def too_long_functions(tree: ast.Module, lines_max: int) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > lines_max:
                yield f"{node.name} (line {node.lineno}) has {lines} lines, at most {lines_max}"


GENERATED = "by `make faces`. Not to be edited."


@pytest.mark.parametrize("path", python_files(), ids=name_of)
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if GENERATED in text[:500]:
        return  # what it is made from is judged
    normal_max = FILE_LINES_WALL if name_of(path) in LONG_FILES else FILE_LINES_MAX
    lines_max = MEETING_PLACES.get(name_of(path), normal_max)
    lines = len(text.splitlines())
    assert lines <= lines_max, f"{name_of(path)} has {lines} lines, at most {lines_max}"
    assert not list(too_long_functions(tree_of(path), FUNCTION_LINES_MAX))


@pytest.mark.parametrize("path", python_files(*PRODUCT), ids=name_of)
def test_modules_say_what_they_answer_for(path: Path) -> None:
    tree = tree_of(path)
    assert not tree.body or ast.get_docstring(tree), "a module opens with its docstring"


def importers() -> dict[Path, set[Path]]:
    """Returns for each module of the product the modules of the product that import it."""
    product = python_files(*PRODUCT)
    modules = {dotted(path): path for path in product}
    found: dict[Path, set[Path]] = {path: set() for path in product}
    for path in product:
        for name in imported(tree_of(path)):
            if name in modules and modules[name] != path:
                found[modules[name]].add(path)
    return found


def dotted(path: Path) -> str:
    """Returns the name by which a file is imported."""
    return name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(tree: ast.Module) -> Iterator[str]:
    """Yields what a module imports: modules, and names in them, which may be modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)


def test_a_small_module_with_one_importer_has_a_reason() -> None:
    small = {
        name_of(path)
        for path, by in importers().items()
        if len(by) == 1
        and path.name != "__init__.py"
        and GENERATED not in path.read_text(encoding="utf-8")[:500]
        and len(path.read_text(encoding="utf-8").splitlines()) < SMALL_LINES
    }
    without = small - SMALL_MODULES.keys()
    assert not without, f"merge into its importer, or give a reason in SMALL_MODULES: {without}"
    assert not SMALL_MODULES.keys() - small, "these reasons are no longer needed"


def test_long_files_are_still_long() -> None:
    short = [
        name
        for name in LONG_FILES
        if len((ROOT / name).read_text(encoding="utf-8").splitlines()) <= FILE_LINES_MAX
    ]
    assert not short, "these reasons are no longer needed"


def test_importers_are_found() -> None:
    source = "import a.b\nfrom c import d\nif TYPE_CHECKING:\n    from c.e import F\n"
    assert set(imported(ast.parse(source))) == {"a.b", "c", "c.d", "c.e", "c.e.F"}


def test_names_say_what_a_file_is_about() -> None:
    vague = [name_of(path) for path in python_files() if path.stem in UNWANTED_NAMES]
    assert not vague


def test_a_long_function_is_noticed() -> None:
    source = "async def long() -> None:\n" + "    pass\n" * 5
    assert list(too_long_functions(ast.parse(source), 5)) == [
        "long (line 1) has 6 lines, at most 5"
    ]
    assert not list(too_long_functions(ast.parse(source), 6))
