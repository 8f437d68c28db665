"""Secrets of this process, and the files that they are read from, which may also say how the
connections of a client are encrypted, and where the keys of ledgers are.

A secret is shown by no repr, text or error. A file that others can read is refused, as by OpenSSH
and PostgreSQL.
"""

from __future__ import annotations

import hmac
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from ledger.errors import InvalidArgument

FILE_BYTES_MAX: Final = 64 * 1024
SCRAM: Final = "SCRAM-SHA-256"
TOKEN: Final = "TOKEN"
_WHO: Final = ("user", "password", "password_file", "token", "token_file", "mechanism")
_TLS_FILES: Final = (
    "tls_ca_file", "tls_certificate_file", "tls_key_file", "tls_key_password_file",
)  # fmt: skip
_FILES: Final = (*_TLS_FILES, "cluster_secret_file")
_SWITCHES: Final = ("tls_checks_host_names", "metadata_tls", "secrets_in_clear_allowed")
_KEYS: Final[dict[str, type]] = {
    **dict.fromkeys((*_WHO, "tls", *_FILES), str),
    **dict.fromkeys(_SWITCHES, bool),
}
SETTINGS: Final = ("credentials", "credentials_file", *(set(_KEYS) - set(_WHO)))
"""Names of a client's options that say who it is or how its connections are encrypted."""
_VISIBLE = re.compile(r"[!-~]+")
_WITH_PASSWORD: Final = (SCRAM, "SCRAM-SHA-512", "DIGEST-MD5")

CREDENTIALS_VARIABLE: Final = "LEDGERSTREAM_CREDENTIALS"
WHO_VARIABLES: Final = ("LEDGERSTREAM_USER", "LEDGERSTREAM_PASSWORD", "LEDGERSTREAM_TOKEN")
TLS_VARIABLES: Final = {
    f"LEDGERSTREAM_CLIENT_{name.upper()}": name for name in ("tls", *_TLS_FILES)
}
"""Names of options of TLS; a bookie's own settings of TLS have variables without CLIENT."""
METADATA_TLS_VARIABLE: Final = "LEDGERSTREAM_CLIENT_METADATA_TLS"


class Secret:
    """A text that is shown as `***`; `reveal` returns it. Raises InvalidArgument for what is no
    str."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        given: object = text
        if not isinstance(given, str):
            raise InvalidArgument(f"a Secret is made of a str, not of {type(given).__name__}")
        self._text = given

    def reveal(self) -> str:
        """Returns the text."""
        return self._text

    def __repr__(self) -> str:
        return "Secret('***')"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return 1  # the hash of a text would say something about it


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Who a client is: a user with a password, or a token. Raises InvalidArgument for anything
    else, or a mechanism that does not fit."""

    user: str = ""
    password: Secret | None = None
    token: Secret | None = None
    mechanism: str = ""
    """For a password: SCRAM-SHA-256, which is the default, SCRAM-SHA-512, or DIGEST-MD5 for
    bookies of Apache's."""

    def __post_init__(self) -> None:
        for name in ("password", "token"):
            _check_secret(name, getattr(self, name))
        if (self.password is None) == (self.token is None):
            raise InvalidArgument("credentials are a user with a password, or a token: give one")
        if self.token is not None:
            if self.user or self.mechanism:
                raise InvalidArgument("a token names its user itself: leave out user and mechanism")
            return
        if not self.user:
            raise InvalidArgument("a password needs the user that it belongs to")
        if not _is_utf8(self.user):
            raise InvalidArgument("the user is not text in UTF-8")
        if self.mechanism not in ("", *_WITH_PASSWORD):
            raise InvalidArgument(
                f"mechanism is {self.mechanism!r}, must be one of {', '.join(_WITH_PASSWORD)}"
            )

    @property
    def in_use(self) -> str:
        """The mechanism by which bookies are to believe them."""
        return TOKEN if self.token is not None else self.mechanism or SCRAM


def _check_secret(name: str, given: object) -> None:
    """Raises InvalidArgument, which does not quote it, for what no password or token can be.

    It is said here, before anything is sent: libraries quote what they cannot send.
    """
    if given is None:
        return
    if not isinstance(given, Secret):
        raise InvalidArgument(
            f"{name} is a {type(given).__name__}, which a repr shows: give {name}=Secret(...)"
        )
    text = given.reveal()
    if not text:
        raise InvalidArgument(f"the {name} is empty")
    if not _is_utf8(text):
        raise InvalidArgument(f"the {name} is not text in UTF-8")
    if name == "token" and not _VISIBLE.fullmatch(text):
        raise InvalidArgument(
            "the token has characters that no token has, like a space or a line feed"
        )


