"""Connectors of ledgerstream to other systems."""
