"""`WindowJoin.stream`: two asynchronous streams joined in an event loop.

What: `join_streams`, an asynchronous generator of the pairs.
Why: sources of asyncio programs (sockets, queues, brokers' clients) are asynchronous iterators. Both are read at once, so
that an idle one does not hold up the other; what has been read is joined in a thread.
Stays out: joining (`api.streaming`), threads (`core.worker_thread`).

A stream whose next rows can match nothing that has been read of the other one is not read until the other one has come so far.
This bounds memory and delays no pair.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES
from swjoin.core.worker_thread import WorkerThread

if TYPE_CHECKING:
    import pyarrow as pa

_END = object()
_Value = TypeVar("_Value")
Found: TypeAlias = tuple[Iterator[Any], Any]


class Calls(NamedTuple):
    """Of a join. end: these streams have no more rows. ahead: whether later rows of a stream can match nothing that has been
    pushed of the other one."""

    push: Callable[..., Iterator[pa.RecordBatch]]
    end: Callable[[Collection[int]], Iterator[pa.RecordBatch]]
    close: Callable[[], Iterator[pa.RecordBatch]]
    ahead: Callable[[int], bool]


async def join_streams(join: Calls, left: AsyncIterable[Any], right: AsyncIterable[Any]) -> AsyncGenerator[pa.RecordBatch]:
    """All pairs of two whole streams. At its end, whatever the reason, nothing runs any more, and both iterators are closed."""
    sources = [aiter(left), aiter(right)]
    worker = WorkerThread("swjoin-stream")
    reads: dict[int, asyncio.Task[Any]] = {}
    ended: set[int] = set()
    try:
        while len(ended) < len(sources):
            for stream in {LEFT, RIGHT} - ended - set(reads):
                if not join.ahead(stream):
                    reads[stream] = asyncio.create_task(_next(sources[stream]))
            done, _ = await asyncio.wait(reads.values(), return_when=asyncio.FIRST_COMPLETED)
            ready = [stream for stream in reads if reads[stream] in done]
            stream = min(ready, key=join.ahead)
            rows = reads.pop(stream).result()
            if rows is _END:
                ended.add(stream)
            found, batch = await worker.call(_joined, join, stream, rows, ended)
            while batch is not None:
                yield batch
                batch = await worker.call(next, found, None)
        found, batch = await worker.call(_closed, join)
        while batch is not None:
            yield batch
            batch = await worker.call(next, found, None)
    finally:
        for task in reads.values():
            task.cancel()
        await asyncio.gather(*reads.values(), return_exceptions=True)
        for source in sources:
            if hasattr(source, "aclose"):
                await source.aclose()
        worker.close()


async def _next(source: AsyncIterator[Any]) -> Any:
    try:
        return await anext(source)
    except StopAsyncIteration:
        return _END


def _joined(join: Calls, stream: int, rows: Any, ended: Collection[int]) -> Found:
    """The pairs and the first of them, after rows or the end of a stream."""
    found: Iterator[Any] = iter(())
    if rows is not _END:
        found = join.push(**{STREAM_NAMES[stream]: rows})
    if ended:  # also again, with the schema of the other stream
        found = join.end(ended)
    return found, next(found, None)


def _closed(join: Calls) -> Found:
    found = join.close()
    return found, next(found, None)


async def in_thread(function: Callable[..., _Value], *args: Any) -> _Value:
    """Its value; it may take long."""
    worker = WorkerThread("swjoin-reader")
    try:
        return await worker.call(function, *args)
    finally:
        worker.close()


async def async_batches(batches: Iterator[pa.RecordBatch]) -> AsyncGenerator[pa.RecordBatch]:
    """Batches of a reader or frame, read in a thread."""
    worker = WorkerThread("swjoin-reader")
    try:
        while (batch := await worker.call(next, batches, None)) is not None:
            yield batch
    finally:
        worker.close()
