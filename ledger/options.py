"""Settings of a ledger client: its timeouts and its bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from ledger.credentials import (
    SETTINGS,
    Credentials,
    environment_settings,
    read_client_settings,
)
from ledger.errors import InvalidArgument

TLS_MODES = ("off", "start_tls", "direct")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The settings of one `LedgerClient`, fixed for its life. Raises InvalidArgument for a value
    that can never work."""

    wire_version: int = 2
    """2: adds and reads use the cheap binary protocol, all else v3, over two connections to
    each bookie. 3: everything uses v3, over one; batch reads become single reads."""

    window_entries: int = 10_000
    """Entries of one writer that may be in flight, sent and not confirmed; then `append` waits."""

    window_bytes: int = 32 * 1024 * 1024
    """Bytes of one writer that may be in flight; it holds them to resend after a failure."""

    outbox_bytes_max: int = 64 * 1024 * 1024
    """Unsent bytes for one bookie; with more, the bookie counts as too slow and is replaced."""

    add_timeout_s: float = 5.0
    """A bookie that acknowledges nothing for this long, with adds in flight, is replaced."""

    read_timeout_s: float = 5.0
    """How long one read request may take before it counts as failed."""

    speculative_read_s: float = 0.5
    """After this long without an answer the next replica is asked as well (hedged read)."""

    connect_timeout_s: float = 3.0
    """How long to wait for a connection to a bookie."""

    reconnect_wait_s: float = 0.05
    """First back-off before a bookie that failed is tried again; doubles up to the maximum."""

    reconnect_wait_max_s: float = 1.0

    ensemble_change_timeout_s: float = 15.0
    """How long a writer without an ack quorum looks for replacements before it fails, counted from
    the first failure since an entry was acknowledged."""

    idle_replacement_delay_s: float = 60.0
    """How long a failed bookie may stay away before a writer with nothing in flight replaces it. A
    writer that appends replaces it at once. A bookie that does not say within this time which
    entries of a recovered ledger it holds counts as one that lacks some."""

    lac_linger_ms: float = 0.0
    """After this long an idle writer sends its last add confirmed to the bookies, so that tails
    see the last entry without waiting for the next one. 0: at once, unless the caller that waited
    for that entry appends another one right away. It costs a small request to each bookie for an
    entry that no other follows; a longer time saves some of them where entries follow closely.
    Bookies of ours that say that no reader waits get it after 50 to 100 ms, or this time."""

    read_ahead_bytes: int = 8 * 1024 * 1024
    """Bytes that a range read may hold ahead of its consumer."""

    batch_read_bytes: int = 1024 * 1024
    """Size of the response that one batch read requests."""

    long_poll_s: float = 5.0
    """How long a bookie may hold a tailing read open. After each one without news the reader
    checks whether the writer is gone."""

    location: str = ""
    """Where the client is, like "/region/rack". It then reads from bookies nearby first, and a
    ledger whose placement is by racks or regions gets its first bookie there if possible."""

    weight_by_free_space: bool = False
    """Bookies with more free space are chosen more often, in proportion to up to three times the
    median. They are asked for it in the background, at most once a day."""

    tls: str = "off"
    """"start_tls": each connection to a bookie is encrypted after a request on its ordinary port,
    as Apache's clients do it. "direct": connects to the port for TLS that the bookie publishes. A
    bookie that does not encrypt is then never used. "off": nothing is encrypted."""

    metadata_tls: bool = False
    """Whether connections to ZooKeeper are encrypted, with the same files; the certificate must be
    for the server's name in the cluster's address. The port is its secureClientPort."""

    tls_ca_file: str = ""
    """PEM file with the authorities of which certificates of bookies are accepted; "" are those
    that the system trusts."""

    tls_certificate_file: str = ""
    """PEM file with the client's own certificate, for bookies that ask for one."""

    tls_key_file: str = ""
    """PEM file with its private key, if that is not in the same file. Other users must not be able
    to read it. All files are read again when they have changed."""

    tls_key_password_file: str = ""
    """File whose first line is the password of an encrypted key."""

    tls_checks_host_names: bool = True
    """A bookie's certificate must be for the host in the bookie's id, or, if the id is a free name,
    for the host that it publishes. Without this check each holder of a certificate of these
    authorities can pass for any bookie."""

    credentials: Credentials | None = None
    """Who the client is, for bookies that authenticate clients. Its secrets are not shown by a
    repr."""

    credentials_file: str = ""
    """A file of TOML with the credentials (`ledger.credentials.read_credentials`), read again for
    each connection. Only its owner may be able to read it."""

    secrets_in_clear_allowed: bool = False
    """Sends a token, an exchange of DIGEST-MD5, and over HTTP a password also where nothing is
    encrypted, so that everybody who listens to the network can take them. Not needed for SCRAM."""

    cluster_secret_file: str = ""
    """The file with the secret of the cluster, if it has one, or with the keys of the namespaces
    that the client uses: keys of new ledgers of streams and sinks are derived from them. Its owner
    alone may read it. Empty: what the environment variable LEDGERSTREAM_CLUSTER_SECRET_FILE
    names."""

    zookeeper_credentials_file: str = ""
    """The file with user and password for ZooKeeper ("user:password", scheme digest). Its owner
    alone may read it. Empty: what the environment variable
    LEDGERSTREAM_ZOOKEEPER_CREDENTIALS_FILE names."""

    zookeeper_acl: str = ""
    """Who may use the nodes that the client makes in ZooKeeper: "creator" (the user of the
    credentials alone), "open" (every client), or the ids of the owners' and the clients' user, with
    a comma between them, as the bookies have it. Empty: what the environment variable
    LEDGERSTREAM_ZOOKEEPER_ACL says, else "open"."""

    @classmethod
    def from_file(cls, file: str | Path, **others: Any) -> Self:
        """Returns the options that a file of credentials has: who the client is, how its
        connections are encrypted (`tls` and the options whose names begin with it), and where the
        keys of ledgers are.

        `others` are further options; they go before what the file says. Raises InvalidArgument if
        the file cannot be used, or others than its owner can read it.
        """
        return cls(**{**read_client_settings(file), **others})

    def completed(
        self, credentials: str | Path | Credentials | None, environment: Mapping[str, str]
    ) -> Self:
        """Returns these options with who the client is and how its connections are encrypted.

        That is what `credentials` say, a file as for `from_file` or `Credentials`. If they are
        None and the options say neither, it is what the environment says
        (`ledger.credentials.environment_settings`). Options that have not their default go before
        a file. Raises InvalidArgument as `from_file` does, and for credentials in both.
        """
        given = self._given()
        if credentials is None:
            is_said = any(name in given for name in SETTINGS)
            return self if is_said else replace(self, **environment_settings(environment))
        if self.credentials is not None or self.credentials_file:
            raise InvalidArgument("give credentials, or those in the options, not both")
        if isinstance(credentials, Credentials):
            return replace(self, credentials=credentials)
        return self.from_file(credentials, **given)

    def _given(self) -> dict[str, Any]:
        """Returns the options that have not their default."""
        values = ((each, getattr(self, each.name)) for each in fields(self))
        return {each.name: value for each, value in values if value != each.default}

    def __post_init__(self) -> None:
        if self.wire_version not in (2, 3):
            raise InvalidArgument(f"wire_version is 2 or 3, not {self.wire_version}")
        if not self.idle_replacement_delay_s > 0:
            raise InvalidArgument(
                f"idle_replacement_delay_s is more than 0, not {self.idle_replacement_delay_s:g}"
            )
        self._check_tls()

    def _check_tls(self) -> None:
        if self.tls not in TLS_MODES:
            raise InvalidArgument(f"tls is one of {', '.join(TLS_MODES)}, not {self.tls!r}")
        names = ("tls_ca_file", "tls_certificate_file", "tls_key_file", "tls_key_password_file")
        given = [name for name in names if getattr(self, name)]
        if self.tls == "off" and not self.metadata_tls and given:
            raise InvalidArgument(
                f"{given[0]} is given, but nothing is encrypted. Cure: tls = start_tls"
            )
        if not self.tls_certificate_file and (self.tls_key_file or self.tls_key_password_file):
            raise InvalidArgument(
                "a key of the client is given without its certificate. Cure: tls_certificate_file"
            )
        if self.credentials is not None and self.credentials_file:
            raise InvalidArgument("give credentials or credentials_file, not both")
