"""Connectors of ledgerstream to other systems."""

__distribution__ = "ledgerstream"
