"""`python -m stream.cli`: the command without its installed script."""

from stream.cli import main

main()
