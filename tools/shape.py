"""Prints the shape of the source tree in figures, for the product and for its tests.

Counted are the Python files that git tracks or would track, without those that protoc generates
(`*_pb2.py`): at commit 058f555 the product had 435 of them, 124 under 80 lines. A folder counts if
it holds one of these files itself. A module is outside the layers if it is a direct child of a
package for which pyproject.toml declares layers, and none of them names it. An import circle is a
set of modules of which each imports, directly or through others, each other one; the second figure
counts the imports under TYPE_CHECKING, too. Unwanted words are those of tests/tidy/word_list.py.

`python -m tools.shape` prints the checkout, `--baseline COMMIT` beside it what a commit had. Must
never change a file.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import sys
import tarfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from posixpath import basename, dirname

from tests.tidy.checkout import PRODUCT, ROOT, files, name_of
from tests.tidy.word_list import FILE_NAMES, in_name

SMALL_LINES = 80

Tree = Mapping[str, str]
"""The text of each file, by its path in the repository."""
Graph = Mapping[str, Set[str]]
"""The modules that each module imports."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The figures of one part of the tree."""

    files: int
    folders: int
    widest: str
    """The folder with the most files."""
    widest_files: int
    small_files: int
    outside_layers: int | None
    """None where no layers are declared."""
    circles: int
    circles_of_types: int
    unwanted_names: int

    def rows(self) -> list[tuple[str, str]]:
        """The figures with their names, as they are printed."""
        outside = "-" if self.outside_layers is None else str(self.outside_layers)
        return [
            ("files", str(self.files)),
            ("folders", str(self.folders)),
            ("files per folder (mean)", f"{self.files / max(1, self.folders):.1f}"),
            ("widest folder", f"{self.widest_files} ({self.widest})"),
            (f"files under {SMALL_LINES} lines", str(self.small_files)),
            ("modules that no layer names", outside),
            ("import circles", str(self.circles)),
            ("import circles, with imports of types", str(self.circles_of_types)),
            ("files with unwanted words in their name", str(self.unwanted_names)),
        ]


def measure(tree: Tree, folders: Sequence[str], *, with_layers: bool = True) -> Shape:
    """Returns the figures of the Python files under these top-level folders."""
    part = {name: text for name, text in tree.items() if _is_counted(name, folders)}
    by_folder = Counter(dirname(name) for name in part)
    widest, widest_files = max(by_folder.items(), key=lambda item: (item[1], item[0]))
    return Shape(
        files=len(part),
        folders=len(by_folder),
        widest=widest,
        widest_files=widest_files,
        small_files=sum(len(text.splitlines()) < SMALL_LINES for text in part.values()),
        outside_layers=len(outside_layers(tree)) if with_layers else None,
        circles=len(circles(import_graph(part, with_types=False))),
        circles_of_types=len(circles(import_graph(part, with_types=True))),
        unwanted_names=sum(map(_is_unwanted, part)),
    )


def _is_counted(name: str, folders: Sequence[str]) -> bool:
    is_ours = name.endswith(".py") and not name.endswith("_pb2.py")
    return is_ours and name.split("/")[0] in folders


def _is_unwanted(name: str) -> bool:
    return any(in_name(basename(name).removesuffix(".py"), unwanted=FILE_NAMES))


# Layers


def outside_layers(tree: Tree) -> list[str]:
    """Returns the modules and packages for whose parent there are layers that do not name them."""
    contracts = tomllib.loads(tree["pyproject.toml"])["tool"]["importlinter"]["contracts"]
    found = []
    for contract in contracts:
        named = {name for layer in contract.get("layers", ()) for name in _names_of(layer)}
        for container in contract.get("containers", ()):
            found += [
                f"{container}.{child}"
                for child in sorted(_children(tree, container))
                if child not in named
            ]
    return found


def _names_of(layer: str) -> list[str]:
    return [name.strip(" ()") for name in layer.replace(":", "|").split("|")]


def _children(tree: Tree, container: str) -> set[str]:
    folder = container.replace(".", "/") + "/"
    found = set()
    for name in tree:
        if name.startswith(folder) and name.endswith(".py"):
            child, _, below = name.removeprefix(folder).partition("/")
            found.add(child if below else child.removesuffix(".py"))
    return found - {"__init__"}


# Imports


