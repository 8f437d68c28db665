"""Derives three test programs, for trio, asyncio and threads, from one source.

The sources (writing.py, reading.py, ...) are written for asyncio. The program for trio is the same
with other imports; the one for threads is generated as stream/blocking is from stream/aio.
"""

from __future__ import annotations

import asyncio
import importlib
import re
import sys
import types
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import trio

import stream
from stream import aio, blocking
from tools.faces.generate import without_async

FACES = ("trio", "aio", "blocking")
TEXTS = ("writing", "reading", "namespaces")


def text_for(path: Path, face: str) -> str:
    """Returns the source of a program written for asyncio, converted to this face."""
    source = path.read_text(encoding="utf-8")
    if face == "aio":
        return source
    if face == "blocking":
        source = re.sub(r"\baclose\b", "close", without_async(source))
        source = re.sub(r"\banext\(", "next(", source)
    package = {"trio": "stream", "blocking": "stream.blocking"}[face]
    source = re.sub(r"\bstream\.(aio|blocking)\b", package, source)
    if face == "trio":
        # The face for trio has no client of its own: it uses that of ledgers.
        source, found = re.subn(r"^    LedgerClient,\n", "", source, flags=re.MULTILINE)
        if found:
            own = "from ledger.client import LedgerClient\n"
            source = source.replace("from ledger.options", f"{own}from ledger.options")
    return source


@cache
def program(text: str, face: str) -> types.ModuleType:
    """Returns the module `text` of the suite as a program of this face."""
    if face == "aio":
        return importlib.import_module(f"tests.stream.faces.{text}")
    path = Path(__file__).with_name(f"{text}.py")
    source = text_for(path, face).replace("faces.aio_side", f"faces.{face}_side")
    for other in TEXTS:
        # Imports from another text refer to the program of the same face.
        source = source.replace(f"from tests.stream.faces.{other} ", f"from faces_{face}_{other} ")
    module = types.ModuleType(f"faces_{face}_{text}")
    sys.modules[module.__name__] = module
    exec(compile(source, f"{path} for {face}", "exec"), module.__dict__)
    return module


def checks() -> Iterator[tuple[str, str]]:
    """Yields the text and the function name of each check."""
    for text in TEXTS:
        for name in vars(program(text, "aio")):
            if name.startswith("check_"):
                yield text, name


def run(face: str, cluster: str, namespace: str, check: Callable[..., Any]) -> None:
    """Runs a check of a face in a new namespace of a cluster."""
    if face == "blocking":
        with blocking.Namespace.connect(cluster, namespace, create=True) as made:
            check(made)
    elif face == "aio":

        async def check_aio() -> None:
            async with (
                asyncio.timeout(60),
                aio.Namespace.connect(cluster, namespace, create=True) as made,
            ):
                await check(made)

        asyncio.run(check_aio())
    else:

        async def check_trio() -> None:
            with trio.fail_after(60):
                async with stream.Namespace.connect(cluster, namespace, create=True) as made:
                    await check(made)

        trio.run(check_trio)
