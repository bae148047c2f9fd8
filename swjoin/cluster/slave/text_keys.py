"""Keys that are no integers, where each instance has codes of its own for them.

What: `TextKeys`: tuples and chunks of state as they travel, with their keys as bytes, to tuples with codes, and back;
`KeysInRows`, of operators that keep rows.
Why: senders that share no dictionary send a hash, by which tuples are routed; equal hashes do not mean equal keys.
Stays out: the dictionary (`core.key_encoder`), the hash, whose sender has it (`connectors.row_encoder`, `cluster.exchange`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from swjoin.core.batch import TupleBatch
from swjoin.core.data_messages import Delivery, Directory, StateChunk
from swjoin.core.key_encoder import Dictionary


class TextKeys:
    """dictionary: of this instance. Tuples whose keys are their own codes pass as they are."""

    def __init__(self, dictionary: Dictionary) -> None:
        self._dictionary = dictionary

    def know(self, dictionary: Dictionary | None) -> None:
        """Before anything is received: the codes that keys had when one gateway gave them; tuples with these pass, too."""
        if dictionary is not None:
            self._dictionary = dictionary

    def received(self, delivery: Delivery) -> Delivery:
        """The delivery with codes."""
        if delivery.left.columns is None and delivery.right.columns is None:
            return delivery
        return replace(delivery, left=self._with_codes(delivery.left), right=self._with_codes(delivery.right))

    def _with_codes(self, batch: TupleBatch) -> TupleBatch:
        if not len(batch):
            return replace(batch, columns=None)
        return replace(batch, key=self._dictionary.codes_of(batch.columns), columns=None)

    def sent_state(self, chunk: StateChunk) -> StateChunk:
        """A chunk of a partition-group that leaves, as it travels."""
        if not len(self._dictionary):
            return chunk
        keys = self._dictionary.of_codes(chunk.tuples.key)
        return replace(chunk, tuples=replace(chunk.tuples, columns=keys))

    def received_state(self, chunk: StateChunk) -> StateChunk:
        """The inverse. With other codes the tuples belong to other mini-partition-groups: all come into one, which is tuned."""
        if chunk.tuples.columns is None:
            return chunk
        tuples = replace(chunk.tuples, key=self._dictionary.codes_of(chunk.tuples.columns), columns=None)
        directory = None if chunk.directory is None else Directory(0, np.zeros(1, np.int64), np.zeros(1, np.int64))
        some = 0 if chunk.pending else min(1, len(tuples))
        minis, counts = np.zeros(some, np.int64), np.full(some, len(tuples), np.int64)
        return replace(chunk, tuples=tuples, directory=directory, minis=minis, counts=counts)


class KeysInRows(TextKeys):
    """Of operators that keep rows: those have their keys in their columns, and travel as they are."""

    def sent_state(self, chunk: StateChunk) -> StateChunk:
        return super().sent_state(chunk) if chunk.tuples.rows is not None else chunk

    def received_state(self, chunk: StateChunk) -> StateChunk:
        return super().received_state(chunk) if chunk.tuples.rows is not None else chunk
