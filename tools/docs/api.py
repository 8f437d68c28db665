"""Writes docs/api.md from types and docstrings: `python -m tools.docs.api`.

A test checks that the document is up to date. Every public name of `stream` is in a group below.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise

from tests.tidy.checkout import ROOT
from tools.faces.source import Method, class_node, is_public, methods_of, names_of, source_of
from tools.faces.table import FACES

DOCUMENT = ROOT / "docs" / "api.md"
GROUPS = {
    "Namespaces": "Namespace NamespaceMetadata NamespaceSettings create_namespace list_namespaces "
    "delete_namespace StreamInfo StreamMetadata Segment SegmentState ProducerState",
    "Writing": "StreamWriter Ticket WriterOptions StreamWriterStatistics Producer Receipt "
    "ReceiptAck ReceiptTicket",
    "Reading": "StreamReader BackwardBatches Record NULL RecordBatch OnTruncated MergedReader "
    "MergedRecord MergedBatch OrderBy",
    "Places": "Position Start Edge EARLIEST LATEST FromSequence FromTime FromEventTime FromCursor "
    "FromEnd parse_start",
    "Cursors and consumer groups": "Cursor CursorLag CursorMetadata Consumer Delivery "
    "RecordDelivery GroupInfo GroupPartition",
    "Partitioned streams": "PartitionedWriter PartitionTicket PartitionPosition "
    "PartitionedWriterStatistics PartitionedStream PartitionedInfo partition_of",
    "Retention and trash": "RetentionPlan SegmentPlan Verdict TrashEntry Janitor SweepReport "
    "MergeReport",
    "Copies": "StreamReport SegmentReport LedgerReport CopyFault CopyState CopyVerdict "
    "VerifyProgress Canary CanaryOptions CanaryRound",
    "Entries": "encode decode Compression",
    "Errors": "WouldBlock",
}
_HEAD = """\
# The API of streams

Generated from types and docstrings by `make docs`; a test checks that it is up to date.
[streams.md](streams.md) explains the concepts.

