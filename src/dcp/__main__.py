"""`python -m dcp`: the command line."""

from dcp.cli import main

main()
