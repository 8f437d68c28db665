"""The figures of the source tree: what is counted, and what is not."""

from __future__ import annotations

import subprocess

import pytest

from tests.tidy.checkout import PRODUCT, ROOT
from tools import shape

LAYERS = """
[[tool.importlinter.contracts]]
type = "layers"
containers = ["ledger"]
layers = ["client", "core | wire", "(options) : errors"]

[[tool.importlinter.contracts]]
type = "forbidden"
source_modules = ["ledger.core"]
"""


@pytest.fixture
def tree() -> dict[str, str]:
    return {
        "pyproject.toml": LAYERS,
        "ledger/__init__.py": "",
        "ledger/client.py": "from ledger.core import entry\n" * 80,
        "ledger/answers.py": "from typing import TYPE_CHECKING\n",
        "ledger/core/__init__.py": "",
        "ledger/core/entry.py": "import ledger.core.quorum\n",
        "ledger/core/quorum.py": "",
        "ledger/errors.py": "",
        "ledger/proto/messages_pb2.py": "import ledger.client\n",
        "tests/test_client.py": "import ledger.client\n",
    }


def test_files_are_counted_without_generated_ones_and_other_folders(tree: dict[str, str]) -> None:
    found = shape.measure(tree, ["ledger"])
    assert (found.files, found.folders) == (7, 2)
    assert (found.widest, found.widest_files) == ("ledger", 4)
    assert found.small_files == 6
    assert found.unwanted_names == 1, "answers.py"


def test_modules_that_no_layer_names_are_found(tree: dict[str, str]) -> None:
    assert shape.outside_layers(tree) == ["ledger.answers", "ledger.proto"]
    assert shape.measure(tree, ["ledger"], with_layers=False).outside_layers is None


def test_an_import_circle_is_found(tree: dict[str, str]) -> None:
    assert shape.measure(tree, ["ledger"]).circles == 0
    tree["ledger/core/quorum.py"] = "def late() -> None:\n    import ledger.client\n"
    found = shape.measure(tree, ["ledger"])
    assert found.circles == found.circles_of_types == 1
    assert shape.circles(shape.import_graph(tree, with_types=False)) == [
        ["ledger.client", "ledger.core.entry", "ledger.core.quorum"]
    ]


@pytest.mark.parametrize("test", ["TYPE_CHECKING", "typing.TYPE_CHECKING"])
def test_imports_of_types_are_counted_apart(tree: dict[str, str], test: str) -> None:
    tree["ledger/core/quorum.py"] = f"if {test}:\n    from ledger.core.entry import Entry\n"
    found = shape.measure(tree, ["ledger"])
    assert (found.circles, found.circles_of_types) == (0, 1)


def test_two_circles_that_touch_nothing_common_are_two() -> None:
    graph = {"a": {"b"}, "b": {"a"}, "c": {"d", "a"}, "d": {"e"}, "e": {"c"}, "f": {"a", "c"}}
    assert sorted(shape.circles(graph)) == [["a", "b"], ["c", "d", "e"]]


def test_the_table_has_a_column_per_shape(tree: dict[str, str]) -> None:
    found = shape.measure(tree, ["ledger"])
    lines = shape.table({"before": found, "after": found}).splitlines()
    assert lines[:4] == [
        "| | before | after |",
        "|---|---|---|",
        "| files | 7 | 7 |",
        "| folders | 2 | 2 |",
    ]
    assert "| files per folder (mean) | 3.5 | 3.5 |" in lines
    assert "| widest folder | 4 (ledger) | 4 (ledger) |" in lines


def test_the_checkout_is_read() -> None:
    tree = shape.read_checkout()
    assert "pyproject.toml" in tree
    assert shape.measure(tree, PRODUCT).circles == 0, "modules import each other"


def test_a_commit_that_is_not_there_is_refused() -> None:
    is_checkout = subprocess.run(["git", "rev-parse"], cwd=ROOT, capture_output=True, check=False)
    if is_checkout.returncode:
        pytest.skip("needs a checkout of git")
    with pytest.raises(SystemExit, match="commit no-such-commit"):
        shape.read_commit("no-such-commit")
