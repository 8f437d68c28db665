"""Writes stream/aio and stream/blocking from the trio classes: `python -m tools.faces.generate`.

Signatures and docstrings are copied from the trio classes; a body only calls into the trio thread.
Whatever needs more than such a call (records, batches, positions) is in table.py, or written by
hand in stream/aio. stream/blocking is stream/aio without `await`. A test checks that the files are
up to date.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

from tests.tidy.checkout import ROOT
from tools.faces.source import (
    Function,
    Method,
    awaits,
    class_node,
    home_of,
    methods_of,
    names_of,
    source_of,
    tree_of_module,
    trio_module_of,
)
from tools.faces.table import FACES, FUNCTIONS, HAND_WRITTEN, Face

AIO = ROOT / "stream" / "aio"
BLOCKING = ROOT / "stream" / "blocking"
_HELPERS = {
    "WouldBlock": "trio:WouldBlock",
    "open_bridge": "stream.aio.bridge:open_bridge",
    "Ticket": "stream.aio.tickets:Ticket",
    "PartitionTicket": "stream.aio.tickets:PartitionTicket",
    "BatchIterator": "stream.aio.batches:BatchIterator",
}
"""Names that bodies of table.py use, and their origins."""
_CONTEXTS = {"AbstractAsyncContextManager", "AsyncIterator"}
_BLOCK = {"asynccontextmanager", "opening_in_task"}
"""Decorators of what opens something."""
_LINE_CHARS = 88
"""What is left of a line for the arguments of a call in a method."""
_HEAD = '"""{what}.\n\nGenerated from {source} by `make faces`. Not to be edited.\n"""\n'


# Writing one face


class Module:
    """A generated module of stream/aio: its classes and their imports."""

    def __init__(self, home: str, source: str) -> None:
        self.home = home
        self.source = source
        self.imports: dict[str, set[str]] = {}
        self.parts: list[str] = []
        self.own: set[str] = set()

    def use(self, origin: str, alias: str = "") -> None:
        module, name = origin.split(":")
        self.imports.setdefault(module, set()).add(f"{name} as {alias}" if alias else name)

    def use_annotation(self, source: str, node: ast.AST) -> None:
        """Imports the names in an annotation or a default of a module's source."""
        for each in ast.walk(node):
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                continue
            if isinstance(each, ast.Name):
                self.use_name(source, each.id)

    def use_name(self, source: str, name: str) -> None:
        if name in FACES:
            if home_of(name) != self.home:
                self.use(f"stream.aio.{home_of(name)}:{name}")
        elif name in HAND_WRITTEN:
            self.use(f"stream.aio.{HAND_WRITTEN[name]}:{name}")
        elif name in (names := names_of(source)):
            assert not awaits(names[name]), (
                f"{names[name]} has functions to await: name it in FACES"
            )
            self.use(names[name])

    def text(self, what: str) -> str:
        lines = [_HEAD.format(what=what, source=f"{self.source.replace('.', '/')}.py")]
        lines.append("\nfrom __future__ import annotations\n\n")
        for module in sorted(self.imports):
            names = ", ".join(sorted(self.imports[module]))
            lines.append(f"from {module} import {names}\n")
        return "".join(lines) + "\n\n" + "\n\n".join(self.parts)


def _arguments(args: ast.arguments) -> str:
    """Returns the arguments for a call that passes on all parameters of a function."""
    given = [
        each.arg for each in (*args.posonlyargs, *args.args) if each.arg not in ("self", "cls")
    ]
    given += [f"*{args.vararg.arg}"] if args.vararg else []
    given += [f"{each.arg}={each.arg}" for each in args.kwonlyargs]
    given += [f"**{args.kwarg.arg}"] if args.kwarg else []
    return ", ".join(given)


def _named(returns: ast.expr | None) -> tuple[str, str]:
    """Splits an annotation `A[B]` into ("A", "B"), and `B` into ("", "B")."""
    if isinstance(returns, ast.Subscript):
        return ast.unparse(returns.value), ast.unparse(returns.slice)
    return "", ast.unparse(returns) if returns else "None"


