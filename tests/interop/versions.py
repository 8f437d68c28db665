"""The releases of Apache BookKeeper that the interop suite runs, and the table has columns for."""

VERSIONS = ("4.16.6", "4.17.3", "4.18.0")
