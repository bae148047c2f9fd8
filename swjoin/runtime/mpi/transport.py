"""Messages of a role between MPI ranks: frames of `cluster.wire` over a channel.

What: `MpiTransport`.
Why: a frame names the roles between which it travels, as a rank may play several; tags are polled in a fixed order, and no rank
waits inside a send for a rank that waits for the first one.
Stays out: the channel (`runtime.mpi.channel`), set-up and recovery (`runtime.mpi.rank`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from swjoin.cluster.messages import Message
from swjoin.cluster.ranks import RankMap
from swjoin.cluster.role import Received, RoleId, is_gateway
from swjoin.cluster.wire import CONTROL_TAG, FORMATS, Format, address, addresses, unpack_control
from swjoin.core.data_messages import Delivery, StateChunk

if TYPE_CHECKING:
    from swjoin.runtime.host import Addressed, WorkMeter
    from swjoin.runtime.mpi.channel import Channel


def waits(sender: RoleId, ranks: RankMap, form: Format) -> bool:
    """Whether a rank may wait inside a send until the receiver takes it: a gateway may, on a rank that takes no deliveries."""
    return form.waits and is_gateway(sender) and ranks.slave_of(ranks.rank_of(sender)) is None


class MpiTransport:
    """The transport of one rank. receives: types of the data that it receives, in the order of polling after control messages.

    saved: events of background threads and the roles that they are for, or exceptions. link_bytes_per_s: speed of an emulated
    link; 0: none.
    restart: restarts the clocks of all ranks at once.
    """

    closed = True
    eager_us: int | None = 100  # interval at which a slave that has reported polls for its delivery

    def __init__(
        self,
        channel: Channel,
        receives: Sequence[type],
        saved: deque[Any],
        roles: RankMap,
        restart: Callable[[int], None],
    ) -> None:
        self.channel, self._roles = channel, roles
        self.meter: WorkMeter = channel.meter
        self.link_bytes_per_s = 0.0
        self._receives: list[tuple[int, Callable[[Any], Message]]] = [(CONTROL_TAG, unpack_control)]
        self._receives += [(FORMATS[kind].tag, FORMATS[kind].unpack) for kind in receives]
        self._saved, self._restart = saved, restart

    def check(self) -> None:
        self.channel.check()

    def send(self, sender: RoleId, to: RoleId, message: Message) -> None:
        form = FORMATS[type(message)]
        frame = form.pack(message)
        address(frame, sender, to)
        rank = self._roles.rank_of(to)
        if waits(sender, self._roles, form):
            self.channel.send(frame, rank, form.tag)
        else:
            self.channel.send_later(frame, rank, form.tag)
        if isinstance(message, Delivery):
            self._passed(message)

    def poll(self) -> Addressed | None:
        channel = self.channel
        if self._saved:
            role, item = self._saved.popleft()
            if isinstance(item, BaseException):
                raise item
            return role, item
        for tag, unpack in self._receives:
            if channel.probe(channel.any, tag):
                frame = channel.receive()
                message = unpack(frame)
                self._passed(message)
                source, to = addresses(frame)
                return to, Received(source, message, frame)
        return None

    def wait(self, at_most_us: int) -> Addressed | None:
        """Sleep between two polls; returns None."""
        self.channel.sleep(at_most_us)
        return None

    def restart_clock(self, clock_us: int) -> None:
        self._restart(clock_us)

    def _passed(self, message: Message) -> None:
        """Sleep for the transfer time of the emulated link, after a delivery was sent or a message received."""
        if isinstance(message, Delivery | StateChunk):
            self.channel.imitate_transfer(message.nbytes, self.link_bytes_per_s)