def _signature(module: Module, method: Method, returns: str = "") -> str:
    node = method.node
    for each in ast.walk(node.args):
        if isinstance(each, ast.arg) and each.annotation:
            module.use_annotation(method.module, each.annotation)
    for default in (*node.args.defaults, *node.args.kw_defaults):
        if default is not None:
            module.use_annotation(method.module, default)
    if not returns and node.returns:
        module.use_annotation(method.module, node.returns)
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    return f"{kind} {node.name}({ast.unparse(node.args)}) -> {returns or method.returns}:"


def _filled(arguments: str) -> str:
    """Returns the arguments of a call in a method, in lines that are full if one is not enough:
    the formatter would have a line for each."""
    lines = textwrap.wrap(arguments, _LINE_CHARS)
    return arguments if len(lines) < 2 else "\n        " + "\n        ".join(lines) + "\n    "


def _held(module: Module, wanted: str, call: str) -> str:
    """Returns the body of a context manager around a trio one, which yields a `wanted`."""
    face = FACES.get(wanted)
    if face is None:
        module.use_name(module.source, wanted)
        return f"async with self._bridge.hold(lambda: {call}) as inner:\n    yield inner"
    opened = call
    if wanted == "MergedReader":
        module.use("stream.bridge.reading:bridged_merge")
        opened = f"bridged_merge({call}, bridge.post, bridge.wake)"
    elif wanted in ("StreamWriter", "PartitionedWriter"):
        bridged = "bridged_writer" if wanted == "StreamWriter" else "bridged_partitioned_writer"
        module.use(f"stream.bridge.writing:{bridged}")
        opened = (
            f"{bridged}({call}, bridge.post, bridge.wake, "
            "(options or self._inner.writer_options).pending_bytes_max)"
        )
    elif wanted == "StreamReader":
        module.use("stream.bridge.reading:bridged_reader")
        opened = f"bridged_reader({call}, bridge.post, bridge.wake)"
    return (
        "bridge = self._bridge\n"
        f"async with bridge.hold(lambda: {opened}) as inner:\n"
        f"    yield {wanted}._of(bridge, inner)"
    )


def _opening(decorators: str) -> str:
    """Returns the decorators of a method that opens something."""
    for each in _BLOCK:
        decorators = decorators.replace(f"@{each}\n", "")
    return f"{decorators}@opening\n"


def _twin(module: Module, method: Method) -> str:
    """Returns the method that opens the same without a block, or "" for one that opens nothing."""
    outer, wanted = _named(method.node.returns)
    if outer not in _CONTEXTS or method.name not in _TWINS:
        return ""
    twin, end = _TWINS[method.name], "aclose" if wanted.endswith("Reader") else "close"
    signature = _signature(module, method, wanted).replace(f"def {method.name}(", f"def {twin}(")
    if not signature.startswith("async "):
        signature = f"async {signature}"
    owner = "cls" if "classmethod" in method.decorators else "self"
    doc = f'"""Opens what `{method.name}` opens, with its arguments and errors: `{end}` it."""'
    head = "@classmethod\n" if owner == "cls" else ""
    call = f"return await {owner}.{method.name}({_filled(_arguments(method.node.args))}).open()"
    call += "  # fmt: skip" if "\n" in call else ""
    return f"{head}{signature}\n    {doc}\n    {call}\n"


_TWINS = {
    "connect": "open",
    "writer": "open_writer",
    "reader": "open_reader",
    "merged_reader": "open_merged_reader",
    "partitioned_writer": "open_partitioned_writer",
    "cursor": "open_cursor",
    "consumer": "open_consumer",
}
"""Methods that open something in a block, and their twins without one."""


