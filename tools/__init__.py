"""Programs for those who work on ledgerstream. They are not part of the distribution."""
