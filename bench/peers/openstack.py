"""OpenStack Placement on a database of its own: started, filled, loaded, checked, stopped.

The fleet is made once through the API; each run gets a copy of that database, so that every run
begins with the same empty fleet. A run counts only if the database holds what was acknowledged.
"""

import contextlib
import os
import pathlib
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass

import load
from cpu import Meter
from postgres import free_port
from processes import Failed, Started, environment, run, wait_until

# One node: 64 cores, 256 GiB of memory, 4 TiB of disk, nothing sold twice.
NODE = {"VCPU": 64, "MEMORY_MB": 262_144, "DISK_GB": 4096}

_TEMPLATE = "placement_fleet"


@dataclass
class Tuning:
    """What an operator and a caller of Placement can choose; README.md says why these."""

    clients: int = 16
    workers: int = 4
    threads: int = 4
    limit: int = 1
    # Claims made from one answer. Nova asks again for each request, and so does this.
    reuse: int = 1
    randomize: bool = True
    candidates_max: int = -1


def _configuration(url, tuning):
    return f"""
[DEFAULT]
# A line of log for each request would only slow it down.
default_log_levels = placement=WARNING
log_file = placement.log
[api]
auth_strategy = noauth2
[placement]
randomize_allocation_candidates = {tuning.randomize}
max_allocation_candidates = {tuning.candidates_max}
[placement_database]
connection = {url}
max_pool_size = {max(tuning.threads, 5)}
"""


def _server_command(programs, port, tuning):
    return [programs / "gunicorn", "placement.wsgi.api:application", "--bind",
            f"127.0.0.1:{port}", "--workers", tuning.workers, "--threads", tuning.threads,
            "--worker-class", "gthread", "--keep-alive", 60, "--timeout", 120,
            "--log-level", "warning", "--no-control-socket"]


@contextlib.contextmanager
def _serving(postgres, programs, database, tuning):
    """Runs the API on a database; yields its port."""
    with tempfile.TemporaryDirectory(prefix="berth-peers-") as folder:
        folder = pathlib.Path(folder)
        _configure(folder, postgres, database, tuning)
        port = free_port()
        log = folder / "server.log"
        command = _server_command(programs, port, tuning)
        with log.open("w") as output:
            started = Started(command, env=_environment(folder), cwd=folder, stdout=output,
                              stderr=output)
        with started:
            wait_until(lambda: load.Connection(port).request("GET", "/")[0] == 200, started, log,
                       "Placement")
            yield port


def _configure(folder, postgres, database, tuning):
    url = postgres.url(database, scheme="postgresql+psycopg2")
    (folder / "placement.conf").write_text(_configuration(url, tuning))


def _environment(folder):
    return environment(OS_PLACEMENT_CONFIG_DIR=str(folder))


def prepare(postgres, programs, nodes):
    """Makes the database that each run copies: schema and fleet, no allocation."""
    postgres.create(_TEMPLATE)
    tuning = Tuning()
    with tempfile.TemporaryDirectory(prefix="berth-peers-") as folder:
        folder = pathlib.Path(folder)
        _configure(folder, postgres, _TEMPLATE, tuning)
        run([programs / "placement-manage", "--config-file", folder / "placement.conf",
             "db", "sync"], env=_environment(folder), cwd=folder)
    with _serving(postgres, programs, _TEMPLATE, tuning) as port:
        failures = load.fill(port, nodes, NODE)
    if failures:
        raise Failed(f"cannot create the fleet in Placement: {failures[0]}")
    counted = postgres.sql("SELECT count(*) FROM inventories", _TEMPLATE)
    if int(counted) != nodes * len(NODE):
        raise Failed(f"Placement has {counted} inventories for {nodes} nodes")
    postgres.settle(_TEMPLATE)


