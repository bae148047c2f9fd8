"""Calls that block, awaited.

What: `WorkerThread`: a thread for such calls from asyncio, one at a time.
Why: joining takes milliseconds, and waiting for a server as long as it likes; an event loop must not stand still meanwhile. A
thread of its own, because the loop's default threads are few, and waiting calls would keep them from others.
Stays out: what is called.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_Value = TypeVar("_Value")


class WorkerThread:
    """One thread, which starts with the first call. on_cancel: called when a call's task is cancelled, to end the call soon."""

    def __init__(self, name: str, on_cancel: Callable[[], object] = lambda: None) -> None:
        self._pool = ThreadPoolExecutor(1, name)
        self._on_cancel = on_cancel

    async def call(self, function: Callable[_P, _Value], *args: _P.args, **kwargs: _P.kwargs) -> _Value:
        """The function's value, or its exception. A cancelled call has ended, in its thread, too, when this raises."""
        context = contextvars.copy_context()
        future = asyncio.wrap_future(self._pool.submit(context.run, partial(function, *args, **kwargs)))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._on_cancel()
            while not future.done():
                with contextlib.suppress(asyncio.CancelledError):  # again
                    await asyncio.wait([future])
            if not future.cancelled():
                future.exception()  # else asyncio reports that nobody has asked for it
            raise

    def close(self) -> None:
        """End the thread; waits for no call."""
        self._pool.shutdown(wait=False)
