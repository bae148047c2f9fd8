"""`python -m swjoin` is the `swjoin` command."""

from swjoin.cli.main import entry

entry()
