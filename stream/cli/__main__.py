"""`python -m stream.cli`: runs the command without its installed script."""

from ledgerstream_entry import main

main()