def measure(postgres, programs, nodes, seconds, tuning, warm_up_s=3):
    """Loads Placement once and returns the figures."""
    database = "placement_run"
    postgres.drop(database)
    postgres.sql(f"CREATE DATABASE {database} TEMPLATE {_TEMPLATE}")
    try:
        postgres.settle(database)
        with _serving(postgres, programs, database, tuning) as port:
            # Our own process, the clients, is the parent of both servers.
            meter, begin_load = Meter(os.getpid()), time.monotonic()
            clients, begin = load.drive(port, tuning, warm_up_s, seconds)
            cpu_s, others = meter.read(time.monotonic() - begin_load)
        oversold = _verify(postgres, database, clients)
    finally:
        postgres.drop(database)
    figures = _figures(clients, begin, seconds)
    return {**figures, "oversold_nodes": oversold, "nodes": nodes, "clients": tuning.clients,
            "workers": tuning.workers, "threads": tuning.threads, "limit": tuning.limit,
            "cpu_ms_per_claim": round(cpu_s * 1000 / _acknowledged(clients), 1),
            "cores_of_others": others}


def _figures(clients, begin, seconds):
    """Counts what happened in the measured time, not before and not after it."""
    end = begin + seconds
    taken = sorted(took for client in clients for _, when, took in client.claims
                   if begin <= when < end)
    errors = [text for client in clients for when, text in client.errors if begin <= when < end]
    if errors:
        print(f"placement: the first of {len(errors)} errors: {errors[0]}", file=sys.stderr)
    if len(taken) < 2:
        raise Failed("Placement acknowledged fewer than two claims")
    hundredths = statistics.quantiles(taken, n=100, method="inclusive")
    return {
        "claims_per_s": round(len(taken) / seconds, 1),
        "p50_ms": round(hundredths[49] * 1000, 1),
        "p99_ms": round(hundredths[98] * 1000, 1),
        "conflicts": sum(begin <= when < end for client in clients for when in client.conflicts),
        "errors": len(errors),
    }


def _acknowledged(clients):
    """How many claims were acknowledged, before and after the measured time too."""
    return sum(len(client.claims) for client in clients)


def _verify(postgres, database, clients):
    """Fails unless the database holds exactly what was acknowledged, each claim in full.

    Returns how many nodes are oversold: that is Placement's doing, so it is told, not refused.
    """
    acknowledged = [consumer for client in clients for consumer, _, _ in client.claims]
    failed = sum(len(client.errors) for client in clients)
    wanted = " AND ".join(
        f"bool_or(name = '{name}' AND used = {amount})" for name, amount in load.INSTANCE.items())
    held = f"""
        SELECT consumer_id FROM allocations a JOIN resource_classes c ON c.id = resource_class_id
        GROUP BY consumer_id HAVING count(*) = {len(load.INSTANCE)} AND {wanted}"""
    rows = "\n".join([*acknowledged, "\\."])
    answer = postgres.sql(f"""
        CREATE TEMPORARY TABLE held AS {held};
        CREATE TEMPORARY TABLE acknowledged (consumer varchar(36) PRIMARY KEY);
        COPY acknowledged FROM STDIN;
{rows}
        SELECT
          (SELECT count(*) FROM acknowledged LEFT JOIN held ON consumer = consumer_id
           WHERE consumer_id IS NULL),
          (SELECT count(DISTINCT consumer_id) FROM allocations
           WHERE consumer_id NOT IN (SELECT consumer FROM acknowledged)),
          (SELECT count(DISTINCT resource_provider_id) FROM inventories i JOIN
             (SELECT resource_provider_id, resource_class_id, sum(used) AS used FROM allocations
              GROUP BY resource_provider_id, resource_class_id) u
             USING (resource_provider_id, resource_class_id)
           WHERE u.used > (i.total - i.reserved) * i.allocation_ratio);
        """, database)
    lost, unknown, oversold = map(int, answer.split("|"))
    # A claim that ended in an error may or may not have been written: nobody was told.
    if lost or unknown > failed:
        raise Failed(f"Placement acknowledged {len(acknowledged)} claims; {lost} are not in the "
                     f"database, and {unknown} are that were not acknowledged ({failed} errors)")
    return oversold


def version(programs):
    """Version of the installed package."""
    return run([programs / "python", "-c", "from importlib.metadata import version; "
                "print(version('openstack-placement'))"], cwd=os.sep).strip()