def _body(module: Module, face: Face, method: Method) -> tuple[str, str, str]:
    """Returns the decorators, the return type if it differs from trio's, and the body."""
    node, name = method.node, method.name
    decorators = "".join(f"@{each}\n" for each in method.decorators)
    for each in method.decorators:
        if each not in _BLOCK:
            module.use_name(method.module, each)
    if "overload" in method.decorators:
        return decorators, "", "..."
    if name in face.bodies:
        body = face.bodies[name]
        unused = [
            a.arg
            for a in (*node.args.args[1:], *node.args.kwonlyargs)
            if not name.startswith("__") and not re.search(rf"\b{a.arg}\b", body)
        ]
        assert not unused, f"{name}: its body does nothing with {', '.join(unused)}"
        if not _BLOCK.isdisjoint(method.decorators):
            module.use("ledger.runtime.opening:opening")
            decorators = _opening(decorators)
        return decorators, "", body
    outer, wanted = _named(node.returns)
    target = f"self._inner.{name}"
    call = f"{target}({_arguments(node.args)})"
    if outer in _CONTEXTS and (
        not _BLOCK.isdisjoint(method.decorators) or outer == "AbstractAsyncContextManager"
    ):
        module.use("ledger.runtime.opening:opening")
        module.use("collections.abc:AsyncIterator")
        module.use_name(method.module, wanted)
        decorators = _opening(decorators)
        return decorators, f"async:AsyncIterator[{wanted}]", _held(module, wanted, call)
    if "property" in method.decorators:
        return decorators, "", f"return {target}"
    if isinstance(node, ast.AsyncFunctionDef):
        prelude = ""
        if name == "append_many":  # iterators run in the caller's thread
            module.use("stream.core.arguments:columns_of")
            prelude = (
                "values, keys, event_times, headers = columns_of("
                "values, keys, event_times, headers)\n"
            )
        call = f"{face.turn}(lambda: {call})" if face.turn else call
        crossed = f"await self._bridge.call(lambda: {call})"
        if wanted in FACES and not outer:
            return decorators, "", f"return {wanted}._of(self._bridge, {crossed})"
        return decorators, "", prelude + (crossed if wanted == "None" else f"return {crossed}")
    if wanted in FACES and not outer:
        return decorators, "", f"return {wanted}._of(self._bridge, {call})"
    if name not in face.reads:
        call = f"self._bridge.ask(lambda: {call})"
    return decorators, "", call if method.returns == "None" else f"return {call}"


def _write_method(module: Module, face: Face, method: Method) -> str:
    decorators, returns, body = _body(module, face, method)
    is_block = returns.startswith("async:")
    returns = returns.removeprefix("async:")
    signature = _signature(module, method, returns)
    if is_block and not signature.startswith("async "):
        signature = f"async {signature}"
    if body == "...":
        return f"{decorators}{signature} ...\n"
    doc = f"    {method.docstring}\n" if method.docstring else ""
    return f"{decorators}{signature}\n{doc}{textwrap.indent(body, '    ')}\n"


def _closing(module: Module, face: Face, name: str) -> list[str]:
    """Returns the method that closes what was opened without a block, if trio's class has none."""
    if not face.is_opened:
        return []
    module.use("ledger.runtime.opening:Opened")
    end = "aclose" if name.endswith("Reader") else "close"
    doc = f'    """{face.closes}"""\n'
    method = f"async def {end}(self) -> None:\n{doc}    await self._leave()\n"
    return [method] if face.closes else []


def _bases(face: Face) -> str:
    bases = [face.base.split(":")[1]] if face.base else []
    bases += ["Opened"] if face.is_opened else []
    return f"({', '.join(bases)})" if bases else ""


