"""A PostgreSQL server of our own, set up as the crate `berth-pgtemp` sets up Berth's.

Both sides of the comparison use this one server. It never touches a PostgreSQL that was there
before. Keep the settings equal to those in `crates/berth-pgtemp/src/lib.rs`.
"""

import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import tempfile

from processes import Failed, Started, environment, run, tied, wait_until

# Below the ports that the system gives to outgoing connections, as in berth-pgtemp.
_PORT_LOWEST = 15_000
_PORTS = 16_000


def free_port():
    """A loopback port that nobody listens on at the moment."""
    for _ in range(50):
        port = random.randrange(_PORT_LOWEST, _PORT_LOWEST + _PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise Failed("no free port on 127.0.0.1")


def _programs():
    """The folder with the server's programs: `pg_config`'s, one on PATH, or Debian's newest."""
    folders = []
    if shutil.which("pg_config"):
        folders.append(run(["pg_config", "--bindir"]).strip())
    folders += os.environ.get("PATH", "").split(os.pathsep)
    versions = pathlib.Path("/usr/lib/postgresql")
    if versions.is_dir():
        numbered = [folder for folder in versions.iterdir() if folder.name.split(".")[0].isdigit()]
        numbered.sort(key=lambda folder: int(folder.name.split(".")[0]), reverse=True)
        folders += [folder / "bin" for folder in numbered]
    for folder in map(pathlib.Path, filter(None, folders)):
        if all((folder / name).is_file() for name in ("initdb", "postgres", "psql")):
            return folder
    raise Failed("no PostgreSQL server programs; install them, for example: "
                 "apt-get install postgresql")


class Postgres:
    """A server that lives as long as the `with` block; its folders go with it."""

    def __enter__(self):
        self.programs = _programs()
        # PostgreSQL refuses root, so root lends it the account of the system's packages.
        self.account = "postgres" if os.geteuid() == 0 else None
        self.home = self.data = self.server = None
        try:
            self.home = self._folder()
            self.data = self._folder()
            self._set_up()
            self._launch()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.server is not None:
            self.server.stop()
        for folder in (self.home, self.data):
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _folder(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="berth-peers-"))
        if self.account:
            shutil.chown(folder, self.account, self.account)
        return folder

    def _set_up(self):
        run(tied([self.programs / "initdb", "--username=postgres", "--auth=trust",
                  "--encoding=UTF8", "--locale=C", "--no-sync", "-D", self.data], self.account),
            cwd=self.data)

    def _launch(self):
        for _ in range(20):
            self.port = free_port()
            try:
                return self._launch_on_port()
            except Failed as failure:
                self.server.stop()
                # Somebody was quicker than we between the look and the start.
                if "Address already in use" not in str(failure):
                    raise
        raise Failed("no free port for PostgreSQL after 20 tries")

    def _launch_on_port(self):
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.home,
            "max_connections": 200,
            "shared_buffers": "256MB",
            "dynamic_shared_memory_type": "mmap",
        }
        command = [self.programs / "postgres", "-D", self.data]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        log = self.home / "server.log"
        with log.open("w") as output:
            # INT is PostgreSQL's fast shutdown: sessions are ended, what is committed is written.
            self.server = Started(command, gentle=signal.SIGINT, account=self.account,
                                  cwd=self.data, stdout=output, stderr=output)
        wait_until(self._answers, self.server, log, "PostgreSQL")

    def _answers(self):
        # Over the socket, which is ours alone; the port could be somebody else's.
        asked = subprocess.run([self.programs / "pg_isready", "-q", "-U", "postgres", "-d",
                                "postgres", "-p", str(self.port), "-h", self.home],
                               env=environment(), start_new_session=True, check=False)
        return asked.returncode == 0

    def url(self, database, scheme="postgres"):
        """Address of a database over TCP."""
        return f"{scheme}://postgres@127.0.0.1:{self.port}/{database}"

    def sql(self, sql, database="postgres"):
        """Runs SQL with `psql` and returns the bare rows, fields apart by `|`."""
        return run([self.programs / "psql", "-X", "-A", "-t", "-q", "-w", "-v", "ON_ERROR_STOP=1",
                    "-U", "postgres", "-h", self.home, "-p", self.port, "-d", database, "-f", "-"],
                   text=sql).rstrip("\n")

    def create(self, database):
        """Makes an empty database."""
        self.sql(f"CREATE DATABASE {database}")

    def drop(self, database):
        """Removes a database, even if clients are still connected to it."""
        self.sql(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")

    def settle(self, *databases):
        """Statistics and disk as a server has them that ran for a while, not as after an import."""
        for database in databases:
            self.sql("VACUUM ANALYZE", database)
        self.sql("CHECKPOINT")

    def version(self):
        """The server's version number."""
        return self.sql("SHOW server_version").split()[0]
