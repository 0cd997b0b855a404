"""Programs that are started for a measurement and must never outlive it.

Every program gets a session of its own, so that an interrupt typed at the terminal reaches us
alone and things end in order. The kernel kills it if we are killed ourselves.
"""

import os
import shutil
import signal
import subprocess
import time

# Settings of the caller's own PostgreSQL client that must not reach our server.
_CLIENT_VARIABLES = ("PGAPPNAME", "PGDATA", "PGDATABASE", "PGHOST", "PGHOSTADDR", "PGOPTIONS",
                     "PGPORT", "PGSERVICE", "PGSSLMODE", "PGUSER")


class Failed(Exception):
    """The comparison cannot go on; the text says why."""


def environment(**more):
    """Our own environment, without what would redirect a PostgreSQL client."""
    kept = {name: value for name, value in os.environ.items() if name not in _CLIENT_VARIABLES}
    return {**kept, **more}


def run(command, text=None, **options):
    """Runs a program to its end and returns what it printed."""
    command = [str(part) for part in command]
    options.setdefault("env", environment())
    # In a session of its own: an interrupt must not cut short what tidies up after it.
    source = {"stdin": subprocess.DEVNULL} if text is None else {"input": text}
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True,
                          check=False, **source, **options)
    if done.returncode != 0:
        raise Failed(f"{command[0]} failed ({done.returncode}): {done.stderr.strip()}")
    return done.stdout


def tied(command, account=None):
    """The command line that runs a program under an account and ties it to our life."""
    command = [str(part) for part in command]
    if shutil.which("setpriv"):
        other = [f"--reuid={account}", f"--regid={account}", "--clear-groups"] if account else []
        return ["setpriv", *other, "--pdeathsig", "KILL", "--", *command]
    return ["runuser", "-u", account, "--", *command] if account else command


class Started:
    """A running program with its children; leaving the `with` block ends them all."""

    def __init__(self, command, gentle=signal.SIGTERM, account=None, **options):
        options.setdefault("env", environment())
        self.gentle = gentle
        self.process = subprocess.Popen(tied(command, account), start_new_session=True,
                                        stdin=subprocess.DEVNULL, **options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def ended(self):
        """Exit status if the program has ended, else None."""
        return self.process.poll()

    def stop(self):
        """Asks the program to end; after half a minute it is not asked any more."""
        if self.ended() is None:
            # Only the program itself is asked: it knows in which order its children go.
            self.process.send_signal(self.gentle)
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                pass
        # Whatever is left of its process group goes too, also when the program crashed.
        for _ in range(100):
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                break
            self.process.poll()
            time.sleep(0.02)
        self.process.wait()


def wait_until(answers, started, log, what):
    """Waits until a program answers; fails with the end of its log if it ends or stays silent."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if started.ended() is not None:
            raise Failed(f"{what} ended before it answered; its log ends with:\n{tail(log)}")
        if answers():
            return
        time.sleep(0.05)
    raise Failed(f"no answer from {what} after 60 s; its log ends with:\n{tail(log)}")


def tail(log):
    """The last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])
