"""The `zk://` form of a cluster address: the servers, the cluster's root, the ledger manager.

Pure. It accepts Apache BookKeeper's service addresses too, such as
`zk+hierarchical://a:2181;b:2181/ledgers`. It must never guess: an address needs a root.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import unquote

from ledger.errors import InvalidArgument
from ledger.metastore.paths import check_path, name_of, parent_of
from ledger.shown_text import shown_address

PORT = 2181
MANAGERS = ("hierarchical", "longhierarchical", "flat")
"""As in Apache's addresses, the legacy layout cannot be asked for; a cluster may have it."""
USUAL_ROOT = "/ledgers"
OWN = "/ledgerstream"
"""The part of a store's tree that is not Apache's: streams and clients."""

FORM = "zk://HOST:2181,HOST:2181/ledgers"

_HOST = re.compile(r"[^\s/@:\[\]?#%\\\"'<>]+")


@dataclass(frozen=True, slots=True)
class ZooKeeperAddress:
    """`chroot` is the parent of the ledgers root ("" if that is the root of the tree); `root` is
    the ledgers root relative to it; `manager` is None if the cluster's LAYOUT node decides."""

    uri: str
    servers: tuple[tuple[str, int], ...]
    chroot: str
    root: str
    manager: str | None

    @property
    def own(self) -> str:
        """The path of our own nodes, relative to `chroot`: beside the root, with a name that
        differs between clusters whose roots have the same parent."""
        return OWN if self.root == USUAL_ROOT else f"{OWN}-{self.root[1:]}"

    @property
    def hosts(self) -> str:
        """The servers as ZooKeeper's clients write them: "a:2181,[::1]:2181"."""
        return ",".join(f"[{h}]:{p}" if ":" in h else f"{h}:{p}" for h, p in self.servers)


def is_zookeeper(uri: str) -> bool:
    """Whether the scheme is ZooKeeper's; the rest of the address may still be invalid."""
    scheme = uri.partition(":")[0].lower()
    return scheme == "zk" or scheme.startswith("zk+")


def parse_address(uri: str) -> ZooKeeperAddress:
    """Raises InvalidArgument, which says what is wrong and shows the form of an address."""
    scheme, slashes, rest = uri.partition("://")
    if not slashes or not is_zookeeper(uri):
        raise _refused(uri, "does not start with zk://")
    authority, _, below = rest.partition("/")
    if shown_address(uri) != uri:
        raise _refused(uri, "names a user, and users are not supported")
    servers = tuple(_server(uri, text) for text in re.split("[,;]", authority))
    path = unquote("/" + below.rstrip("/"))
    if path == "/":
        raise _refused(uri, "has no path: add the ledgers root, which is /ledgers by default")
    if "?" in below or "#" in below:
        raise _refused(uri, "has a '?' or '#', which mean nothing here")
    try:
        check_path(path)
    except InvalidArgument as error:
        raise _refused(uri, str(error)) from None
    parent = parent_of(path)
    if f"/{name_of(path)}" == OWN:
        raise _refused(uri, f"ends in {OWN}, where streams lie: name the ledgers root otherwise")
    return ZooKeeperAddress(
        uri=uri,
        servers=servers,
        chroot="" if parent == "/" else parent,
        root=f"/{name_of(path)}",
        manager=_manager(uri, scheme.lower()),
    )


def _manager(uri: str, scheme: str) -> str | None:
    name = scheme.removeprefix("zk").removeprefix("+")
    if scheme == "zk" or name == "null":
        return None
    if name not in MANAGERS:
        known = ", ".join((*MANAGERS, "null"))
        raise _refused(uri, f"has the ledger manager {name!r}, known are {known}")
    return name


def _server(uri: str, text: str) -> tuple[str, int]:
    if text.startswith("["):
        host, bracket, port_text = text[1:].partition("]")
        is_good = bool(bracket) and (not port_text or port_text.startswith(":"))
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            is_good = False
        port_text = port_text[1:] if port_text else str(PORT)
    else:
        host, colon, port_text = text.partition(":")
        if ":" in port_text:
            raise _refused(uri, f"has the server {text!r}: an IPv6 address goes in brackets")
        is_good = _HOST.fullmatch(host) is not None and _is_name(host)
        port_text = port_text if colon else str(PORT)
    if not is_good:
        raise _refused(uri, f"has the server {text!r}, which is no host")
    if not re.fullmatch("[0-9]{1,5}", port_text) or not 0 < int(port_text) < 65536:
        raise _refused(uri, f"has the server {text!r}, whose port is not in 1..65535")
    return host, int(port_text)


def _is_name(host: str) -> bool:
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def _refused(uri: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"cluster address {shown_address(uri)!r} {why}. Use {FORM}")
