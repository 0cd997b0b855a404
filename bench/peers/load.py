"""Clients that claim room at OpenStack Placement as its own caller, Nova, does.

One claim is a GET /allocation_candidates and a PUT /allocations/{consumer}. A 409 means that
somebody else changed the provider in between: the next candidate is tried, then a new GET.
"""

import http.client
import json
import random
import socket
import threading
import time
import uuid

# Newest microversion of the API; with it a claim also carries the consumer's type.
_HEADERS = {"X-Auth-Token": "admin", "OpenStack-API-Version": "placement 1.39",
            "Accept": "application/json", "Content-Type": "application/json"}

# One instance: 1 core, 4 GiB of memory, 8 GiB of disk.
INSTANCE = {"VCPU": 1, "MEMORY_MB": 4096, "DISK_GB": 8}


class Connection:
    """One kept-alive connection to the API."""

    def __init__(self, port):
        self.port = port
        self.http = None

    def request(self, method, path, body=None):
        """Returns status and body. A broken connection is reopened by the next call."""
        try:
            if self.http is None:
                self.http = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
                self.http.connect()
                # Head and body leave in two writes; the second must not wait for an answer.
                self.http.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            payload = None if body is None else json.dumps(body)
            self.http.request(method, path, payload, _HEADERS)
            answer = self.http.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as failure:
            self.close()
            return 0, str(failure).encode()

    def close(self):
        """Closes the connection, if there is one."""
        if self.http is not None:
            self.http.close()
        self.http = None


class Client(threading.Thread):
    """Claims one instance after the other until told to stop, and keeps what was acknowledged."""

    def __init__(self, port, limit, reuse, stop):
        super().__init__(daemon=True)
        self.connection = Connection(port)
        resources = ",".join(f"{name}:{amount}" for name, amount in INSTANCE.items())
        self.query = f"/allocation_candidates?resources={resources}&limit={limit}"
        self.reuse = reuse
        self.stop = stop
        # candidates left of the last answer, and how many more claims may use them
        self.candidates = []
        self.uses_left = 0
        # (consumer, when acknowledged, seconds it took), one for each acknowledged claim
        self.claims = []
        # when a 409 came, and when and what any other failure was
        self.conflicts = []
        self.errors = []

    def run(self):
        while not self.stop.is_set():
            self._claim()
        self.connection.close()

    def _claim(self):
        consumer = str(uuid.uuid4())
        begin = time.monotonic()
        while not self.stop.is_set():
            if not (self.uses_left and self.candidates) and not self._look():
                return
            status, body = self._put(consumer, self.candidates.pop())
            if status == 204:
                now = time.monotonic()
                self.claims.append((consumer, now, now - begin))
                self.uses_left -= 1
                return
            if status != 409:
                self._error(status, body)
                return
            self.conflicts.append(time.monotonic())

    def _look(self):
        """Asks for candidates; says whether there are any."""
        status, body = self.connection.request("GET", self.query)
        self.candidates = json.loads(body)["allocation_requests"] if status == 200 else []
        if not self.candidates:
            self._error(status, body)
            return False
        # The order is the same for every caller; all taking the first would only collide.
        random.shuffle(self.candidates)
        self.uses_left = self.reuse
        return True

    def _put(self, consumer, candidate):
        body = {"allocations": candidate["allocations"], "mappings": candidate["mappings"],
                "project_id": "bench", "user_id": "bench", "consumer_generation": None,
                "consumer_type": "INSTANCE"}
        return self.connection.request("PUT", f"/allocations/{consumer}", body)

    def _error(self, status, body):
        self.errors.append((time.monotonic(), f"{status}: {body[:300].decode(errors='replace')}"))
        # A server that fails at once must not make us spin.
        time.sleep(0.05)


def drive(port, tuning, warm_up_s, seconds):
    """Loads the API and returns the clients with the start of the measured time."""
    stop = threading.Event()
    threads = [Client(port, tuning.limit, tuning.reuse, stop) for _ in range(tuning.clients)]
    try:
        for thread in threads:
            thread.start()
        # Workers open their database connections and fill their caches before anything counts.
        time.sleep(warm_up_s)
        begin = time.monotonic()
        time.sleep(seconds)
    finally:
        stop.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    return threads, begin


def fill(port, nodes, inventory):
    """Creates resource providers with their inventories, through the API."""
    names = [f"node-{number:05}" for number in range(nodes)]
    failures = []

    def work(mine):
        connection = Connection(port)
        inventories = {name: {"total": total, "allocation_ratio": 1.0, "max_unit": total}
                       for name, total in inventory.items()}
        for name in mine:
            identity = str(uuid.uuid4())
            calls = (("POST", "/resource_providers", {"name": name, "uuid": identity}),
                     ("PUT", f"/resource_providers/{identity}/inventories",
                      {"resource_provider_generation": 0, "inventories": inventories}))
            for method, path, body in calls:
                status, answer = connection.request(method, path, body)
                if status != 200:
                    failures.append(f"{method} {path}: {status} {answer[:300]!r}")
                    return
        connection.close()

    threads = [threading.Thread(target=work, args=(names[first::4],), daemon=True)
               for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures
