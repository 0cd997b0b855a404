"""Three members with etcd and PostgreSQL under Patroni, and two Berth servers, all on loopback.

The files of deploy/ha are used as they are: this describes a cluster with free ports and temporary
directories, and has render.py fill in the templates.
"""

import http.client
import json
import os
import pathlib
import secrets
import shutil
import subprocess
import sys
import tomllib
import urllib.parse
from dataclasses import dataclass
from typing import Any

import processes
from processes import Failed, Ports, Process, wait_until

_ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(_ROOT / "deploy" / "ha"))
import render  # noqa: E402  (the program of deploy/ha, which is not a package)

_MEMBERS = ("db1", "db2", "db3")
# Far longer than anything takes on a slow machine.
_PATIENCE_S = 300


@dataclass
class Member:
    """One machine of the cluster."""

    name: str
    ports: dict[str, int]
    data_dir: pathlib.Path
    etcd: Process
    patroni: Process

    def patroni_answers(self, path: str) -> int:
        """The status with which Patroni answers; 0 if it does not."""
        return fetch(self.ports["patroni"], path)[0]


@dataclass
class Server:
    """A Berth server."""

    name: str
    port: int
    url: str
    process: Process

    def is_ready(self) -> bool:
        return fetch(self.port, "/readyz")[0] == 200


