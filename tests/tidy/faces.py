"""Writes stream/aio and stream/blocking from the trio classes: `python -m tests.tidy.faces`.

Signatures and docstrings are the trio ones'; a body only crosses to the trio thread. What is not a
plain crossing (records, batches, positions) is named here and written by hand in stream/aio. Then
stream/blocking is stream/aio without its `await`. The test beside it compares.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType

from tests.tidy.checkout import ROOT

AIO = ROOT / "stream" / "aio"
BLOCKING = ROOT / "stream" / "blocking"


@dataclass(frozen=True)
class Face:
    """How a trio class is shown.

    Args:
        bodies: of methods that are no plain crossing; text of the asyncio one.
        attributes: of the trio object that are public, with their types, or with where else they
            are ("Position: self._to").
        home: module below `stream`, if it is no name of the package.
        is_made: by users themselves, with a client.
        reads: plain functions that any thread may call; others are called in the trio thread while
            the caller stands still.
        base: class of the hand-written half.
        opened: expressions that `_of` sets beside `_crossing` and `_inner`, by name.
        extra: one more argument of `_of`.
        holder: type of what `_of` gets instead of the trio object itself, and where that is in it.
        turn: what crossing functions go through, so that they come after what was handed over.
    """

    bodies: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)
    reads: frozenset[str] = frozenset()
    base: str = ""
    opened: dict[str, str] = field(default_factory=dict)
    extra: str = ""
    holder: tuple[str, str] | None = None
    turn: str = ""
    skipped: frozenset[str] = frozenset()
    is_made: bool = False
    home: str = ""


_LEAVE = "await self.aclose()"
_STEP = "return await self._crossing.call(lambda: anext(self._inner))"
_TICKET = """\
ticket = Ticket(
    self._crossing, self._appends, value, key, event_time_ms, headers, expected_sequence
)"""
_PARTITION_TICKET = """\
ticket = PartitionTicket(
    self._crossing, self._appends, value, key, event_time_ms, headers, partition
)"""
_GIVE = """
self._appends.give(ticket)
return ticket"""
_ROOM = """\
if not self._appends.has_room:
    raise WouldBlock
"""
_WAIT = """
await self._append(ticket)
return await ticket.wait()"""
FACES: dict[str, Face] = {
    "Namespace": Face(
        is_made=True,
        attributes={"name": "str"},
        bodies={
            "connect": """\
async with (
    open_crossing() as crossing,
    crossing.hold(
        lambda: TrioNamespace.connect(
            cluster, name, create=create, options=options, writer_options=writer_options
        )
    ) as inner,
):
    yield cls._of(crossing, inner)""",
            "create_stream": """\
if partitions is None:
    return await self._crossing.call(lambda: self._inner.create_stream(stream))
return await self._crossing.call(
    lambda: self._inner.create_stream(stream, partitions=partitions)
)""",
        },
    ),
    "StreamWriter": Face(
        attributes={"stream": "str"},
        base="stream.aio.tickets:Appending",
        holder=("stream.bridged.writing:StreamAppends", "writer"),
        opened={"_appends": "holder"},
        turn="self._appends.in_turn",
        reads=frozenset({"statistics"}),
        bodies={
            "has_room": "return self._appends.has_room and self._inner.error is None",
            "append_nowait": _ROOM + _TICKET + _GIVE,
            "append": _TICKET + _WAIT,
            "wait_room": "await self._wait_room()",
            "producer": """\
