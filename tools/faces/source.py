"""Reads the source of the trio classes: methods, annotations and docstrings, for generate.py."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tests.tidy.checkout import ROOT
from tools.faces.table import FACES


@cache
def source_of(module: str) -> str:
    return (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")


@cache
def tree_of_module(module: str) -> ast.Module:
    return ast.parse(source_of(module))


@cache
def names_of(module: str) -> dict[str, str]:
    """Returns the origin of each name used in a module: name -> "module:name"."""
    names: dict[str, str] = {}
    for node in ast.walk(tree_of_module(module)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}:{alias.name}"
    for node in tree_of_module(module).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names[node.name] = f"{module}:{node.name}"
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    names[target.id] = f"{module}:{target.id}"
    return names


_FILE_NAMES = {"stream.partitions.writer": "partitioned_writer"}
"""Faces of trio modules whose last name is taken by another one."""


def trio_module_of(name: str) -> str:
    """Returns the module where the trio class or function of this name is defined."""
    if name in FACES and FACES[name].home:
        return FACES[name].home
    module: str = getattr(importlib.import_module("stream"), name).__module__
    return module


def home_of(name: str) -> str:
    """Returns the module below `stream.aio` and `stream.blocking` that holds the face of `name`."""
    module = trio_module_of(name)
    return _FILE_NAMES.get(module, module.rpartition(".")[2])


Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Method:
    module: str
    node: Function

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def decorators(self) -> list[str]:
        return [ast.unparse(each) for each in self.node.decorator_list]

    @property
    def returns(self) -> str:
        return ast.unparse(self.node.returns) if self.node.returns else "None"

    @property
    def docstring(self) -> str:
        """The docstring as in the source, with its quotes; "" if there is none."""
        first = self.node.body[0]
        if ast.get_docstring(self.node) is None:
            return ""
        text = ast.get_source_segment(source_of(self.module), first)
        assert text is not None, "a docstring has source"
        return text


def class_node(module: str, name: str) -> ast.ClassDef:
    for node in tree_of_module(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    raise AssertionError(f"no class {name} in {module}")


def awaits(origin: str) -> bool:
    """Returns whether this is a class of `stream` that only trio can use."""
    module, name = origin.split(":")
    if not module.startswith("stream."):
        return False
    cls = getattr(importlib.import_module(module), name)
    return inspect.isclass(cls) and any(
        inspect.iscoroutinefunction(each) and is_public(key) for key, each in vars(cls).items()
    )


def is_public(name: str) -> bool:
    return not name.startswith("_") or name in {
        "__init__", "__aenter__", "__aexit__", "__aiter__", "__anext__",
    }  # fmt: skip


def methods_of(name: str) -> Iterator[Method]:
    """Yields the public methods of the trio class and its bases, in the order of their source."""
    cls = getattr(importlib.import_module(trio_module_of(name)), name)
    seen: set[str] = set()
    for each in inspect.getmro(cls):
        if not each.__module__.startswith("stream."):
            continue
        found = [
            Method(each.__module__, node)
            for node in class_node(each.__module__, each.__name__).body
            if isinstance(node, Function) and is_public(node.name) and node.name not in seen
        ]
        seen |= {method.name for method in found}
        yield from found
