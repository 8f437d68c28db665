"""The form of paths and of ids in them, and the limits of nodes, equal for all drivers.

Pure. A path is absolute; its components are non-empty, contain no "/" and no NUL, and are not "."
or "..". ZooKeeper has the same rules, so what one driver accepts the others accept too.
"""

from __future__ import annotations

import re

from ledger.errors import InvalidArgument

NODE_BYTES_MAX = 1_000_000
"""ZooKeeper refuses packets above 1 MiB; the other drivers keep the same bound."""

PATH_CHARS_MAX = 1024
READ_ONLY_NODE = "readonly"
"""The node whose children are read-only bookies; no bookie may have it for an id."""
_BOOKIE_ID = re.compile(r"[a-zA-Z0-9:-_.\-]+\Z")
"""Apache's own pattern, in which `:-_` is a range of ASCII too."""
TRANSACTION_CHANGES_MAX = 10_000
"""A limit of our own; ZooKeeper limits the bytes of a transaction."""


def check_path(path: str) -> str:
    """Returns `path`, or raises InvalidArgument, which says what is wrong with it."""
    if path == "/":
        return path
    if not path.startswith("/"):
        raise InvalidArgument(f"metadata path {path!r} must start with '/'")
    if len(path) > PATH_CHARS_MAX:
        raise InvalidArgument(f"metadata path has {len(path)} characters, {PATH_CHARS_MAX} at most")
    if not path.isascii():
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"metadata path {path!r} is not Unicode: {error}") from None
    if "\0" in path:
        raise InvalidArgument(f"metadata path {path!r} contains NUL")
    for name in path[1:].split("/"):
        if name in ("", ".", ".."):
            raise InvalidArgument(f"metadata path {path!r} has the component {name!r}")
    return path


def check_node(path: str, size: int) -> None:
    """Raises InvalidArgument for a path that cannot be written, or data that is too large."""
    if check_path(path) == "/":
        raise InvalidArgument("the root of the metadata tree cannot be written")
    if size > NODE_BYTES_MAX:
        raise InvalidArgument(f"{path}: {size} bytes of metadata, {NODE_BYTES_MAX} at most")


def check_bookie_id(bookie_id: str) -> str:
    """Returns the id, or raises InvalidArgument."""
    if not _BOOKIE_ID.match(bookie_id) or bookie_id.lower() in (READ_ONLY_NODE, ".", ".."):
        raise InvalidArgument(
            f"bookie id {bookie_id!r} must consist of letters, digits and . - _ : ; < = > ? @ [ \\"
            f" ] ^ and may not be {READ_ONLY_NODE!r}"
        )
    return bookie_id


def parent_of(path: str) -> str:
    """Returns the parent: "/a/b" -> "/a", "/a" -> "/"."""
    return path.rpartition("/")[0] or "/"


def name_of(path: str) -> str:
    """Returns the last component: "/a/b" -> "b"."""
    return path.rpartition("/")[2]


def numbered(prefix: str, number: int) -> str:
    """Returns the path of a numbered node: "/a/V_", 7 -> "/a/V_0000000007", as in ZooKeeper."""
    return f"{prefix}{number:010d}"


def counter_of(prefix: str) -> str:
    """Returns the name of the counter of numbered nodes, which is that of the parent: "/a/V_" ->
    "/a/". It is no path, so that it is not the counter of ids of any path."""
    return f"{prefix.rpartition('/')[0]}/"


def ancestors_of(path: str) -> list[str]:
    """Returns all ancestors except the root, topmost first: "/a/b/c" -> ["/a", "/a/b"]."""
    parts = path[1:].split("/")
    return ["/" + "/".join(parts[:count]) for count in range(1, len(parts))]