inner = await self._crossing.call(lambda: self._appends.in_turn(lambda: self._inner.producer(name)))
return Producer._of(self._crossing, inner, self._appends)""",
        },
    ),
    "PartitionedWriter": Face(
        attributes={"stream": "str"},
        base="stream.aio.tickets:Appending",
        holder=("stream.bridged.writing:PartitionedAppends", "writer"),
        opened={"_appends": "holder"},
        turn="self._appends.in_turn",
        reads=frozenset({"statistics", "partition_of"}),
        skipped=frozenset({"follow_growth"}),
        bodies={
            "append_nowait": _ROOM + _PARTITION_TICKET + _GIVE,
            "append": _PARTITION_TICKET + _WAIT,
            "wait_room": "await self._wait_room()",
        },
    ),
    "Producer": Face(
        attributes={"name": "str"},
        base="stream.aio.tickets:Producing",
        extra="appends: StreamAppends",
        opened={"_appends": "appends"},
        turn="self._appends.in_turn",
        skipped=frozenset({"append_nowait"}),
        bodies={
            "append": "return await self._append_numbered(value, sequence, key, event_time_ms, headers)"
        },
    ),
    "StreamReader": Face(
        attributes={"stream": "str"},
        base="stream.aio.batches:Reading",
        holder=("stream.bridged.reading:BridgedReader", "reader"),
        opened={"_bridged": "holder", "_at": "holder.begin"},
        skipped=frozenset({"__aenter__", "__aexit__"}),
        bodies={
            "aclose": "await self._close()",
            "position": "return self._position()",
            "__aiter__": "return self",
            "__anext__": """\
while True:
    for record in self._records:
        self._last_record = record
        return record
    await self._begin_batch()""",
            "next_batch": """\
batch = await self._next_batch(None)
assert batch is not None, "without an end there is always a next batch"
return batch""",
            "batches": "return BatchIterator(self, stops=False)",
            "read_to_end": "return BatchIterator(self, stops=True)",
            "next_batch_before": "return await self._next_batch(end)",
        },
    ),
    "BackwardBatches": Face(
        attributes={"stream": "str"},
        bodies={
            "__aenter__": "return self",
            "__aexit__": _LEAVE,
            "__aiter__": "return self",
            "__anext__": _STEP,
        },
    ),
    "MergedReader": Face(
        bodies={"__aiter__": "return self", "__anext__": _STEP},
        skipped=frozenset({"open", "close"}),
    ),
    "MergedBatches": Face(
        home="merged_reader", bodies={"__aiter__": "return self", "__anext__": _STEP}
    ),
    "Consumer": Face(
        attributes={"group": "str", "member": "str", "stream": "str"},
        bodies={"__aiter__": "return self", "__anext__": _STEP},
        skipped=frozenset({"note_group", "note_lost", "note_again", "run", "begin", "leave"}),
    ),
    "RecordIterator": Face(
        home="consumer", bodies={"__aiter__": "return self", "__anext__": _STEP}
    ),
    "Cursor": Face(
        attributes={"name": "str", "stream": "str", "position": "Position: self._to"},
        base="stream.aio.advancing:Advancing",
        opened={"_to": "inner.position"},
        skipped=frozenset({"release", "close", "run", "epoch", "failing_since_s"}),
        bodies={"advance": "self._advance(to)"},
    ),
    "Janitor": Face(is_made=True),
}
FUNCTIONS = ["create_namespace", "list_namespaces", "delete_namespace"]
"""They take the client; what else they do is the trio side's."""
HAND_WRITTEN = {
    "BatchIterator": "batches",
    "LedgerClient": "client",
    "PartitionTicket": "tickets",
    "Ticket": "tickets",
}
"""Public classes of this face written by hand, and their modules in stream/aio."""

_CONTEXTS = {"AbstractAsyncContextManager", "AsyncIterator"}
_HEAD = '"""{what}.\n\nGenerated from {source} by `make faces`. Not to be edited.\n"""\n'


# The trio side, read


@cache
def _source(module: str) -> str:
    return (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_source(module))


@cache
def _names_of(module: str) -> dict[str, str]:
    """Where each name used in a module comes from: name -> "module:name"."""
    names: dict[str, str] = {}
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}:{alias.name}"
    for node in _tree(module).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names[node.name] = f"{module}:{node.name}"
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    names[target.id] = f"{module}:{target.id}"
    return names


