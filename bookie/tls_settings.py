"""Settings of TLS: a section of a bookie's settings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from bookie.config_sections import check_minimums
from ledger.errors import InvalidArgument
from ledger.options import TLS_MODES, ClientOptions
from ledger.runtime.config import setting

if TYPE_CHECKING:
    from ledger.runtime.certificates import TlsContext

_CLIENT_CERTIFICATES = ("none", "optional", "required")


@dataclass(frozen=True, kw_only=True)
class TlsSettings:
    """Settings of TLS, on the bookie's ports and on its own way to other bookies."""

    tls_certificate_file: str = setting(
        "",
        unit="path",
        apache="tlsCertificatePath",
        reason="PEM file with the bookie's certificate, for the host in its id, and those between"
        " it and the authority; loaded again when it changes. With it, clients may encrypt by"
        " START_TLS on `port`; empty is no TLS.",
    )
    tls_key_file: str = setting(
        "",
        unit="path",
        apache="tlsKeyStore",
        reason="PEM file with its private key, which other users must not be able to read; empty"
        " if the key is in the same file.",
    )
    tls_key_password_file: str = setting(
        "",
        unit="path",
        apache="tlsKeyStorePasswordPath",
        reason="File whose first line is the password of the key; empty if it is not encrypted.",
    )
    tls_ca_file: str = setting(
        "",
        unit="path",
        apache="tlsTrustStore",
        reason="PEM file with the authorities that the bookie accepts certificates of: those of"
        " clients, and those of other bookies when it copies entries.",
    )
    tls_client_certificate: str = setting(
        "none",
        unit="",
        apache="tlsClientAuthentication",
        reason="`required`: only clients with a certificate of these authorities may connect over"
        " TLS; `optional`: one is asked for and checked; `none`: none is asked for.",
    )
    tls_required: bool = setting(
        False,
        unit="",
        apache="",
        reason="Refuses every request that is not encrypted. Off by default, so that clients can be"
        " changed one after the other.",
    )
    tls_port: int = setting(
        0,
        unit="",
        apache="",
        reason="A port with TLS from the first byte, published beside `port`; 0 is off.",
    )
    tls_handshake_ms_max: int = setting(
        10_000,
        unit="ms",
        apache="",
        reason="A peer whose handshake takes longer is disconnected.",
    )
    tls_to_bookies: str = setting(
        "off",
        unit="",
        apache="",
        reason="How this bookie encrypts when it copies entries of other bookies: `start_tls`,"
        " `direct` (to their `tls_port`) or `off`. With its own certificate, if it has one.",
    )
    metadata_tls: bool = setting(
        False,
        unit="",
        apache="",
        reason="Connects to ZooKeeper over TLS, at its `secureClientPort`, with `tls_ca_file` and"
        " the bookie's certificate, if it has one.",
    )
    http_tls: bool = setting(
        False,
        unit="",
        apache="httpServerTlsEnable",
        reason="Serves HTTP over TLS alone, with the same certificate, and asks clients for theirs"
        " as `tls_client_certificate` says.",
    )

    def check(self) -> None:
        """Raises InvalidArgument if these settings contradict each other; looks at no file."""
        check_minimums(TlsSettings, self, may_be_zero=("tls_port",))
        if self.tls_port > 65535:
            raise InvalidArgument(f"tls_port is {self.tls_port}, must be at most 65535")
        _check_choice("tls_client_certificate", self.tls_client_certificate, _CLIENT_CERTIFICATES)
        _check_choice("tls_to_bookies", self.tls_to_bookies, TLS_MODES)
        if not self.tls_certificate_file:
            for name in ("tls_key_file", "tls_key_password_file", "tls_required", "tls_port",
                         "http_tls"):  # fmt: skip
                if getattr(self, name):
                    raise InvalidArgument(
                        f"{name} is given, but the bookie has no certificate. Cure: "
                        "tls_certificate_file"
                    )
        if self.tls_client_certificate != "none" and not (
            self.tls_certificate_file and self.tls_ca_file
        ):
            raise InvalidArgument(
                f"tls_client_certificate is {self.tls_client_certificate}, but there is no "
                "certificate of the bookie, or no authority to accept those of clients of. Cure: "
                "tls_certificate_file and tls_ca_file"
            )

    def server_context(self) -> TlsContext | None:
        """Returns the bookie's certificate and key, ready for use; None without TLS. Reads the
        files; raises InvalidArgument if they are unusable."""
        if not self.tls_certificate_file:
            return None
        from ledger.runtime.certificates import TlsContext, TlsFiles, server_context

        files = TlsFiles(
            certificate=self.tls_certificate_file,
            key=self.tls_key_file,
            key_password=self.tls_key_password_file,
            authorities=self.tls_ca_file if self.tls_client_certificate != "none" else "",
        )
        return TlsContext(
            files, partial(server_context, self.tls_client_certificate), is_server=True
        )

    def tls_options(self) -> ClientOptions:
        """Returns how this bookie encrypts as a client of other bookies."""
        if self.tls_to_bookies == "off" and not self.metadata_tls:
            return ClientOptions()
        return ClientOptions(
            tls=self.tls_to_bookies,
            metadata_tls=self.metadata_tls,
            tls_ca_file=self.tls_ca_file,
            tls_certificate_file=self.tls_certificate_file,
            tls_key_file=self.tls_key_file,
            tls_key_password_file=self.tls_key_password_file,
        )

    def metadata_context(self) -> TlsContext | None:
        """Returns what encrypts the connections to ZooKeeper; None if nothing does. Reads the
        files; raises InvalidArgument if they are unusable."""
        if not self.metadata_tls:
            return None
        from ledger.runtime.certificates import client_tls

        return client_tls(self.tls_options())


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidArgument(f"{name} is {value!r}, must be one of {', '.join(choices)}")