There are three faces with the same names, types and guarantees: `stream` for trio, as described
here; `stream.aio` for asyncio; and `stream.blocking`, without `async` and `await` (`aclose` is
`close`). [faces.md](faces.md) describes the differences.
"""
_OF_TUPLES = {"count", "index"}


def document() -> str:
    """Returns the text of docs/api.md."""
    package = importlib.import_module("stream")
    names = [name for group in GROUPS.values() for name in group.split()]
    errors = [
        name for name in package.__all__
        if inspect.isclass(getattr(package, name))
        and issubclass(getattr(package, name), BaseException)
        and name not in names
    ]  # fmt: skip
    missing = set(package.__all__) - {*names, *errors}
    assert not missing, f"in no group of tools/docs/api.py: {', '.join(sorted(missing))}"
    parts = [_HEAD]
    for group, members in GROUPS.items():
        parts.append(f"\n## {group}\n")
        parts += [_entry(name, getattr(package, name)) for name in members.split()]
        if group == "Errors":
            parts.append("\n| Error | | Retry |\n|---|---|---|\n")
            parts += [_error(name, getattr(package, name)) for name in errors]
    return "".join(parts)


def _error(name: str, error: type[Exception]) -> str:
    retry = "may help" if getattr(error, "retry_is_safe", False) else "no"
    return f"| `{name}` | {_flat(inspect.getdoc(error))} | {retry} |\n"


def _entry(name: str, value: object) -> str:
    head = f"\n### {name}\n"
    if inspect.isclass(value) and value.__module__.startswith(("stream.", "ledger.")):
        return head + _class(name, value)
    if inspect.isfunction(value):
        node = _function_node(value.__module__, name)
        return head + _call(node, "") + _text(inspect.getdoc(value))
    if inspect.isclass(value):
        return f"{head}\n`{value.__module__.split('.')[0]}.{value.__qualname__}`\n"
    home = home_of_value(name)
    body = ast.parse(source_of(home)).body
    for statement, following in pairwise(body):
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == name:
            assert isinstance(following, ast.Expr), f"{name} has no docstring"
            return head + _text(ast.literal_eval(following.value))
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
            return f"{head}\n`{ast.unparse(statement.value)}`\n"
    raise AssertionError(f"no {name} in {home}")


def home_of_value(name: str) -> str:
    """Returns the module that defines a public name that is neither a class nor a function."""
    homes: dict[str, str] = importlib.import_module("stream")._HOME
    home = homes[name]
    while names_of(home)[name] != f"{home}:{name}":
        home = names_of(home)[name].split(":")[0]
    return home


def _class(name: str, cls: type) -> str:
    text = _text(inspect.getdoc(cls))
    if issubclass(cls, enum.Enum):
        return text + "\n" + ", ".join(f"`{each.name}`" for each in cls) + "\n"
    fields = list(_fields(cls))
    if fields:
        text += "\n| Field | Type | Default | |\n|---|---|---|---|\n" + "".join(fields)
    for method in _methods(name, cls):
        text += _call(method.node, f"{name}.") + _text(ast.get_docstring(method.node))
    return text


def _methods(name: str, cls: type) -> Iterator[Method]:
    if name in FACES:
        for method in methods_of(name):
            shown = not method.name.startswith("__") and method.name not in FACES[name].skipped
            if (shown or method.name in {"__anext__"}) and "overload" not in method.decorators:
                yield method
        return
    for node in class_node(cls.__module__, cls.__name__).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_public(node.name):
            method = Method(cls.__module__, node)
            if ast.get_docstring(node) and "overload" not in method.decorators:
                yield method


def _fields(cls: type) -> Iterator[str]:
    is_tuple = issubclass(cls, tuple)
    if not (dataclasses.is_dataclass(cls) or is_tuple or "__total__" in vars(cls)):
        return
    body = class_node(cls.__module__, cls.__name__).body
    for node, below in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            meaning = ""
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                meaning = _flat(str(below.value.value))
            default = f"`{ast.unparse(node.value)}`" if node.value else ""
            kind = ast.unparse(node.annotation).replace("|", "\\|")
            yield f"| `{node.target.id}` | `{kind}` | {default} | {meaning} |\n"


def _function_node(module: str, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
    for node in ast.parse(source_of(module)).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return node
    raise AssertionError(f"no function {name} in {module}")


def _call(node: ast.FunctionDef | ast.AsyncFunctionDef, owner: str) -> str:
    """Returns a signature as a block of code, with one argument per line if it is long."""
    decorators = [ast.unparse(each) for each in node.decorator_list]
    returns = ast.unparse(node.returns) if node.returns else "None"
    if "property" in decorators:
        return f"\n```python\n{owner}{node.name}: {returns}\n```\n"
    arguments = ast.parse(f"def f({ast.unparse(node.args)}): ...").body[0]
    assert isinstance(arguments, ast.FunctionDef)
    is_method = bool(owner) and "staticmethod" not in decorators
    given = [each for each in _arguments(arguments.args) if not (is_method and each in _SELF)]
    is_block = "asynccontextmanager" in decorators or "ContextManager" in returns
    kind = "async with " if is_block else "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    returns = re.sub(r"^(?:AbstractAsyncContextManager|AsyncIterator)\[(.*)\]$", r"\1", returns)
    line = f"{kind}{owner}{node.name}({', '.join(given)}) -> {returns}"
    if len(line) > 100:
        rows = textwrap.indent(",\n".join(given), "    ")
        line = f"{kind}{owner}{node.name}(\n{rows},\n) -> {returns}"
    return f"\n```python\n{line}\n```\n"


_SELF = {"self", "cls"}


def _arguments(args: ast.arguments) -> list[str]:
    plain = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(plain) - len(args.defaults)) + [*args.defaults]
    given = [_argument(each, default) for each, default in zip(plain, defaults, strict=True)]
    if args.vararg:
        given.append(f"*{ast.unparse(args.vararg)}")
    elif args.kwonlyargs:
        given.append("*")
    for each, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        given.append(_argument(each, default))
    if args.kwarg:
        given.append(f"**{ast.unparse(args.kwarg)}")
    return given


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    text = ast.unparse(argument)
    return text if default is None else f"{text} = {ast.unparse(default)}"


def _flat(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def _text(docstring: str | None) -> str:
    """Returns a docstring as Markdown; its arguments become a list."""
    if not docstring:
        return ""
    lines: list[str] = []
    in_arguments = False
    for line in docstring.split("\n"):
        if line.strip() == "Args:":
            in_arguments = True
            continue
        if in_arguments and line.strip() and not line.startswith("    "):
            in_arguments = False
        named = re.match(r"^    (\w+): (.*)$", line) if in_arguments else None
        if named:
            lines.append(f"- `{named[1]}`: {named[2]}")
        else:
            lines.append(f"  {line.strip()}" if in_arguments and line.strip() else line.rstrip())
    return "\n" + "\n".join(lines).strip() + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
