"""Saved addresses of clusters, by name: the file behind `ledgerstream context`.

It is `ledgerstream/contexts.json` in XDG_CONFIG_HOME. A change replaces the file as a whole, so
that no reader sees half of it. Only its owner can read it, because an address may have a password.
"""

from __future__ import annotations

import difflib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ledger.errors import InvalidArgument
from ledger.runtime.private_files import DIRECTORY_MODE

CONTEXT_VARIABLE = "LEDGERSTREAM_CONTEXT"


@dataclass(frozen=True, slots=True)
class Contexts:
    """The saved clusters, and the one that commands use."""

    clusters: Mapping[str, str] = field(default_factory=dict)
    current: str | None = None
    credentials: Mapping[str, str] = field(default_factory=dict)
    """The files of credentials of those that have one."""

    def address(self, name: str) -> str:
        """Returns the address of a context. Raises InvalidArgument if there is none."""
        if name not in self.clusters:
            raise InvalidArgument(
                f"no context {name!r}{did_you_mean(name, self.clusters)}; `ledgerstream context "
                f"list` shows all, `ledgerstream context add {name} URI` adds it"
            )
        return self.clusters[name]

    def with_cluster(self, name: str, address: str, credentials: str | None = None) -> Contexts:
        """Returns them with one more, which becomes the current one if it is the first.
        `credentials` is its file of credentials, which is not read here."""
        files = {one: file for one, file in self.credentials.items() if one != name}
        if credentials is not None:
            files[name] = credentials
        return Contexts({**self.clusters, name: address}, self.current or name, files)

    def without(self, name: str) -> Contexts:
        """Returns them without one. Raises InvalidArgument if there is none."""
        self.address(name)
        left = {one: address for one, address in self.clusters.items() if one != name}
        files = {one: file for one, file in self.credentials.items() if one != name}
        return Contexts(left, None if self.current == name else self.current, files)

    def using(self, name: str) -> Contexts:
        """Returns them with another current one. Raises InvalidArgument if there is none."""
        self.address(name)
        return replace(self, current=name)


def contexts_file() -> Path:
    """Returns the path of the file, which need not exist."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(folder) / "ledgerstream" / "contexts.json"


def read_contexts() -> Contexts:
    """Returns what the file has; nothing if it does not exist. Raises InvalidArgument, OSError."""
    path = contexts_file()
    try:
        document = json.loads(path.read_bytes())
        clusters, current = document["clusters"], document["current"]
        files = document.get("credentials", {})
        texts = [*clusters.keys(), *clusters.values(), *([] if current is None else [current])]
        texts += [*files.keys(), *files.values()]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError
    except FileNotFoundError:
        return Contexts()
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InvalidArgument(
            f"{path} has no contexts that can be read. Cure: delete it, and add them again "
            f"(ledgerstream context add NAME URI)"
        ) from None
    known = {name: file for name, file in files.items() if name in clusters}
    return Contexts(clusters, current if current in clusters else None, known)


def write_contexts(contexts: Contexts) -> None:
    """Replaces the file. Raises OSError."""
    path = contexts_file()
    path.parent.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    document: dict[str, object] = {
        "clusters": dict(contexts.clusters),
        "current": contexts.current,
    }
    if contexts.credentials:
        document["credentials"] = dict(contexts.credentials)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=2)
            file.write("\n")
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns "; did you mean 'clicks'?" if a known name is similar, else nothing."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
