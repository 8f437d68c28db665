"""Secrets that a test plants, and a search for them in all that programs show.

A test gives a cluster passwords, tokens and keys of these, does what users do, and searches logs,
output, bodies of HTTP and files: no secret may be in any of them, in clear or in a usual encoding.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

_LENGTH_MIN = 8
"""Shorter ones would be found by chance."""
_CONTEXT = 60


def recognisable(name: str) -> str:
    """Returns a password that no other text has, and that changes when it is encoded for a URL."""
    return f"planted/{name}+{name[::-1]}=7Qz&9"


def forms_of(secret: bytes) -> dict[str, bytes]:
    """Returns the encodings of a secret, by name; those of base64 at each offset within a longer
    text, without the characters that depend on what is around them."""
    forms = {
        "plain": secret,
        "hex": secret.hex().encode(),
        "HEX": secret.hex().upper().encode(),
        "URL": quote(secret, safe="").encode(),
        "URL path": quote(secret).encode(),
        "form": quote_plus(secret).encode(),
        "bytes": repr(secret)[2:-1].encode(),
    }
    try:
        text = secret.decode()
    except UnicodeDecodeError:
        pass
    else:
        forms["text"] = repr(text)[1:-1].encode()
        forms["JSON"] = json.dumps(text)[1:-1].encode()
    for offset in range(3):
        encoded = base64.b64encode(bytes(offset) + secret)
        end = (offset + len(secret)) * 8 // 6
        inner = encoded[(offset * 8 + 5) // 6 : end]
        forms[f"base64 at {offset}"] = inner
        forms[f"base64url at {offset}"] = inner.replace(b"+", b"-").replace(b"/", b"_")
    return forms


class PlantedSecrets:
    """All secrets that a test has planted, and where it found one of them."""

    def __init__(self) -> None:
        self._forms: dict[bytes, str] = {}
        self.leaks: list[str] = []
        """What was found: which secret, in which form, where, and the text around it."""
        self.searched_bytes = 0
        self._pattern: re.Pattern[bytes] | None = None

    def plant(self, name: str, secret: bytes | str) -> None:
        """Has a secret be looked for from now on."""
        data = secret.encode() if isinstance(secret, str) else secret
        assert len(data) >= _LENGTH_MIN, f"{name} is too short to be recognised"
        for form, encoded in forms_of(data).items():
            self._forms.setdefault(encoded, f"{name} ({form})")
        self._pattern = None

    def plant_key(self, name: str, file: Path) -> None:
        """Plants a private key: its line in the file that names it, and its number."""
        data = file.read_bytes()
        self.plant(f"{name}, in PEM", data.splitlines()[1])
        key = serialization.load_pem_private_key(data, None)
        if isinstance(key, ec.EllipticCurvePrivateKey):
            number = key.private_numbers().private_value
            self.plant(name, number.to_bytes(key.key_size // 8, "big"))
            self.plant(f"{name}, decimal", str(number))
        elif isinstance(key, rsa.RSAPrivateKey):
            number = key.private_numbers().d
            self.plant(name, number.to_bytes(key.key_size // 8, "big").lstrip(b"\0"))
        elif isinstance(key, ed25519.Ed25519PrivateKey):
            self.plant(name, key.private_bytes_raw())

    def search(self, where: str, data: bytes | str) -> list[str]:
        """Returns and notes which secrets are in what was shown at a place."""
        shown = data.encode(errors="surrogateescape") if isinstance(data, str) else data
        self.searched_bytes += len(shown)
        found = list(self._found(where, shown))
        self.leaks += found
        return found

    def _found(self, where: str, shown: bytes) -> Iterator[str]:
        if self._pattern is None:  # the longest first, so that a leak has its fullest name
            longest = sorted(self._forms, key=len, reverse=True)
            self._pattern = re.compile(b"|".join(map(re.escape, longest)))
        for match in self._pattern.finditer(shown):
            around = shown[max(0, match.start() - _CONTEXT) : match.end() + _CONTEXT]
            yield f"{self._forms[match[0]]} in {where}: {around!r}"

    def search_files(self, paths: Iterable[Path]) -> int:
        """Searches files, and those in directories; returns how many there were."""
        count = 0
        for path in paths:
            files = sorted(path.rglob("*")) if path.is_dir() else [path]
            for file in files:
                if file.is_file():
                    count += 1
                    self.search(str(file), file.read_bytes())
        return count

    def search_processes(self, pids: Iterable[int]) -> None:
        """Searches arguments and environment of processes, which others may be able to list."""
        for pid in pids:
            for name in ("cmdline", "environ"):
                try:
                    data = Path(f"/proc/{pid}/{name}").read_bytes()
                except (FileNotFoundError, ProcessLookupError, PermissionError):
                    continue
                self.search(f"{name} of process {pid}", data.replace(b"\0", b" "))

    def search_all_processes(self) -> None:
        """Searches those of this machine that this user may look at."""
        self.search_processes(
            int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()
        )

    def check(self) -> None:
        """Fails if a secret was found anywhere, and if nothing was searched."""
        assert self.searched_bytes, "nothing was searched"
        assert not self.leaks, "\n".join(self.leaks)
