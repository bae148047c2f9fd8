"""How long tests wait for what must come. They are limits against hanging, not claims about speed: the machine may be busy.

What: seconds for one process or event (`PROCESS_S`), for a test or fixture with many of them (`LONG_S`); every other test has
the limit in setup.cfg.
"""

from __future__ import annotations

PROCESS_S = 300.0
LONG_S = 3600.0