def _home_of(name: str) -> str:
    """Module below `stream` where a public name of the package is defined."""
    if name in FACES and FACES[name].home:
        return FACES[name].home
    home: str = getattr(importlib.import_module("stream"), name).__module__
    return home.removeprefix("stream.")


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
        """As it stands in the source, quotes included; "" if there is none."""
        first = self.node.body[0]
        if ast.get_docstring(self.node) is None:
            return ""
        text = ast.get_source_segment(_source(self.module), first)
        assert text is not None, "a docstring has source"
        return text


def _class_node(module: str, name: str) -> ast.ClassDef:
    for node in _tree(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    raise AssertionError(f"no class {name} in {module}")


def _awaits(origin: str) -> bool:
    """Whether this is a class of ours that only trio can use."""
    module, name = origin.split(":")
    if not module.startswith("stream."):
        return False
    cls = getattr(importlib.import_module(module), name)
    return inspect.isclass(cls) and any(
        inspect.iscoroutinefunction(each) and _is_public(key) for key, each in vars(cls).items()
    )


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name in {
        "__init__", "__aenter__", "__aexit__", "__aiter__", "__anext__",
    }  # fmt: skip


def methods_of(name: str) -> Iterator[Method]:
    """Public ones of the trio class and of those it is made of, in the order of their source."""
    cls = getattr(importlib.import_module(f"stream.{_home_of(name)}"), name)
    seen: set[str] = set()
    for each in inspect.getmro(cls):
        if not each.__module__.startswith("stream."):
            continue
        found = [
            Method(each.__module__, node)
            for node in _class_node(each.__module__, each.__name__).body
            if isinstance(node, Function) and _is_public(node.name) and node.name not in seen
        ]
        seen |= {method.name for method in found}
        yield from found


# One face, written


class Module:
    """A generated module of stream/aio: its classes and what they import."""

    def __init__(self, home: str) -> None:
        self.home = home
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
            if _home_of(name) != self.home:
                self.use(f"stream.aio.{_home_of(name)}:{name}")
        elif name in HAND_WRITTEN:
            self.use(f"stream.aio.{HAND_WRITTEN[name]}:{name}")
        elif name in (names := _names_of(source)):
            assert not _awaits(names[name]), (
                f"{names[name]} has functions to await: name it in FACES"
            )
            self.use(names[name])

    def text(self, what: str) -> str:
        lines = [_HEAD.format(what=what, source=f"stream/{self.home}.py")]
        lines.append("\nfrom __future__ import annotations\n\n")
        for module in sorted(self.imports):
            names = ", ".join(sorted(self.imports[module]))
            lines.append(f"from {module} import {names}\n")
        return "".join(lines) + "\n\n" + "\n\n".join(self.parts)


def _arguments(args: ast.arguments) -> str:
    """The arguments of a function handed on as they came."""
    given = [
        each.arg for each in (*args.posonlyargs, *args.args) if each.arg not in ("self", "cls")
    ]
    given += [f"*{args.vararg.arg}"] if args.vararg else []
    given += [f"{each.arg}={each.arg}" for each in args.kwonlyargs]
    given += [f"**{args.kwarg.arg}"] if args.kwarg else []
    return ", ".join(given)


def _named(returns: ast.expr | None) -> tuple[str, str]:
    """An annotation `A[B]` as ("A", "B"), `B` as ("", "B")."""
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


def _held(module: Module, wanted: str, call: str) -> str:
    """The body of a block around a trio block, giving a `wanted`."""
    face = FACES.get(wanted)
    if face is None:
        module.use_name(f"stream.{module.home}", wanted)
        return f"async with self._crossing.hold(lambda: {call}) as inner:\n    yield inner"
    opened = call
    if wanted in ("StreamWriter", "PartitionedWriter"):
        bridged = "bridged_writer" if wanted == "StreamWriter" else "bridged_partitioned_writer"
        module.use(f"stream.bridged.writing:{bridged}")
        opened = (
            f"{bridged}({call}, crossing.post, crossing.wake, "
            "(options or self._inner.writer_options).pending_bytes_max)"
        )
    elif wanted == "StreamReader":
        module.use("stream.bridged.reading:bridged_reader")
        opened = f"bridged_reader({call}, crossing.post, crossing.wake)"
    return (
        "crossing = self._crossing\n"
        f"async with crossing.hold(lambda: {opened}) as inner:\n"
        f"    yield {wanted}._of(crossing, inner)"
    )


def _body(module: Module, face: Face, method: Method) -> tuple[str, str, str]:
    """Decorators, the return type if it is another than in trio, and the body of a method."""
    node, name = method.node, method.name
    decorators = "".join(f"@{each}\n" for each in method.decorators)
    for each in method.decorators:
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
        return decorators, "", body
    outer, wanted = _named(node.returns)
    target = f"self._inner.{name}"
    call = f"{target}({_arguments(node.args)})"
    if outer in _CONTEXTS and (
        "asynccontextmanager" in method.decorators or outer == "AbstractAsyncContextManager"
    ):
        module.use("contextlib:asynccontextmanager")
        module.use("collections.abc:AsyncIterator")
        module.use_name(method.module, wanted)
        if "asynccontextmanager" not in method.decorators:
            decorators += "@asynccontextmanager\n"
        return decorators, f"async:AsyncIterator[{wanted}]", _held(module, wanted, call)
    if "property" in method.decorators:
        return decorators, "", f"return {target}"
    if isinstance(node, ast.AsyncFunctionDef):
        call = f"{face.turn}(lambda: {call})" if face.turn else call
        crossed = f"await self._crossing.call(lambda: {call})"
        if wanted in FACES and not outer:
            return decorators, "", f"return {wanted}._of(self._crossing, {crossed})"
        return decorators, "", crossed if wanted == "None" else f"return {crossed}"
    if wanted in FACES and not outer:
        return decorators, "", f"return {wanted}._of(self._crossing, {call})"
    if name not in face.reads:
        call = f"self._crossing.ask(lambda: {call})"
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


def _write_class(module: Module, name: str) -> str:
    face = FACES[name]
    trio_name = f"Trio{name}"
    home = f"stream.{_home_of(name)}"
    module.use(f"{home}:{name}", trio_name)
    module.use("stream.aio.crossing:Crossing")
    module.own.add(name)
    if face.base:
        module.use(face.base)
    held, at = trio_name, ""
    if face.holder:
        module.use(face.holder[0])
        held, at = face.holder[0].split(":")[1], f".{face.holder[1]}"
    parts = [f"_crossing: Crossing\n_inner: {trio_name}\n"]
    methods = list(methods_of(name))
    for method in methods:
        if method.name == "__init__" and face.is_made:
            rest = _arguments(method.node.args).removeprefix("client, ")
            parts.append(
                f"{_signature(module, method)}\n    self._crossing = client._crossing\n"
                f"    self._inner = {trio_name}(client._inner, {rest})\n"
            )
    extra = f", {face.extra}" if face.extra else ""
    if "StreamAppends" in extra + held:
        module.use("stream.bridged.writing:StreamAppends")
        parts.append("_appends: StreamAppends\n")
    elif "PartitionedAppends" in held:
        parts.append("_appends: PartitionedAppends\n")
    set_ = [f"made._crossing, made._inner = crossing, holder{at}"]
    set_ += [
        f"made.{key} = {value.replace('inner.', 'holder.')}" for key, value in face.opened.items()
    ]
    parts.append(
        f"@classmethod\ndef _of(cls, crossing: Crossing, holder: {held}{extra}) -> {name}:\n"
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
    text = "\n".join(parts)
    for used in ("WouldBlock", "open_crossing", "Ticket", "PartitionTicket", "BatchIterator"):
        if re.search(rf"\b{used}\b", text):
            origin = {
                "WouldBlock": "trio:WouldBlock",
                "open_crossing": "stream.aio.crossing:open_crossing",
                "Ticket": "stream.aio.tickets:Ticket",
                "PartitionTicket": "stream.aio.tickets:PartitionTicket",
                "BatchIterator": "stream.aio.batches:BatchIterator",
            }[used]
            module.use(origin)
    node = _class_node(home, name)
    doc = ast.get_source_segment(_source(home), node.body[0])
    base = f"({face.base.split(':')[1]})" if face.base else ""
    return f"class {name}{base}:\n    {doc}\n\n" + textwrap.indent(text, "    ")


def _write_function(module: Module, home: str, name: str) -> str:
    node = next(n for n in _tree(home).body if isinstance(n, Function) and n.name == name)
    method = Method(home, node)
    module.use(f"{home}:{name}", f"trio_{name}")
    call = f"trio_{name}({_arguments(node.args).replace('client', 'client._inner', 1)})"
    body = f"await client._crossing.call(lambda: {call})"
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
    """File name -> text, of the generated modules of stream/aio."""
    modules: dict[str, Module] = {}
    for name, face in FACES.items():
        module = modules.setdefault(_home_of(name), Module(_home_of(name)))
        module.parts.append(_write_class(module, name))
    for name in FUNCTIONS:
        home = _home_of(name)
        module = modules.setdefault(home, Module(home))
        module.parts.append(_write_function(module, f"stream.{home}", name))
    texts = {}
    for home, module in modules.items():
        text = module.text(f"stream.{home} for asyncio")
        texts[f"{home}.py"] = _ruff(text.replace("trio.WouldBlock", "WouldBlock"))
    texts["__init__.py"] = _ruff(_package("asyncio", "aio"))
    return texts


# What a face exports


def _package(what: str, package: str) -> str:
    native: ModuleType = importlib.import_module("stream")
    homes: dict[str, str] = dict(native._HOME)
    for name in list(homes):
        if name in FACES:
            homes[name] = f"stream.{package}.{_home_of(name)}"
    for name in FUNCTIONS:
        homes[name] = f"stream.{package}.{_home_of(name)}"
    for name, home in HAND_WRITTEN.items():
        if name in homes or name == "LedgerClient":
            homes[name] = f"stream.{package}.{home}"
    homes["WouldBlock"] = "trio"
    if package == "blocking":
        homes["fail_after"] = "stream.blocking.crossing"
    lines = [
        f'"""Streams for {what}: the same names, types and promises as in `stream`.\n\n'
        "Generated by `make faces`. docs/faces.md says what differs.\n"
        '"""\n\nfrom __future__ import annotations\n\n'
    ]
    lines += [f"from {homes[name]} import {name} as {name}\n" for name in sorted(homes)]
    exported = "".join(f'    "{name}",\n' for name in sorted(homes))
    return "".join(lines) + f"\n__all__ = [\n{exported}]\n"


# The blocking face


_WORDS = [
    (r"\bstream\.aio\b", "stream.blocking"),
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


def blocking_of(text: str) -> str:
    """A module of stream/aio as one of stream/blocking."""
    for pattern, word in _WORDS:
        text = re.sub(pattern, word, text)
    if "by `make faces`" not in text:
        head, quotes, rest = text.partition('"""\n')
        head = head.rstrip("\n")
        text = f"{head}\n\nGenerated from stream/aio by `make faces`. Not to be edited.\n{quotes}{rest}"
    return _ruff(text)


def blocking_modules() -> dict[str, str]:
    """File name -> text, of the generated modules of stream/blocking."""
    texts = dict(aio_modules())
    for hand in ("tickets", "batches", "client", "advancing"):
        texts[f"{hand}.py"] = (AIO / f"{hand}.py").read_text(encoding="utf-8")
    texts = {name: blocking_of(text) for name, text in texts.items()}
    texts["__init__.py"] = _ruff(_package("scripts, notebooks and threads", "blocking"))
    return texts


def all_files() -> dict[Path, str]:
    """Every generated file and what it must hold."""
    files = {AIO / name: text for name, text in aio_modules().items()}
    return files | {BLOCKING / name: text for name, text in blocking_modules().items()}


if __name__ == "__main__":
    for path, text in all_files().items():
        path.write_text(text, encoding="utf-8")
