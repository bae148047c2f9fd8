"""Which gateway reads which producer of a stream over Arrow Flight.

What: `ProducerPlaces`, at the endpoint of the first gateway; `Peers`, actions of other endpoints of the run.
Why: a producer may connect to any endpoint: one that is known goes on at the gateway that has its rows, a new one is read where
it connects, so that no name is read by two gateways.
Stays out: rows (`connectors.flight.ingest`), numbers of producers (`connectors.flight.source`).
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from typing import Any

import pyarrow.flight as flight

from swjoin.config.run import ServeConfig
from swjoin.connectors.flight.server import client_headers, client_tls
from swjoin.connectors.flight.source import FlightSource
from swjoin.core.errors import UserError
from swjoin.core.splits import MOST_SPLITS

_ANSWER_S = 30.0
_MOST_NAMES = 10_000  # of producers that were sent to a gateway and have not come


class Peers:
    """Actions of the run's other endpoints. first: location of that of the first gateway, unless this is it."""

    def __init__(self, config: ServeConfig, first: str) -> None:
        self._config, self.first = config, first
        self._clients: dict[str, Any] = {}
        self._lock = threading.Lock()

    def ask(self, location: str, action: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer of an endpoint. FlightError as it says, or when it cannot be reached."""
        with self._lock:
            client = self._clients.get(location)
            if client is None:
                client = self._clients[location] = flight.FlightClient(location, **client_tls(self._config))
        options = flight.FlightCallOptions(timeout=_ANSWER_S, headers=client_headers(self._config))
        (result,) = client.do_action(flight.Action(action, json.dumps(body).encode()), options)
        answer: dict[str, Any] = json.loads(result.body.to_pybytes())
        return answer

    def close(self) -> None:
        with self._lock:
            for client in self._clients.values():
                client.close()


class ProducerPlaces:
    """Thread-safe. sources: of the first gateway, by stream. locations: of the endpoints of all gateways."""

    def __init__(self, sources: dict[str, FlightSource]) -> None:
        self.locations: dict[int, str] = {}
        self._sources = sources
        self._at: dict[str, dict[str, int]] = {stream: {} for stream in sources}  # since the run went on
        self._sent: dict[str, dict[str, int]] = {stream: {} for stream in sources}  # have not come yet
        self._nameless: dict[str, Counter[int]] = {stream: Counter() for stream in sources}
        self._lock = threading.Lock()

    def of(self, stream: str, name: str) -> int | None:
        """The gateway of a producer, if it has one."""
        with self._lock:
            return self._of(stream, name)

    def _of(self, stream: str, name: str) -> int | None:
        source = self._sources[stream]
        split = source.known.get(name)
        return self._at[stream].get(name) if split is None else split % source.share[1]

    def best(self, stream: str, name: str | None) -> str:
        """The endpoint for a producer: its own, or that of the gateway with the fewest. UserError when there is no room."""
        with self._lock:
            if name is None and self._sources[stream].split_count < MOST_SPLITS:
                return self.locations[0]  # it takes none without a name
            found = None if name is None else self._of(stream, name)
            if found is None:
                found = self._sent[stream].get(name or "", -1)
                if found < 0:
                    found = self._emptiest(stream, self._load(stream, sent=True))
                if name is None:
                    self._nameless[stream][found] += 1
                else:
                    if len(self._sent[stream]) >= _MOST_NAMES:
                        self._sent[stream].clear()
                    self._sent[stream][name] = found
            return self.locations[found]

    def claim(self, stream: str, name: str, gateway: int) -> None:
        """A producer connects to a gateway. FlightUnavailableError, with the right endpoint, when another one reads it, or has
        room: clients that try again ask for it. UserError when there is no room."""
        with self._lock:
            found = self._of(stream, name)
            if found is None:
                load = self._load(stream, sent=False)
                if load[gateway] < self._sources[stream].slots_of(gateway):
                    found = self._at[stream][name] = gateway
                    self._sent[stream].pop(name, None)
                else:
                    found = self._emptiest(stream, load)
            if found != gateway:
                text = f"producer {name} of {stream} is read at {self.locations[found]}; connect to that endpoint"
                raise flight.FlightUnavailableError(text)

    def release(self, stream: str, name: str) -> None:
        """A producer has left without rows, and is forgotten."""
        with self._lock:
            self._at[stream].pop(name, None)

    def _load(self, stream: str, *, sent: bool) -> Counter[int]:
        """Producers of every gateway. sent: also those that were sent to it, and some that have no name."""
        source = self._sources[stream]
        known = {name: split % source.share[1] for name, split in source.known.items() if split >= 0}
        load = Counter({**known, **self._at[stream]}.values())
        if sent:
            load.update(self._sent[stream].values())
            load.update(self._nameless[stream])
        return load

    def _emptiest(self, stream: str, load: Counter[int]) -> int:
        source = self._sources[stream]
        room = [gateway for gateway in range(source.share[1]) if load[gateway] < source.slots_of(gateway)]
        if not room:  # also when those who were sent do not come
            load = self._load(stream, sent=False)
            room = [gateway for gateway in range(source.share[1]) if load[gateway] < source.slots_of(gateway)]
        if not room:
            count = source.split_count
            raise UserError(f"the stream has its {count} producers already; go on under one of their names")
        return min(room, key=lambda gateway: (load[gateway], gateway))
