"""Clients that place and release, and remember every acknowledged answer.

Each client retries a request with the same id until it is acknowledged, at one server or the other,
as the documentation tells callers to. The fleet is never full, so a refusal is a failure.
"""

import collections
import http.client
import json
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

TENANT = "ha"
_CLIENTS = 8
_NODES = 40
_HELD_MAX = 25
_PAUSE_S = 0.02
# Shorter than a server waits for its database, so that the other server is tried meanwhile.
_TIMEOUT_S = 4.0
_GIVE_UP_S = 180.0
_HEARTBEAT_S = 15.0


@dataclass(frozen=True)
class Acknowledged:
    """A placement that a server has acknowledged."""

    request_id: str
    instance: str
    node: str
    # When its first attempt was sent, and when an answer came, on the test's clock.
    sent: float
    done: float
    tries: int


@dataclass
class History:
    """What all clients were told, and what they must never be told."""

    placed: dict[str, Acknowledged] = field(default_factory=dict)
    released: set[str] = field(default_factory=set)
    latest: collections.deque[Acknowledged] = field(
        default_factory=lambda: collections.deque(maxlen=100_000))
    violations: list[str] = field(default_factory=list)
    # Failed attempts by status and code; 0 is a lost or refused connection.
    retried: collections.Counter[str] = field(default_factory=collections.Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note_placed(self, placement: Acknowledged) -> None:
        with self.lock:
            earlier = self.placed.get(placement.instance)
            if earlier is not None:
                self.violations.append(f"instance {placement.instance} was given to request "
                                       f"{earlier.request_id} and to {placement.request_id}")
            self.placed[placement.instance] = placement
            self.latest.append(placement)

    def note_released(self, instance: str) -> None:
        with self.lock:
            self.released.add(instance)

    def note_violation(self, text: str) -> None:
        with self.lock:
            self.violations.append(text)

    def note_retry(self, reason: str) -> None:
        with self.lock:
            self.retried[reason] += 1

    def expected(self) -> dict[str, Acknowledged]:
        """What must be there: everything acknowledged as placed and not as released."""
        with self.lock:
            return {instance: placement for instance, placement in self.placed.items()
                    if instance not in self.released}

    def placements_sent_since(self, moment: float) -> list[Acknowledged]:
        with self.lock:
            return [placement for placement in self.latest if placement.sent >= moment]

    def placements_answered_since(self, moment: float) -> list[Acknowledged]:
        with self.lock:
            return [placement for placement in self.latest if placement.done >= moment]


class Load:
    """Clients on threads of their own; they can be paused between two requests."""

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports
        self.history = History()
        self.stopping = threading.Event()
        self.running = threading.Event()
        self.clients = [_Client(self, number) for number in range(_CLIENTS)]
        self.heart = threading.Thread(target=self._beat, daemon=True)

    def start(self) -> None:
        connection = _Connection(self.ports[0])
        for number in range(_NODES):
            node = f"node-{number:03}"
            # Some 1,000 instances each, far more than are ever held.
            capacity = {"cpu_milli": 64_000, "memory_mib": 262_144, "disk_mib": 8_388_608,
                        "bandwidth_mbps": 10_000}
            status, body = connection.request("PUT", f"/v1/nodes/{node}",
                                              {"id": node, "zone": f"z{number % 3}",
                                               "capacity": capacity})
            if status not in (200, 201):
                raise RuntimeError(f"node {node} was not registered: {status} {body!r}")
        self.running.set()
        self.heart.start()
        for client in self.clients:
            client.start()

    def pause(self) -> None:
        """Returns when no request is in flight."""
        self.running.clear()
        for client in self.clients:
            client.idle.wait()

    def resume(self) -> None:
        self.running.set()

    def stop(self) -> None:
        self.stopping.set()
        self.running.set()
        for client in self.clients:
            if client.ident is not None:
                client.join(timeout=_GIVE_UP_S)

    def _beat(self) -> None:
        """Heartbeats of all nodes, in place of agents."""
        connections = [_Connection(port) for port in self.ports]
        while not self.stopping.wait(_HEARTBEAT_S):
            for number in range(_NODES):
                path = f"/v1/nodes/node-{number:03}/heartbeat"
                # One server is enough; the other learns of it from the ledger.
                any(connection.request("POST", path, {})[0] in (200, 204)
                    for connection in connections)


class _Connection:
    """One kept-alive connection to a server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.http: http.client.HTTPConnection | None = None

    def request(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        """Status and body; status 0 if there was no answer."""
        try:
            if self.http is None:
                self.http = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_TIMEOUT_S)
            self.http.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
            answer = self.http.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as failure:
            if self.http is not None:
                self.http.close()
            self.http = None
            return 0, str(failure).encode()


class _Client(threading.Thread):
    def __init__(self, load: Load, number: int) -> None:
        super().__init__(daemon=True, name=f"client-{number}")
        self.load = load
        self.number = number
        self.connections = [_Connection(port) for port in load.ports]
        # Half of the clients begin at each server, and stay until it fails them.
        self.server = number % len(self.connections)
        self.held: list[str] = []
        self.requests = 0
        self.idle = threading.Event()

    def run(self) -> None:
        random_source = random.Random(self.number)
        try:
            while not self.load.stopping.is_set():
                if not self.load.running.is_set():
                    self.idle.set()
                    self.load.running.wait()
                    continue
                self.idle.clear()
                if len(self.held) >= _HELD_MAX or self.held and random_source.random() < 0.45:
                    self._release(self.held.pop(random_source.randrange(len(self.held))))
                else:
                    self._place()
                time.sleep(_PAUSE_S)
        finally:
            self.idle.set()

    def _request_id(self, what: str) -> str:
        self.requests += 1
        return f"{what}-{self.number}-{self.requests}"

    def _place(self) -> None:
        request_id = self._request_id("place")
        body = {"tenant": TENANT, "request_id": request_id, "lease_s": 86_400,
                "instances": [{"resources": {"cpu_milli": 50, "memory_mib": 64, "disk_mib": 64}}]}
        sent = time.monotonic()
        answer, tries = self._until_acknowledged("/v1/placements", body, 201)
        if answer is None:
            return
        instances = answer["instances"]
        if len(instances) != 1:
            self.load.history.note_violation(f"{request_id}: {len(instances)} instances, not 1")
            return
        placed = Acknowledged(request_id, instances[0]["instance"], instances[0]["node"], sent,
                              time.monotonic(), tries)
        self.load.history.note_placed(placed)
        self.held.append(placed.instance)

    def _release(self, instance: str) -> None:
        body = {"request_id": self._request_id("release"), "reason": "test"}
        answer, _ = self._until_acknowledged(f"/v1/claims/{instance}/release", body, 200)
        if answer is not None:
            self.load.history.note_released(instance)

    def _until_acknowledged(self, path: str, body: Any,
                            wanted: int) -> tuple[dict[str, Any] | None, int]:
        """The answer to a request that is retried with the same id until there is one."""
        deadline = time.monotonic() + _GIVE_UP_S
        request = f"{path} {body['request_id']}"
        tries = 0
        while time.monotonic() < deadline:
            tries += 1
            status, answer = self.connections[self.server].request("POST", path, body)
            if status == wanted:
                return json.loads(answer), tries
            code = _code(answer) if status else "no answer"
            if status not in (0, 429, 503, 504) and code != "contended":
                text = answer[:300].decode(errors="replace")
                self.load.history.note_violation(f"{request}: {status} {text}")
                return None, tries
            self.load.history.note_retry(f"{status} {code}")
            self.server = (self.server + 1) % len(self.connections)
            time.sleep(min(0.5, 0.05 * tries))
        self.load.history.note_violation(f"{request}: no answer in {_GIVE_UP_S} s")
        return None, tries


def _code(answer: bytes) -> str:
    try:
        return str(json.loads(answer).get("code", ""))
    except ValueError:
        return ""
