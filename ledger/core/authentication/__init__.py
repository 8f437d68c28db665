"""Proofs of identity as bytes, both sides: what a client says, and what a bookie believes.

Nonces are given by the caller. Bytes from a peer can cause nothing but Unauthorized, and no error
text or repr shows a password, a token, or what follows from one.

- `names`: the names of users and mechanisms.
- `saslprep`: passwords in one form, however they were typed.
- `scram`: SCRAM-SHA-256 and SCRAM-SHA-512.
- `digest_md5`: DIGEST-MD5, for Apache's clients.
- `bearer`: tokens in an AUTH message.
"""
