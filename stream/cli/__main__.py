"""`python -m stream.cli`: the command without its installed script."""

from ledgerstream_entry import main

main()
