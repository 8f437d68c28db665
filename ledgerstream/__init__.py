"""A durable, replicated streaming log: everything an application imports, under one name.

`from ledgerstream import Namespace` is for trio, `ledgerstream.aio` for asyncio, and
`ledgerstream.blocking` for threads; `ledgerstream.spark` has `register`, `ledgerstream.testing` the
simulated cluster. The names are those of `stream`, `ledger`, `bookie.testing` and
`connectors.spark`, which can be imported as well. Each is loaded on its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ledgerstream_entry import installed_version, require_own_packages

if TYPE_CHECKING:
    from ledger import *
    from ledgerstream import aio, blocking, spark, testing
    from stream import *

    __version__: str
else:
    require_own_packages("ledger", "stream")

__distribution__ = "ledgerstream"

_MODULES = ("aio", "blocking", "spark", "testing")


def _homes() -> dict[str, str]:
    """Returns the package that offers each name."""
    names = dict.fromkeys(import_module("ledger").__all__, "ledger")
    return names | dict.fromkeys(import_module("stream").__all__, "stream")


def __getattr__(name: str) -> object:
    if name == "__version__":
        return installed_version()
    if name == "__all__":
        return [*_homes(), *_MODULES]
    if name in _MODULES:
        return import_module(f"ledgerstream.{name}")
    home = _homes().get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__getattr__("__all__"), "__version__"]  # type: ignore[misc]
