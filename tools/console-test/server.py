"""A server of Berth with a simulated fleet, for the tests of the console: on loopback, in a folder of its own."""

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path


class Server:
    """A server that can be killed and started again on its data."""

    def __init__(self, berth: str, folder: Path, hosts: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.berth, self.folder, self.hosts = berth, folder, hosts
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / "server.log"
        self.start()
        self.token = self.first_token()

    def first_token(self) -> str:
        """The token that a new server stores for its owner, a moment after it is ready."""
        for _ in range(100):
            for config in (self.folder / "home").rglob("client.toml"):
                found = re.search(r"berth_[0-9a-f]{16}_[0-9a-f]{64}", config.read_text())
                if found:
                    return found.group(0)
            time.sleep(0.1)
        raise AssertionError("the server has stored no token")

    def start(self) -> None:
        """Starts it, and waits until it is ready."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("BERTH_", "XDG_"))}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [self.berth, "up", f"--demo={self.hosts}", "--listen", f"127.0.0.1:{self.port}"]
                + ["--data-dir", str(self.folder / "data")],
                env={**kept, "HOME": str(home)}, stdout=log, stderr=log, start_new_session=True,
            )
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"{self.url}/readyz", timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise AssertionError(f"the server is not ready:\n{self.log.read_text()[-3000:]}")

    def kill(self) -> None:
        """Kills it, as a power failure would."""
        assert self.process
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def call(self, method: str, path: str, body: object = None, token: str | None = None) -> dict:
        """Calls the API."""
        request = urllib.request.Request(
            self.url + path, method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {token or self.token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
            return json.loads(text) if text else {}