class Cluster:
    """The whole installation. `stop` ends all of it."""

    def __init__(self, folder: pathlib.Path, berth: pathlib.Path, ttl_s: int,
                 synchronous_standbys: int) -> None:
        self.folder = folder
        self.berth = berth
        self.ttl_s = ttl_s
        self.synchronous_standbys = synchronous_standbys
        self.ports = Ports()
        # PostgreSQL refuses root, so root lends it the account of the system's packages.
        self.account = "postgres" if os.geteuid() == 0 else None
        self.bin_dir = _postgres_programs()
        self.description = self._describe(ttl_s)
        self.members = [self._member(entry) for entry in self.description["member"]]
        self.haproxy = self._haproxy()
        self.servers: list[Server] = []

    def _describe(self, ttl_s: int) -> dict[str, Any]:
        shipped = (_ROOT / "deploy" / "ha" / "cluster.toml").read_text()
        description: dict[str, Any] = tomllib.loads(shipped)
        description["network"] = "127.0.0.1/32"
        description["passwords"] = {key: secrets.token_hex(12) for key in description["passwords"]}
        description["postgres"]["bin_dir"] = str(self.bin_dir)
        description["postgres"]["synchronous_standbys"] = self.synchronous_standbys
        description["timing"]["ttl"] = ttl_s
        description["member"] = []
        shared = {key: self.ports.take() for key in ("haproxy", "pgbouncer")}
        for name in _MEMBERS:
            home = self._make_folder(name)
            own = {key: self.ports.take() for key in description["ports"] if key not in shared}
            description["member"].append({
                "name": name, "address": "127.0.0.1", "ports": {**own, **shared},
                "postgres": {"data_dir": str(home / "postgres"), "socket_dir": str(home)},
                "etcd": {"data_dir": str(home / "etcd")},
            })
        return description

    def _make_folder(self, name: str) -> pathlib.Path:
        folder = self.folder / name
        folder.mkdir()
        if self.account:
            shutil.chown(folder, self.account, self.account)
        return folder

    def _member(self, entry: dict[str, Any]) -> Member:
        home = self.folder / entry["name"]
        written = render.render(self.description, entry["name"], home / "files")
        if self.account:
            for path in [home / "files", *written]:
                shutil.chown(path, self.account, self.account)
        etcd = Process(f"etcd of {entry['name']}", [processes.program("etcd", "etcd-server")],
                       home / "etcd.log", self.account, _variables(home / "files" / "etcd.env"))
        command = [processes.program("patroni", "patroni"), str(home / "files" / "patroni.yml")]
        patroni = Process(f"Patroni of {entry['name']}", command, home / "patroni.log",
                          self.account)
        return Member(entry["name"], entry["ports"], pathlib.Path(entry["postgres"]["data_dir"]),
                      etcd, patroni)

    def _haproxy(self) -> Process:
        config = self.folder / _MEMBERS[0] / "files" / "haproxy.cfg"
        program = processes.program("haproxy", "haproxy")
        return Process("HAProxy", [program, "-db", "-f", str(config)], self.folder / "haproxy.log")

    def start(self) -> None:
        for member in self.members:
            member.etcd.start()
        wait_until(self.etcd_is_healthy, _PATIENCE_S, "etcd has no quorum")
        for member in self.members:
            member.patroni.start()
        self.wait_until_healthy()
        self._create_database()
        self.haproxy.start()
        # One server for each of the two ways to the primary that the documentation names.
        hosts = ",".join(f"127.0.0.1:{member.ports['postgres']}" for member in self.members)
        self._start_server("berth-1", hosts)
        self._start_server("berth-2", f"127.0.0.1:{self.members[0].ports['haproxy']}")

    def _create_database(self) -> None:
        password = self.description["passwords"]["berth"]
        self.sql(f"CREATE ROLE berth LOGIN PASSWORD '{password}'")
        self.sql("CREATE DATABASE berth OWNER berth ENCODING 'UTF8'")
        # Written by the test itself, to know when the database takes commits without Berth.
        self.sql("CREATE TABLE probe (at timestamptz)")

    def _start_server(self, name: str, hosts: str) -> None:
        home = self.folder / name
        home.mkdir()
        port = self.ports.take()
        url = f"postgres://berth:{self.description['passwords']['berth']}@{hosts}/berth"
        # Unlimited for the tenant of the load; nodes have no agents, and the test beats for them.
        settings = {"BERTH_DATABASE_URL": url, "BERTH_DATA_DIR": str(home),
                    "BERTH_LISTEN": f"127.0.0.1:{port}", "BERTH_NO_SIGN_IN": "true",
                    "BERTH_NODES_LOST_AFTER": "10m", "HOME": str(home)}
        process = Process(name, [str(self.berth), "up"], self.folder / f"{name}.log",
                          environment=settings)
        server = Server(name, port, url, process)
        self.servers.append(server)
        process.start()
        # One after the other: the first creates the tables.
        self.wait_until_ready(server)

    def wait_until_ready(self, server: Server) -> None:
        def ready() -> bool:
            if not server.process.runs():
                raise Failed(f"{server.name} ended; its log ends with:\n{server.process.tail()}")
            return server.is_ready()
        wait_until(ready, _PATIENCE_S, f"{server.name} is not ready")

    def etcd_is_healthy(self) -> bool:
        """Whether all members of etcd answer and agree on a leader."""
        for member in self.members:
            status, body = fetch(member.ports["etcd_client"], "/health")
            if status != 200 or json.loads(body).get("health") not in ("true", True):
                return False
        return True

    def leader(self) -> Member:
        """The member that is the primary."""
        for member in self.members:
            if member.patroni_answers("/primary") == 200:
                return member
        raise Failed("no member is the primary")

    def synchronous_standby(self) -> Member:
        for member in self.members:
            if member.patroni_answers("/sync") == 200:
                return member
        raise Failed("no member is the synchronous standby")

    def is_healthy(self) -> bool:
        """Whether there is one primary that all standbys follow, with enough synchronous ones."""
        if not self.etcd_is_healthy():
            return False
        status, body = fetch(self.members[0].ports["patroni"], "/cluster")
        if status != 200:
            return False
        members = json.loads(body).get("members", [])
        roles = sorted(member.get("role") for member in members)
        states = {member.get("state") for member in members}
        others = len(self.members) - 1 - self.synchronous_standbys
        wanted = ["leader"] + ["replica"] * others + ["sync_standby"] * self.synchronous_standbys
        if roles != wanted or not states <= {"running", "streaming"}:
            return False
        timelines = {member.get("timeline") for member in members}
        return len(timelines) == 1 and all(member.get("lag", 0) == 0 for member in members
                                           if member["role"] == "sync_standby")

    def wait_until_healthy(self) -> None:
        try:
            wait_until(self.is_healthy, _PATIENCE_S, "the cluster is not healthy", pause_s=0.3)
        except Failed as failure:
            tails = "\n".join(f"{member.patroni.log}:\n{member.patroni.tail()}"
                              for member in self.members)
            raise Failed(f"{failure}; logs end with:\n{tails}") from None

    def sql(self, statement: str, member: Member | None = None) -> str:
        """Runs SQL as the superuser, on the primary or on another member."""
        port = (member or self.leader()).ports["postgres"]
        environment = {**os.environ, "PGPASSWORD": self.description["passwords"]["superuser"]}
        done = subprocess.run(
            [str(self.bin_dir / "psql"), "-XAtqw", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p",
             str(port), "-U", "postgres", "-d", "postgres", "-c", statement],
            env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed(f"psql failed: {done.stderr.strip()}")
        return done.stdout.strip()

    def stop(self) -> None:
        """Ends everything: servers, then HAProxy, Patroni with PostgreSQL, and etcd."""
        for server in self.servers:
            server.process.stop()
        self.haproxy.stop()
        for member in self.members:
            # Killed first, it cannot start PostgreSQL again. The data is not needed any more.
            member.patroni.kill()
            processes.kill_server(member.data_dir)
        processes.stop_all()


def fetch(port: int, path: str, method: str = "GET", body: Any = None,
          timeout_s: float = 2.0) -> tuple[int, bytes]:
    """Status and body of an answer on loopback; 0 if there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        payload = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        connection.request(method, path, payload, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def list_all(port: int, path: str, query: dict[str, str]) -> list[dict[str, Any]]:
    """All items of a list of the API, page by page."""
    items: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        parameters = {**query, "limit": "1000", **({"cursor": cursor} if cursor else {})}
        status, body = fetch(port, f"{path}?{urllib.parse.urlencode(parameters)}", timeout_s=20)
        if status != 200:
            raise Failed(f"GET {path}: status {status}: {body[:300]!r}")
        page = json.loads(body)
        items += page["items"]
        cursor = page.get("next")
        if not cursor:
            return items


def _postgres_programs() -> pathlib.Path:
    """Debian's newest PostgreSQL, or the one on PATH."""
    versions = pathlib.Path("/usr/lib/postgresql")
    numbered = [folder for folder in versions.glob("*") if folder.name.isdigit()]
    numbered.sort(key=lambda folder: int(folder.name), reverse=True)
    for folder in numbered:
        if (folder / "bin" / "initdb").is_file() and (folder / "bin" / "psql").is_file():
            return folder / "bin"
    return pathlib.Path(processes.program("initdb", "postgresql")).parent


def _variables(file: pathlib.Path) -> dict[str, str]:
    """An environment file as systemd reads it."""
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)