def _write_class(module: Module, name: str) -> str:
    face = FACES[name]
    trio_name = f"Trio{name}"
    home = trio_module_of(name)
    module.use(f"{home}:{name}", trio_name)
    module.use("stream.aio.bridge:Bridge")
    module.own.add(name)
    if face.base:
        module.use(face.base)
    held, at = trio_name, ""
    if face.holder:
        module.use(face.holder[0])
        held, at = face.holder[0].split(":")[1], f".{face.holder[1]}"
    parts = [f"_bridge: Bridge\n_inner: {trio_name}\n"]
    methods = list(methods_of(name))
    for method in methods:
        if method.name == "__init__" and face.is_made:
            rest = _arguments(method.node.args).removeprefix("client, ")
            parts.append(
                f"{_signature(module, method)}\n    self._bridge = client._bridge\n"
                f"    self._inner = {trio_name}(client._inner, {rest})\n"
            )
    extra = f", {face.extra}" if face.extra else ""
    if "StreamAppends" in extra + held:
        module.use("stream.bridge.writing:StreamAppends")
        parts.append("_appends: StreamAppends\n")
    elif "PartitionedAppends" in held:
        parts.append("_appends: PartitionedAppends\n")
    set_ = [f"made._bridge, made._inner = bridge, holder{at}"]
    set_ += [
        f"made.{key} = {value.replace('inner.', 'holder.')}" for key, value in face.opened.items()
    ]
    parts.append(
        f"@classmethod\ndef _of(cls, bridge: Bridge, holder: {held}{extra}) -> {name}:\n"
        "    made = cls.__new__(cls)\n"
        + textwrap.indent("\n".join(set_), "    ")
        + "\n    return made\n"
    )
    for attribute, kind in face.attributes.items():
        kind, _, place = kind.partition(": ")
        module.use_name(home, kind)
        place = place or f"self._inner.{attribute}"
        parts.append(f"@property\ndef {attribute}(self) -> {kind}:\n    return {place}\n")
    for method in methods:
        if method.name != "__init__" and method.name not in face.skipped:
            parts.append(_write_method(module, face, method))
            if name == "Namespace" and (twin := _twin(module, method)):
                parts.append(twin)
    parts += _closing(module, face, name)
    text = "\n".join(parts)
    for used in _HELPERS:
        if re.search(rf"\b{used}\b", text):
            module.use(_HELPERS[used])
    node = class_node(home, name)
    doc = ast.get_source_segment(source_of(home), node.body[0]) or ""
    inherited = _bases(face)
    return f"class {name}{inherited}:\n    {doc}\n\n" + textwrap.indent(text, "    ")


def _write_function(module: Module, home: str, name: str) -> str:
    node = next(n for n in tree_of_module(home).body if isinstance(n, Function) and n.name == name)
    method = Method(home, node)
    module.use(f"{home}:{name}", f"trio_{name}")
    call = f"trio_{name}({_arguments(node.args).replace('client', 'client._inner', 1)})"
    body = f"await client._bridge.call(lambda: {call})"
    returned = body if method.returns == "None" else f"return {body}"
    return f"{_signature(module, method)}\n    {method.docstring}\n    {returned}\n"


def _ruff(text: str) -> str:
    for command in (["check", "--fix", "--select", "I,UP,F401,F811,RUF022"], ["format"]):
        done = subprocess.run(
            [Path(sys.executable).parent / "ruff", *command, "--quiet",
             "--stdin-filename", str(AIO / "x.py"), "-"],
            input=text, capture_output=True, check=False, text=True, cwd=ROOT,
        )  # fmt: skip
        assert done.stdout, f"ruff {command[0]}: {done.stderr}\n{text}"
        text = done.stdout
    return text


def aio_modules() -> dict[str, str]:
    """Returns the generated modules of stream/aio: file name -> text."""
    modules: dict[str, Module] = {}
    for name in [*FACES, *FUNCTIONS]:
        home, source = home_of(name), trio_module_of(name)
        module = modules.setdefault(home, Module(home, source))
        is_class = name in FACES
        part = _write_class(module, name) if is_class else _write_function(module, source, name)
        module.parts.append(part)
    texts = {}
    for home, module in modules.items():
        text = module.text(f"{module.source} for asyncio")
        texts[f"{home}.py"] = _ruff(text.replace("trio.WouldBlock", "WouldBlock"))
    texts["__init__.py"] = _ruff(_package("asyncio", "aio"))
    return texts


# The exports of a face


