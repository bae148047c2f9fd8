"""Messages of a role between MPI ranks: frames of `cluster.wire` over a channel.

What: `MpiTransport`.
Why: the id of a role is the number of its rank; message types are polled in a fixed order, and no rank waits inside a send for
a rank that waits for the first one.
Stays out: the channel (`runtime.mpi.channel`), set-up and recovery (`runtime.mpi.rank`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from swjoin.cluster.messages import Message
from swjoin.cluster.role import Event, Received, RoleId
from swjoin.cluster.wire import FORMATS
from swjoin.core.data_messages import Delivery, StateChunk

if TYPE_CHECKING:
    from swjoin.runtime.host import WorkMeter
    from swjoin.runtime.mpi.channel import Channel


class MpiTransport:
    """The transport of one role. receives: (sender or `channel.any`, type) of its messages, in the order of polling.

    saved: events of background threads, or their exceptions. link_bytes_per_s: speed of an emulated link; 0: none.
    restart: restarts the clocks of all ranks at once.
    """

    closed = True
    eager_us: int | None = 100  # interval at which a slave that has reported polls for its delivery

    def __init__(
        self, channel: Channel, receives: Sequence[tuple[int, type]], saved: deque[Any], restart: Callable[[int], None]
    ) -> None:
        self.channel = channel
        self.meter: WorkMeter = channel.meter
        self.link_bytes_per_s = 0.0
        self._receives = [(sender, FORMATS[kind]) for sender, kind in receives]
        self._saved, self._restart = saved, restart

    def check(self) -> None:
        self.channel.check()

    def send(self, to: RoleId, message: Message) -> None:
        form = FORMATS[type(message)]
        frame = form.pack(message)
        if form.later:
            self.channel.send_later(frame, to, form.tag)
        else:
            self.channel.send(frame, to, form.tag)
        if isinstance(message, Delivery):
            self._passed(message)

    def poll(self) -> Event | None:
        channel = self.channel
        if self._saved:
            item = self._saved.popleft()
            if isinstance(item, BaseException):
                raise item
            event: Event = item
            return event
        for sender, form in self._receives:
            if channel.probe(sender, form.tag):
                source = RoleId(channel.source)
                frame = channel.receive()
                message = form.unpack(frame)
                self._passed(message)
                return Received(source, message, frame)
        return None

    def wait(self, at_most_us: int) -> Event | None:
        """Sleep between two polls; returns None."""
        self.channel.sleep(at_most_us)
        return None

    def restart_clock(self, clock_us: int) -> None:
        self._restart(clock_us)

    def _passed(self, message: Message) -> None:
        """Sleep for the transfer time of the emulated link, after a delivery was sent or a message received."""
        if isinstance(message, Delivery | StateChunk):
            self.channel.imitate_transfer(message.nbytes, self.link_bytes_per_s)
