"""The releases of Apache BookKeeper that the interop suite runs; each is a column of the table."""

VERSIONS = ("4.16.6", "4.17.3", "4.18.0")
