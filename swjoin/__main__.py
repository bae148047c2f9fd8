"""`python -m swjoin` is the same as `swjoin`."""

from swjoin.cli.main import main

raise SystemExit(main())
