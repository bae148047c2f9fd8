"""Arrow Flight: the endpoint of a live run, its streams in and out, and its clients.

What: the modules behind `swjoin serve`, `push` and `tail`.
Why: live streams arrive over a network, and consumers receive results while the run produces them.
Stays out: joining, the dashboard (`monitor`).
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC would log every error of a client besides our one line
