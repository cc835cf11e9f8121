"""`python -m asyncparl.cli` is `asyncparl`."""

from asyncparl.cli import main

main()
