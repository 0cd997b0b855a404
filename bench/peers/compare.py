#!/usr/bin/env python3
"""Measures OpenStack Placement and Berth in turn on one PostgreSQL server, and compares them.

Prints one JSON object a run, then the medians and their ratio. `make bench-peers` prepares
what this needs. Everything that it starts is stopped at its end, however it ends.
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

import openstack
from cpu import Meter
from postgres import Postgres
from processes import Failed, Started

_DATABASE = "berth_run"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main():
    """Runs the comparison; the exit status says whether there is a result."""
    arguments = _arguments()
    for number in _SIGNALS:
        signal.signal(number, _interrupted)
    try:
        _compare(arguments)
    except Failed as failure:
        print(f"bench-peers: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench-peers: interrupted; everything is stopped", file=sys.stderr)
        return 130
    return 0


def _interrupted(*_):
    # A second interrupt must not stop the tidying up that the first one began.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _arguments():
    tuned = openstack.Tuning()
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--venv", type=pathlib.Path, required=True,
                        help="virtual environment with the packages of requirements.txt")
    parser.add_argument("--berth", type=pathlib.Path,
                        help="Berth's program; without it only Placement is measured")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--runs", type=int, default=2, help="runs of each")
    parser.add_argument("--berth-clients", type=int, default=64)
    parser.add_argument("--clients", type=int, default=tuned.clients, help="clients of Placement")
    parser.add_argument("--workers", type=int, default=tuned.workers)
    parser.add_argument("--threads", type=int, default=tuned.threads, help="threads of a worker")
    parser.add_argument("--limit", type=int, default=tuned.limit, help="candidates asked for")
    parser.add_argument("--reuse", type=int, default=tuned.reuse,
                        help="claims made from one answer; Nova makes one")
    parser.add_argument("--candidates-max", type=int, default=tuned.candidates_max,
                        help="Placement's max_allocation_candidates; -1 for all")
    parser.add_argument("--no-randomize", action="store_true",
                        help="leave Placement's randomize_allocation_candidates off")
    return parser.parse_args()


def _compare(arguments):
    programs = arguments.venv.absolute() / "bin"
    tuning = openstack.Tuning(
        clients=arguments.clients, workers=arguments.workers, threads=arguments.threads,
        limit=arguments.limit, randomize=not arguments.no_randomize,
        candidates_max=arguments.candidates_max, reuse=arguments.reuse)
    placement_runs, berth_runs = [], []
    with Postgres() as postgres:
        _note(f"PostgreSQL {postgres.version()}, openstack-placement "
              f"{openstack.version(programs)}, {os.cpu_count()} cores, "
              f"load average {os.getloadavg()[0]:.2f}")
        _note(f"creating {arguments.nodes} providers in Placement")
        openstack.prepare(postgres, programs, arguments.nodes)
        # In turn, so that whatever else the machine does hits both.
        for _ in range(arguments.runs):
            figures = openstack.measure(postgres, programs, arguments.nodes, arguments.seconds,
                                        tuning)
            placement_runs.append(figures)
            _print_run("placement", figures)
            if arguments.berth:
                figures = _measure_berth(postgres, arguments)
                berth_runs.append(figures)
                _print_run("berth", figures)
    _print_outcome(placement_runs, berth_runs)


def _measure_berth(postgres, arguments):
    """Lets Berth load itself over HTTP, on an empty database of the same server."""
    postgres.drop(_DATABASE)
    postgres.create(_DATABASE)
    # What the run before left to be written must not slow this one.
    postgres.settle()
    command = [arguments.berth.absolute(), "bench", "http", "--database-url",
               postgres.url(_DATABASE), "--nodes", arguments.nodes, "--clients",
               arguments.berth_clients, "--seconds", arguments.seconds, "--json"]
    meter, begin = Meter(os.getpid()), time.monotonic()
    try:
        with Started(command, stdout=subprocess.PIPE, text=True) as started:
            printed, _ = started.process.communicate()
            status = started.ended()
        cpu_s, others = meter.read(time.monotonic() - begin)
    finally:
        postgres.drop(_DATABASE)
    if status != 0:
        raise Failed(f"berth bench http failed ({status})")
    try:
        figures = json.loads(printed)
        rates = [float(figures[key]) for key in ("placements_per_s", "p50_ms", "p99_ms")]
    except (ValueError, KeyError, TypeError) as failure:
        raise Failed(f"berth bench http printed {printed!r}: {failure!r}") from failure
    if rates[0] <= 0:
        raise Failed(f"berth bench http placed nothing: {printed!r}")
    # Of everything that ran, so with the making of the fleet and with Berth's own clients.
    cpu_ms = cpu_s * 1000 / (rates[0] * arguments.seconds)
    return {**figures, "cpu_ms_per_claim": round(cpu_ms, 3), "cores_of_others": others}


def _print_run(name, figures):
    print(json.dumps({"run": name, **figures}), flush=True)


def _note(text):
    print(f"bench-peers: {text}", file=sys.stderr, flush=True)


def _print_outcome(placement_runs, berth_runs):
    # One placement is one request with one commit, as one claim is; how many instances it holds
    # is not counted in Berth's favour.
    placement = _medians(placement_runs, "claims_per_s")
    berth = _medians(berth_runs, "placements_per_s") if berth_runs else None
    outcome = {"placement": placement}
    if berth:
        outcome["berth"] = berth
        outcome["ratio"] = round(berth["claims_per_s"] / placement["claims_per_s"], 1)
    print(json.dumps({"medians": outcome}))
    if berth:
        _print_table(placement, berth, outcome["ratio"], len(berth_runs))
    others = max(run["cores_of_others"] for run in placement_runs + berth_runs)
    if others > 0.1 * os.cpu_count():
        _note(f"other programs kept up to {others} of {os.cpu_count()} cores busy: "
              "do not quote these rates")


def _print_table(placement, berth, ratio, runs):
    print(f"\n{f'median of {runs}':<22}{'claims/s':>10}{'p50 ms':>10}{'p99 ms':>10}"
          f"{'CPU ms/claim':>14}{'errors':>8}")
    for name, row in (("OpenStack Placement", placement), ("Berth", berth)):
        print(f"{name:<22}{row['claims_per_s']:>10.1f}{row['p50_ms']:>10.1f}{row['p99_ms']:>10.1f}"
              f"{row['cpu_ms_per_claim']:>14.3f}{row['errors']:>8.0f}")
    print(f"{'Berth / Placement':<22}{ratio:>10.1f}")


def _medians(runs, rate):
    columns = {"claims_per_s": rate, "p50_ms": "p50_ms", "p99_ms": "p99_ms",
               "cpu_ms_per_claim": "cpu_ms_per_claim", "errors": "errors"}
    return {name: round(statistics.median(float(run.get(key, 0)) for run in runs), 3)
            for name, key in columns.items()}


if __name__ == "__main__":
    sys.exit(main())
