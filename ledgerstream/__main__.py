"""`python -m ledgerstream`: the command."""

from ledgerstream_entry import main

main()
