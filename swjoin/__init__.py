"""swjoin: exact sliding-window joins of two high-rate streams, from one process to an MPI cluster.

`join`, `count` and `proof` for whole tables, `sql` and `stream` for queries, `WindowJoin` for streams, `run` and `Run` for
clusters as configured; see docs/api.md. Whatever they need is imported when they are first used.
"""

from typing import TYPE_CHECKING, Any

from swjoin.core.errors import ImplausibleWarning, RunFailed, UserError
from swjoin.core.version import __version__

if TYPE_CHECKING:
    from swjoin.api.fluent import col, cumulate, expr, hop, lit, row_count, rows, session, stream, tumble
    from swjoin.api.proofs import proof
    from swjoin.api.queries import sql
    from swjoin.api.rdf import rdf
    from swjoin.api.runs import Run, run
    from swjoin.api.streaming import WindowJoin
    from swjoin.api.tables import count, join
    from swjoin.connectors.flight.client import connect
    from swjoin.core.ledger import Proof

__all__ = [
    "ImplausibleWarning",
    "Proof",
    "Run",
    "RunFailed",
    "UserError",
    "WindowJoin",
    "__version__",
    "col",
    "connect",
    "count",
    "cumulate",
    "expr",
    "hop",
    "join",
    "lit",
    "proof",
    "rdf",
    "row_count",
    "rows",
    "run",
    "session",
    "sql",
    "stream",
    "tumble",
]

_HOMES = {
    "Proof": "swjoin.core.ledger",
    "Run": "swjoin.api.runs",
    "WindowJoin": "swjoin.api.streaming",
    "connect": "swjoin.connectors.flight.client",
    "count": "swjoin.api.tables",
    "join": "swjoin.api.tables",
    "proof": "swjoin.api.proofs",
    "rdf": "swjoin.api.rdf",
    "run": "swjoin.api.runs",
    "sql": "swjoin.api.queries",
    **dict.fromkeys(
        ("col", "cumulate", "expr", "hop", "lit", "row_count", "rows", "session", "stream", "tumble"), "swjoin.api.fluent"
    ),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'swjoin' has no attribute {name!r}")
    import importlib

    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
