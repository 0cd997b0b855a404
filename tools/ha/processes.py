"""Processes that the test starts, kills and freezes, and nothing else.

stop_all ends all of them in the reverse order of their start. PostgreSQL is started by Patroni and
survives it, so it is found by the process id in its data directory.
"""

import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping

# Below the ports that the system gives to outgoing connections: a client that keeps trying to reach
# a killed server must not be given the server's own port.
_PORT_LOWEST = 15_000
_PORTS = 16_000


class Failed(Exception):
    """The test cannot go on; the text says why."""


class Process:
    """A program with its log. It may be killed and started again."""

    started: list["Process"] = []

    def __init__(self, name: str, command: list[str], log: pathlib.Path, account: str | None = None,
                 environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.command = command
        self.log = log
        self.account = account
        self.environment = {**_clean_environment(), **(environment or {})}
        self.popen: subprocess.Popen[bytes] | None = None
        Process.started.append(self)

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.popen = subprocess.Popen(
                [*_setpriv(self.account), *self.command], stdin=subprocess.DEVNULL, stdout=output,
                stderr=output, cwd="/", env=self.environment,
                # An interrupt typed at the terminal reaches the test and not its processes.
                start_new_session=True)

    @property
    def pid(self) -> int:
        if self.popen is None:
            raise Failed(f"{self.name} was not started")
        return self.popen.pid

    def runs(self) -> bool:
        return self.popen is not None and self.popen.poll() is None

    def kill(self) -> None:
        """What a power failure does: nothing is tidied up."""
        if self.popen is not None:
            self.popen.kill()
            self.popen.wait()

    def stop(self) -> None:
        if self.popen is None or self.popen.poll() is not None:
            return
        # A frozen process does not hear anything else.
        self.popen.send_signal(signal.SIGCONT)
        self.popen.terminate()
        try:
            self.popen.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.kill()

    def tail(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])


def stop_all() -> None:
    """Ends everything that was started, the newest first."""
    for process in reversed(Process.started):
        process.stop()


def _setpriv(account: str | None) -> list[str]:
    """Runs a program under an account; the kernel kills it if the test itself is killed."""
    other = [f"--reuid={account}", f"--regid={account}", "--clear-groups"] if account else []
    return ["setpriv", *other, "--pdeathsig", "KILL", "--"]


def _clean_environment() -> dict[str, str]:
    """Without variables that would point programs elsewhere."""
    prefixes = ("PG", "ETCD", "PATRONI", "BERTH_")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}


def postmaster(data_dir: pathlib.Path) -> int | None:
    """The process id of the PostgreSQL server of a data directory, if it runs."""
    try:
        pid = int((data_dir / "postmaster.pid").read_text().split()[0])
        command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except (OSError, ValueError, IndexError):
        return None
    # The file of a killed server stays, and its process id may be somebody else's by now.
    return pid if str(data_dir) in command else None


def with_children(parent: int) -> list[int]:
    """A process and its children. The parent is halted, so that it cannot start more."""
    _signal([parent], signal.SIGSTOP)
    found = [parent]
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The name, in parentheses, may hold spaces; the fields after it do not.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(entry.name))
    return found


def kill_server(data_dir: pathlib.Path) -> float:
    """Kills a PostgreSQL server with all its children. Returns when, on the test's clock."""
    pid = postmaster(data_dir)
    if pid is None:
        return time.monotonic()
    family = with_children(pid)
    _signal(family, signal.SIGKILL)
    moment = time.monotonic()
    wait_until(lambda: not any(_runs(process) for process in family), 10,
               "killed processes of PostgreSQL are still there")
    return moment


def _runs(process: int) -> bool:
    """Whether a process is there and not only waiting to be collected."""
    try:
        stat = pathlib.Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def freeze(processes: Iterable[int]) -> None:
    _signal(processes, signal.SIGSTOP)


def thaw(processes: Iterable[int]) -> None:
    _signal(processes, signal.SIGCONT)


def _signal(processes: Iterable[int], number: signal.Signals) -> None:
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            pass


def wait_until(holds: Callable[[], bool], seconds: float, otherwise: str,
               pause_s: float = 0.1) -> None:
    """Waits until something holds; fails with a text if it does not in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise Failed(f"{otherwise} after {seconds:.0f} s")
        time.sleep(pause_s)


class Ports:
    """Loopback ports that nobody listens on at the moment, each given out once."""

    def __init__(self) -> None:
        self.given: set[int] = set()

    def take(self) -> int:
        for _ in range(200):
            port = random.randrange(_PORT_LOWEST, _PORT_LOWEST + _PORTS)
            if port in self.given:
                continue
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    continue
            self.given.add(port)
            return port
        raise Failed("no free port on 127.0.0.1")


def program(name: str, package: str) -> str:
    """The path of a program; Debian keeps some where only root looks."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None:
        raise Failed(f"{name} is missing; install it with: apt-get install {package}")
    return found
