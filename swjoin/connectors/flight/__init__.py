"""A run that can be reached while it goes on: an Arrow Flight endpoint, what it takes and gives, and its clients.

What: the room of `swjoin serve`, `push` and `tail`.
Why: streams that arrive now come over a network, and whoever wants the results wants them as they are produced.
Stays out: reading what was pushed (`connectors.flight.source`), joining, what a dashboard shows (`observe`).
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # whatever a client does wrong, gRPC would log it besides our one line
