"""How long tests wait for what must come. They are limits against hanging, not claims about speed: the machine may be busy.

What: seconds for a process or an event (`PROCESS_S`), for a test of many processes (`LONG_S`).
"""

from __future__ import annotations

PROCESS_S = 300.0
LONG_S = 1200.0
