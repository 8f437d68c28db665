"""The form of paths and the limits of nodes, equal for all drivers.

Pure. A path is absolute; its components are non-empty, contain no "/" and no NUL, and are not "."
or "..". ZooKeeper has the same rules, so what one driver accepts the others accept too.
"""

from __future__ import annotations

from ledger.errors import InvalidArgument

NODE_BYTES_MAX = 1_000_000
"""ZooKeeper refuses packets above 1 MiB; the other drivers keep the same bound."""

PATH_CHARS_MAX = 1024
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
