"""Streams: endless logs made of ledgers. Public names of the package."""
