"""Bookies: servers that store entries of many ledgers. Public names of the package."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bookie.bookie import Bookie
    from bookie.config import BookieConfig

__distribution__ = "ledgerstream"

__all__ = [
    "Bookie",
    "BookieConfig",
]

_HOMES = {
    "bookie.bookie": "Bookie",
    "bookie.config": "BookieConfig",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Imports on first use: a command or client pays only for what it touches."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
