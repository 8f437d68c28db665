"""The settings of a bookie that say who is served, and who the bookie itself is to the others."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ledger.core.authentication.names import CERTIFICATE, MECHANISMS, TOKEN
from ledger.errors import InvalidArgument
from ledger.options import ClientOptions
from ledger.runtime.config import setting


@dataclass(frozen=True, kw_only=True)
class AuthenticationSettings:
    """Settings of authentication."""

    authentication_mechanisms: tuple[str, ...] = setting(
        (),
        unit="names",
        apache="bookieAuthProviderFactoryClass",
        reason="How clients may prove who they are: `SCRAM-SHA-256`, `SCRAM-SHA-512`, `TOKEN`,"
        " `CERTIFICATE`, and for Apache's clients `DIGEST-MD5`, which is weak; others get nothing"
        " but the health of the bookie over HTTP. None: every client is served.",
    )
    anonymous_allowed: bool = setting(
        False,
        unit="",
        apache="",
        reason="With `authentication_mechanisms`: a client that proves nothing is served as the"
        " user `anonymous`.",
    )
    token_keys_file: str = setting(
        "",
        unit="path",
        apache="",
        reason="The public keys that tokens are signed with, as PEM or as a JSON Web Key Set, in"
        " which keys of unknown kinds are left out; read again when it changes.",
    )
    token_audience: str = setting(
        "",
        unit="",
        apache="",
        reason="What a token must name as its audience (`aud`), so that one for another service is"
        " worth nothing here.",
    )
    token_issuer: str = setting(
        "", unit="", apache="", reason="Who must have issued a token (`iss`); empty is anyone."
    )
    token_user_claim: str = setting(
        "sub", unit="", apache="", reason="The claim of a token that names its user."
    )
    secrets_in_clear_allowed: bool = setting(
        False,
        unit="",
        apache="",
        reason="Accepts tokens, `DIGEST-MD5`, and passwords over HTTP on connections that are not"
        " encrypted, where everybody who listens to the network can take them; SCRAM is always"
        " accepted. As a client, this bookie sends its own token so, too.",
    )
    credentials_file: str = setting(
        "",
        unit="path",
        apache="clientAuthProviderFactoryClass",
        reason="Who this bookie is to the other ones, from which it copies ledgers: a file like"
        " that of `--credentials`, which only its owner can read.",
    )

    def check_mechanisms(self, tls_client_certificate: str) -> None:
        """Raises InvalidArgument if these settings contradict each other, or the setting of that
        name."""
        for name in self.authentication_mechanisms:
            if name not in MECHANISMS:
                raise InvalidArgument(
                    f"authentication_mechanisms has {name!r}, known are {', '.join(MECHANISMS)}"
                )
        if CERTIFICATE in self.authentication_mechanisms and tls_client_certificate == "none":
            raise InvalidArgument(
                "authentication_mechanisms has CERTIFICATE, but no client is asked for one. Cure:"
                " tls_client_certificate = optional or required, and tls_ca_file"
            )
        if self.anonymous_allowed and not self.authentication_mechanisms:
            raise InvalidArgument(
                "anonymous_allowed is set without authentication_mechanisms: every client is"
                " anonymous then. Cure: name mechanisms, or leave it out"
            )
        has_tokens = TOKEN in self.authentication_mechanisms
        for name in ("token_keys_file", "token_audience"):
            if has_tokens and not getattr(self, name):
                raise InvalidArgument(f"authentication by TOKEN needs {name}")
        for name in ("token_keys_file", "token_audience", "token_issuer"):
            if getattr(self, name) and not has_tokens:
                raise InvalidArgument(f"{name} is set, but authentication_mechanisms has no TOKEN")
        if self.secrets_in_clear_allowed and not (
            self.authentication_mechanisms or self.credentials_file
        ):
            raise InvalidArgument(
                "secrets_in_clear_allowed is set, but there are no secrets: neither"
                " authentication_mechanisms nor credentials_file. Cure: leave it out"
            )
        if not self.token_user_claim:
            raise InvalidArgument("token_user_claim is empty, must name a claim like sub")

    def with_credentials(self, options: ClientOptions) -> ClientOptions:
        """Returns these options of a client with the bookie's own credentials."""
        return replace(
            options,
            credentials_file=self.credentials_file,
            secrets_in_clear_allowed=self.secrets_in_clear_allowed,
        )

    @property
    def is_authentication_on(self) -> bool:
        """Whether clients must prove who they are, or may."""
        return bool(self.authentication_mechanisms)
