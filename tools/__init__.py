"""Programs for the development of ledgerstream; they are not part of the distribution."""