def import_graph(tree: Tree, *, with_types: bool) -> Graph:
    """Returns which modules of the tree import which of them."""
    modules = {_dotted(name): name for name in tree}
    return {
        module: {
            imported
            for imported in _imports(ast.parse(tree[name]), with_types=with_types, of=modules)
            if imported != module
        }
        for module, name in modules.items()
    }


def _dotted(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imports(node: ast.AST, *, with_types: bool, of: Mapping[str, str]) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names if alias.name in of)
        elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
            for alias in child.names:
                module = f"{child.module}.{alias.name}"
                if module in of or child.module in of:
                    yield module if module in of else child.module
        elif isinstance(child, ast.If) and not with_types and _is_type_checking(child.test):
            for below in child.orelse:
                yield from _imports(below, with_types=with_types, of=of)
        else:
            yield from _imports(child, with_types=with_types, of=of)


def _is_type_checking(test: ast.expr) -> bool:
    return "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", ""))


def circles(graph: Graph) -> list[list[str]]:
    """Returns the sets of modules, each sorted, that reach each other (Tarjan's algorithm)."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    on_path: set[str] = set()
    found: list[list[str]] = []
    for root in graph:
        if root in numbers:
            continue
        calls: list[tuple[str, Iterator[str]]] = []
        following: str | None = root
        while following is not None or calls:
            if following is not None:
                numbers[following] = lowest[following] = len(numbers)
                path.append(following)
                on_path.add(following)
                calls.append((following, iter(sorted(graph[following]))))
                following = None
            module, left = calls[-1]
            for imported in left:
                if imported not in numbers:
                    following = imported
                    break
                if imported in on_path:
                    lowest[module] = min(lowest[module], numbers[imported])
            else:
                calls.pop()
                if calls:
                    caller = calls[-1][0]
                    lowest[caller] = min(lowest[caller], lowest[module])
                if lowest[module] == numbers[module]:
                    at = path.index(module)
                    circle, path = path[at:], path[:at]
                    on_path -= set(circle)
                    if len(circle) > 1:
                        found.append(sorted(circle))
    return found


# Reading and printing


def read_checkout() -> Tree:
    """Returns the files of the checkout that are needed here."""
    return {
        name_of(path): path.read_text(encoding="utf-8")
        for path in files()
        if path.suffix == ".py" or name_of(path) == "pyproject.toml"
    }


def read_commit(commit: str) -> Tree:
    """Returns the same files as a commit of this repository has them."""
    archive = subprocess.run(
        ["git", "archive", "--format=tar", commit], cwd=ROOT, capture_output=True, check=False
    )
    if archive.returncode:
        raise SystemExit(f"commit {commit}: {archive.stderr.decode().strip()}")
    tree: dict[str, str] = {}
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isfile() else None
            if content and (member.name.endswith(".py") or member.name == "pyproject.toml"):
                tree[member.name] = content.read().decode()
    return tree


def table(columns: Mapping[str, Shape]) -> str:
    """Returns a table in Markdown with one column of figures per shape."""
    lines = [f"| | {' | '.join(columns)} |", f"|---{'|---' * len(columns)}|"]
    rows = [shape.rows() for shape in columns.values()]
    for cells in zip(*rows, strict=True):
        lines.append(f"| {cells[0][0]} | {' | '.join(value for _, value in cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools.shape", description="the source tree in figures")
    parser.add_argument("--baseline", metavar="COMMIT", help="show what this commit had, too")
    parser.add_argument(
        "--names",
        action="store_true",
        help="list modules outside layers, import circles and files with unwanted words",
    )
    arguments = parser.parse_args()
    trees = {"now": read_checkout()}
    if arguments.baseline:
        trees = {arguments.baseline: read_commit(arguments.baseline), **trees}
    product = {f"product, {name}": measure(tree, PRODUCT) for name, tree in trees.items()}
    tests = {
        f"tests, {name}": measure(tree, ("tests",), with_layers=False)
        for name, tree in trees.items()
    }
    sys.stdout.write(table({**product, **tests}))
    if arguments.names:
        tree = trees["now"]
        part = {name: text for name, text in tree.items() if _is_counted(name, PRODUCT)}
        for module in outside_layers(tree):
            sys.stdout.write(f"outside the layers: {module}\n")
        for circle in circles(import_graph(part, with_types=True)):
            sys.stdout.write(f"import circle: {', '.join(circle)}\n")
        for name in filter(_is_unwanted, sorted(part)):
            sys.stdout.write(f"unwanted word: {name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