def _is_utf8(text: str) -> bool:
    """Returns whether a text, perhaps from the environment, has no bytes but those of UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_credentials(file: str | Path) -> Credentials:
    """Returns the credentials in a file of TOML: `user` and `password` (or `password_file`), and
    perhaps `mechanism`; or `token` (or `token_file`).

    A path in it is relative to the file. What else it says is checked and not returned, see
    `read_client_settings`. Raises InvalidArgument, also if others than its owner can read one of
    the files.
    """
    path = Path(file)
    given = _read(path)
    try:
        return Credentials(
            user=given.get("user", ""),
            password=_secret(given, "password", path),
            token=_secret(given, "token", path),
            mechanism=given.get("mechanism", "").upper(),
        )
    except InvalidArgument as error:
        raise InvalidArgument(f"credentials file {path}: {error}") from None


def read_client_settings(file: str | Path) -> dict[str, Any]:
    """Returns what a file of credentials says of a client, by the names in `ClientOptions`: those
    of TLS and of the keys of ledgers, and `credentials_file` if the file has a user or a token,
    too.

    Paths are absolute. Raises InvalidArgument as `read_credentials` does.
    """
    path = Path(file)
    given = _read(path)
    found = {name: value for name, value in given.items() if name not in _WHO}
    for name in _FILES:
        if found.get(name):
            found[name] = str(path.absolute().parent / found[name])
    if not found or any(name in given for name in _WHO):
        read_credentials(path)
        found["credentials_file"] = str(file)
    return found


def environment_settings(environment: Mapping[str, str], file: str = "") -> dict[str, Any]:
    """Returns what the environment says of a client, by the names in `ClientOptions`: the same for
    the command, Python and Spark.

    It is what the file has that LEDGERSTREAM_CREDENTIALS names, or `file` instead of it; without a
    file LEDGERSTREAM_USER and LEDGERSTREAM_PASSWORD, or LEDGERSTREAM_TOKEN.
    LEDGERSTREAM_CLIENT_TLS and those that begin with it go before a file. Raises InvalidArgument.
    """
    tls: dict[str, Any] = {
        option: environment[name] for name, option in TLS_VARIABLES.items() if environment.get(name)
    }
    if given := environment.get(METADATA_TLS_VARIABLE):
        if given not in ("true", "false"):
            raise InvalidArgument(f"{METADATA_TLS_VARIABLE} is {given!r}, must be true or false")
        tls["metadata_tls"] = given == "true"
    if file or (file := environment.get(CREDENTIALS_VARIABLE, "")):
        return {**read_client_settings(file), **tls}
    user, password, token = (environment.get(name, "") for name in WHO_VARIABLES)
    if not (user or password or token):
        return tls
    who = Credentials(
        user=user,
        password=Secret(password) if password else None,
        token=Secret(token) if token else None,
    )
    return {"credentials": who, **tls}


def _read(path: Path) -> dict[str, Any]:
    import tomllib  # most processes read no such file

    try:
        given: dict[str, Any] = tomllib.loads(_text(read_private(path), path))
    except tomllib.TOMLDecodeError as error:
        # Its text has the position, not the line.
        raise InvalidArgument(f"credentials file {path} is not TOML: {error}") from None
    for name, value in given.items():
        if type(value) is not _KEYS.get(name):
            wanted = "no true or false" if _KEYS.get(name) is bool else "no text"
            raise InvalidArgument(
                f"credentials file {path}: {name!r} is unknown or {wanted}; known are "
                f"{', '.join(_KEYS)}"
            )
    return given


def _secret(given: dict[str, Any], name: str, path: Path) -> Secret | None:
    file = given.get(f"{name}_file")
    if file is None:
        return Secret(given[name]) if name in given else None
    if name in given:
        raise InvalidArgument(f"give {name} or {name}_file, not both")
    return read_secret(path.parent / file)


def read_secret(file: str | Path) -> Secret:
    """Returns the text of a file without the line feed at its end. Raises InvalidArgument, also if
    others than its owner can read it, or it is empty."""
    path = Path(file)
    text = _text(read_private(path), path)
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise InvalidArgument(f"{path} is empty, must contain the secret")
    return Secret(text)


def read_private(file: str | Path, what: str = "secret") -> bytes:
    """Returns the content of a file that only its owner can read or change.

    The rule is PostgreSQL's for private keys: if root owns the file and this process is another
    user's, its group may read it, too. That others may execute it is allowed, which lets them do
    nothing: Spark marks all files so that it distributes.

    Args:
        file: its path.
        what: names in errors what is in it; it is never quoted.

    Raises InvalidArgument if others can read or change it, if it cannot be read here, is not a
    regular file, or has more than 64 KiB.
    """
    path = os.fspath(file)
    try:
        with open(path, "rb") as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise InvalidArgument(f"{path} is not a file. Cure: name the file with the {what}")
            allowed = 0o640 if status.st_uid == 0 and os.geteuid() != 0 else 0o600
            mode = stat.S_IMODE(status.st_mode)
            if mode & 0o066 & ~allowed:
                raise InvalidArgument(
                    f"{path} has mode {mode:04o}: others can read or change the {what} in it. "
                    f"Cure: chmod {allowed:o} {path}, and change the {what}"
                )
            data = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidArgument(
            f"the {what} in {path} cannot be read: {error.strerror}. Cure: name a file that this "
            "user can read"
        ) from error
    if len(data) > FILE_BYTES_MAX:
        raise InvalidArgument(
            f"{path} has more than {FILE_BYTES_MAX} bytes. Cure: name the file with the {what}"
        )
    return data


def check_not_writable_by_others(opened: IO[bytes]) -> None:
    """Raises InvalidArgument if others than its owner and group can write to a file of public keys
    or certificates that are trusted."""
    mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
    if mode & stat.S_IWOTH:
        raise InvalidArgument(
            f"{opened.name} has mode {mode:04o}: every user of this machine can add to what is "
            f"trusted. Cure: chmod o-w {opened.name}, and check what is in the file"
        )


def _text(data: bytes, path: Path) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidArgument(f"{path} is not text in UTF-8") from None
