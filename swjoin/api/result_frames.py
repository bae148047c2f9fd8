"""Results as data frames of the libraries that the inputs came from.

What: `converter`: the option `returns` of `swjoin.join` as a function of the result.
Why: who joins data frames of pandas or polars goes on with such frames.
Stays out: reading frames (`connectors.frames`), joining (`api.tables`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

from swjoin.config.arguments import one_of
from swjoin.config.options import Returns
from swjoin.connectors.frames import LazyFrame
from swjoin.core.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa


def converter(returns: Returns, left: object) -> Callable[[pa.Table], Any]:
    """What makes the frame that `returns` asks for out of a result. left: the left input. UserError for an unknown kind of
    frame, and for a library that is not installed."""
    one_of(returns, get_args(Returns), "returns")
    library = type(left).__module__.partition(".")[0] if returns == "same" else returns
    if library not in ("pandas", "polars"):
        return lambda table: table
    try:
        package = importlib.import_module(library)
    except ImportError as error:
        raise UserError(f"returns: {library} cannot be imported ({error}); install it, or take an Arrow table") from None
    if library == "pandas":
        return lambda table: table.to_pandas()
    if returns == "same" and isinstance(left, LazyFrame):
        return lambda table: package.from_arrow(table).lazy()
    return lambda table: package.from_arrow(table)