def _package(what: str, package: str) -> str:
    native: ModuleType = importlib.import_module("stream")
    homes: dict[str, str] = dict(native._HOME)
    for name in list(homes):
        if awaits(f"{homes[name]}:{name}") and name not in {*FACES, *HAND_WRITTEN}:
            del homes[name]  # for trio only
        elif name in FACES:
            homes[name] = f"stream.{package}.{home_of(name)}"
    for name in FUNCTIONS:
        homes[name] = f"stream.{package}.{home_of(name)}"
    for name, home in HAND_WRITTEN.items():
        if name in homes or name == "LedgerClient":
            homes[name] = f"stream.{package}.{home}"
    homes["WouldBlock"] = "trio"
    if package == "blocking":
        homes["fail_after"] = "stream.blocking.bridge"
    lines = [
        f'"""Streams for {what}: the same names, types and promises as in `stream`.\n\n'
        "Generated by `make faces`. docs/faces.md says what differs.\n"
        '"""\n\nfrom __future__ import annotations\n\n'
        "from importlib import import_module\nfrom typing import TYPE_CHECKING\n\n"
        "if TYPE_CHECKING:\n"
    ]
    names = sorted(homes)
    lines += [f"    from {homes[name]} import {name} as {name}\n" for name in names]
    exported = "".join(f'    "{name}",\n' for name in names)
    found = "".join(f'    "{name}": "{homes[name]}",\n' for name in names)
    return "".join(lines) + f"\n__all__ = [\n{exported}]\n\n_HOME = {{\n{found}}}\n" + _LAZY


_LAZY = '''

def __getattr__(name: str) -> object:
    """Imports a name on first use, so that a program pays only for what it uses."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
'''


# The blocking face


_WORDS = [
    (r"\bstream\.aio\b", "stream.blocking"),
    (r"\bledger\.runtime\.opening\b", "stream.blocking.opening"),
    (r"\bstream/aio\b", "stream/blocking"),
    (r"\basync (def|with|for) ", r"\1 "),
    (r"\basync iterator", "iterator"),
    (r"\bAn iterator", "An iterator"),
    (r"\bawait ", ""),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bAsyncIterable\b", "Iterable"),
    (r"\bAbstractAsyncContextManager\b(?=\[Stream|\[Cursor)", "AbstractContextManager"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"__aenter__", "__enter__"),
    (r"__aexit__", "__exit__"),
    (r"__aiter__", "__iter__"),
    (r"__anext__", "__next__"),
    (r"\bself\.aclose\(\)", "self.close()"),
    (r"\bdef aclose\b", "def close"),
    (r"`aclosing`", "`closing`"),
    (r"`aclose`", "`close`"),
    (r"for asyncio\b", "for threads"),
    (r"asyncio caller", "blocking caller"),
]


def without_async(text: str) -> str:
    """Converts a program for stream.aio to one for stream.blocking."""
    for pattern, word in _WORDS:
        text = re.sub(pattern, word, text)
    return text


def blocking_of(text: str) -> str:
    """Converts a module of stream/aio to one of stream/blocking."""
    text = without_async(text)
    if "by `make faces`" not in text:
        head, quotes, rest = text.partition('"""\n')
        head = head.rstrip("\n")
        note = "Generated from stream/aio by `make faces`. Not to be edited."
        text = f"{head}\n\n{note}\n{quotes}{rest}"
    return _ruff(text)


def blocking_modules() -> dict[str, str]:
    """Returns the generated modules of stream/blocking: file name -> text."""
    texts = dict(aio_modules())
    for hand in ("tickets", "batches", "merging", "client", "cursor_base"):
        texts[f"{hand}.py"] = (AIO / f"{hand}.py").read_text(encoding="utf-8")
    texts = {name: blocking_of(text) for name, text in texts.items()}
    texts["__init__.py"] = _ruff(_package("scripts, notebooks and threads", "blocking"))
    return texts


def all_files() -> dict[Path, str]:
    """Returns every generated file with its text."""
    files = {AIO / name: text for name, text in aio_modules().items()}
    return files | {BLOCKING / name: text for name, text in blocking_modules().items()}


if __name__ == "__main__":
    for path, text in all_files().items():
        path.write_text(text, encoding="utf-8")
