#!/usr/bin/env python3
"""Runs Berth on a highly available PostgreSQL, and breaks one part after the other under load.

Three members with etcd and PostgreSQL under Patroni, from the files of deploy/ha, and two Berth
servers: one with all hosts in its URL, one behind HAProxy. Each round kills or freezes one part
while clients place and release, waits until placements are acknowledged again, brings the part
back, and compares what was acknowledged with what both servers say. Exit code 1 if anything was
lost, given twice or oversold.

Everything listens on loopback, on free ports; everything ends with this program, however it ends.
"""

import argparse
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import Any

import faults
from cluster import Cluster, fetch, list_all
from load import TENANT, History, Load
from processes import Failed, wait_until

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# How long the load runs undisturbed before each fault.
_QUIET_S = 2.0
_RECOVERY_MAX_S = 120.0
_REPEATS = 40
# A commit that takes longer than this waits for something.
_STALL_S = 1.0


@dataclass
class Round:
    """What was measured in one round, in seconds."""

    kind: str
    target: str
    # Until the first acknowledgement of a placement that was sent after the fault.
    recovery_s: float
    # The longest time that any caller waited for a placement.
    longest_s: float
    # Until another member was the primary; absent if the primary was not touched.
    promotion_s: float | None
    # Until the database itself took a commit again, which includes a synchronous standby.
    database_s: float

    @property
    def own_s(self) -> float:
        """What Berth added to the time that the database needed."""
        return max(0.0, self.recovery_s - self.database_s)

    @property
    def parts_s(self) -> tuple[float, float, float]:
        """The recovery, divided: Patroni until the promotion, PostgreSQL until it commits, and Berth."""
        database_s = min(self.database_s, self.recovery_s)
        patroni_s = min(self.promotion_s or 0.0, database_s)
        return patroni_s, database_s - patroni_s, self.own_s


class Probe(threading.Thread):
    """Finds out without Berth when the database is back: has it a primary, and does that commit?"""

    def __init__(self, cluster: Cluster, fault: faults.Fault) -> None:
        super().__init__(daemon=True)
        self.cluster = cluster
        self.fault = fault
        self.promotion_s: float | None = None
        self.database_s: float | None = None
        self.stopping = threading.Event()

    def run(self) -> None:
        members = [one for one in self.cluster.members if one is not self.fault.lost_primary]
        while not self.stopping.wait(0.05):
            primary = next((one for one in members if one.patroni_answers("/primary") == 200), None)
            if primary is None:
                continue
            if self.fault.lost_primary is not None and self.promotion_s is None:
                self.promotion_s = time.monotonic() - self.fault.moment
            begun = time.monotonic()
            try:
                self.cluster.sql("INSERT INTO probe VALUES (now())", primary)
            except Failed:
                continue
            done = time.monotonic()
            # It may take one commit and then wait again, for a standby that has to be rewound.
            if self.database_s is None or done - begun > _STALL_S:
                self.database_s = done - self.fault.moment


def main() -> int:
    arguments = _arguments()
    for number in _SIGNALS:
        signal.signal(number, _interrupted)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="berth-ha-"))
    # PostgreSQL runs as another user and must reach its data.
    folder.chmod(0o755)
    keep = True
    try:
        passed = _run(arguments, folder)
        keep = not passed
        return 0 if passed else 1
    except Failed as failure:
        print(f"ha-test: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        keep = False
        print("ha-test: interrupted; everything is stopped", file=sys.stderr)
        return 130
    finally:
        if keep or arguments.keep:
            print(f"ha-test: logs and data are in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _interrupted(*_: Any) -> None:
    # A second interrupt must not stop the tidying up that the first one began.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--berth", type=pathlib.Path, required=True, help="Berth's program")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--ttl", type=int, default=20,
                        help="Patroni's ttl in seconds; below 20 only old releases accept it")
    parser.add_argument("--standbys", type=int, default=1, choices=(1, 2),
                        help="synchronous standbys")
    parser.add_argument("--only", choices=faults.KINDS, action="append",
                        help="only this kind of fault; may be repeated")
    parser.add_argument("--keep", action="store_true", help="keep logs and data")
    return parser.parse_args()


def _run(arguments: argparse.Namespace, folder: pathlib.Path) -> bool:
    cluster = Cluster(folder, arguments.berth.resolve(), arguments.ttl, arguments.standbys)
    load: Load | None = None
    try:
        _say("starting etcd, PostgreSQL under Patroni, HAProxy and two servers")
        cluster.start()
        _check_warnings(cluster)
        load = Load([server.port for server in cluster.servers])
        load.start()
        kinds = arguments.only or list(faults.KINDS)
        rounds = []
        for number in range(arguments.rounds):
            kind = kinds[number % len(kinds)]
            rounds.append(_round(cluster, load, number, kind, arguments.rounds))
            if load.history.violations:
                break
        load.pause()
        _check_at_the_end(cluster, load.history)
        _print_summary(rounds, load.history, arguments.ttl)
        return not load.history.violations
    finally:
        if load is not None:
            load.stopping.set()
        cluster.stop()


def _round(cluster: Cluster, load: Load, number: int, kind: str, total: int) -> Round:
    cluster.wait_until_healthy()
    for server in cluster.servers:
        cluster.wait_until_ready(server)
    load.resume()
    time.sleep(_QUIET_S)
    fault = faults.KINDS[kind](cluster, number)
    moment = fault.moment
    probe = Probe(cluster, fault)
    probe.start()

    def recovered() -> bool:
        return probe.database_s is not None and bool(load.history.placements_sent_since(moment))
    try:
        wait_until(recovered, _RECOVERY_MAX_S, f"no placement was acknowledged after: {kind}", 0.05)
        probe.stopping.set()
        time.sleep(max(0.0, moment + fault.least_s - time.monotonic()))
        if load.history.violations:
            raise Failed("\n".join(load.history.violations[:10]))
    finally:
        probe.stopping.set()
        fault.repair()
    for server in fault.servers:
        cluster.wait_until_ready(server)
    cluster.wait_until_healthy()
    load.pause()
    first = min(load.history.placements_sent_since(moment), key=lambda placement: placement.done)
    longest = max(placement.done - placement.sent
                  for placement in load.history.placements_answered_since(moment))
    _compare(cluster, load.history)
    result = Round(kind, fault.target, first.done - moment, longest, probe.promotion_s,
                   probe.database_s or 0.0)
    promotion = "" if probe.promotion_s is None else f"promotion {probe.promotion_s:.2f} s, "
    _say(f"round {number + 1}/{total}: {kind} ({fault.target}): {promotion}database "
         f"{result.database_s:.2f} s, recovery {result.recovery_s:.2f} s, longest wait "
         f"{longest:.2f} s, {len(load.history.placed)} placements acknowledged")
    return result


def _check_warnings(cluster: Cluster) -> None:
    """A cluster as documented must not give the servers anything to warn about."""
    for server in cluster.servers:
        status, body = fetch(server.port, "/v1/status")
        if status != 200 or b'"warnings"' in body:
            raise Failed(f"{server.name} warns about its database: {body.decode(errors='replace')}")


def _compare(cluster: Cluster, history: History) -> None:
    """Compares what was acknowledged with what each server lists. No request is in flight."""
    expected = {instance: placed.node for instance, placed in history.expected().items()}

    def differences(port: int) -> list[str]:
        claims = list_all(port, "/v1/claims", {"tenant": TENANT})
        found = {claim["instance"]: claim["node"] for claim in claims}
        lost = [f"acknowledged placement {instance} is missing" for instance in expected
                if instance not in found]
        extra = [f"claim {instance} was never acknowledged, or was released" for instance in found
                 if instance not in expected]
        moved = [f"claim {instance} is on {found[instance]} instead of {node}"
                 for instance, node in expected.items() if found.get(instance, node) != node]
        twice = [] if len(found) == len(claims) else ["an instance is listed twice"]
        return lost + extra + moved + twice
    for server in cluster.servers:
        found = differences(server.port)
        deadline = time.monotonic() + 10
        # A server's lists may lag behind the other's changes for a moment.
        while found and time.monotonic() < deadline:
            time.sleep(0.1)
            found = differences(server.port)
        for difference in found[:20]:
            history.note_violation(f"{server.name}: {difference}")


def _check_at_the_end(cluster: Cluster, history: History) -> None:
    """The servers' own checks, retries of old requests, and the receipts."""
    _compare(cluster, history)
    _check_repeats(cluster, history)
    for server in cluster.servers:
        at = ["--url", f"http://127.0.0.1:{server.port}"]
        _run_check(cluster, history, ["debug", "check", "--live", *at])
    _run_check(cluster, history, ["verify", "--database-url", cluster.servers[0].url])


def _check_repeats(cluster: Cluster, history: History) -> None:
    """An old request, sent again with its id, must get its first answer, from either server."""
    for number, placed in enumerate(list(history.placed.values())[-_REPEATS:]):
        body = {"tenant": TENANT, "request_id": placed.request_id, "lease_s": 86_400,
                "instances": [{"resources": {"cpu_milli": 50, "memory_mib": 64, "disk_mib": 64}}]}
        server = cluster.servers[number % len(cluster.servers)]
        status, answer = fetch(server.port, "/v1/placements", "POST", body, timeout_s=20)
        if status not in (200, 201) or placed.instance.encode() not in answer:
            history.note_violation(f"{placed.request_id} sent again to {server.name}: {status} "
                                   f"{answer[:200].decode(errors='replace')}")


def _run_check(cluster: Cluster, history: History, arguments: list[str]) -> None:
    home = {"HOME": str(cluster.folder), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([str(cluster.berth), *arguments], env=home, capture_output=True,
                          text=True, check=False)
    shown = f"berth {arguments[0]}"
    if done.returncode != 0:
        printed = done.stdout + done.stderr
        history.note_violation(f"{shown} failed ({done.returncode}): {printed}")
    else:
        lines = done.stdout.strip().splitlines() or ["passed"]
        _say(f"{shown}: {lines[-1]}")


def _print_summary(rounds: list[Round], history: History, ttl_s: int) -> None:
    print()
    titles = ("promotion, s", "database, s", "recovery, s", "Berth alone, s", "longest wait, s")
    print(f"{'fault':<20}{'rounds':>7}" + "".join(f"{title:>18}" for title in titles))
    print(f"{'':<27}" + f"{'median':>10}{'max':>8}" * len(titles))
    for kind in faults.KINDS:
        of_kind = [one for one in rounds if one.kind == kind]
        if of_kind:
            print(f"{kind:<20}{len(of_kind):>7}" + _columns(of_kind))
    if rounds:
        print(f"{'all':<20}{len(rounds):>7}" + _columns(rounds))
        _print_shares(rounds)
    retried = ", ".join(f"{count} × {reason}" for reason, count in history.retried.most_common())
    print(f"\nPatroni's ttl: {ttl_s} s. Attempts that were retried: {retried or 'none'}.")
    expected = history.expected()
    print(f"{len(history.placed)} placements and {len(history.released)} releases acknowledged, "
          f"{len(expected)} instances held at the end, {len(history.violations)} violations.")
    for violation in history.violations[:50]:
        print(f"VIOLATION: {violation}")
    print("PASSED: nothing lost, given twice or oversold" if not history.violations else "FAILED")


def _print_shares(rounds: list[Round]) -> None:
    """Who is to blame for the recovery times."""
    total_s = sum(one.recovery_s for one in rounds) or 1.0
    names = ("Patroni until it promotes", "PostgreSQL until it commits", "Berth itself")
    sums = [sum(one.parts_s[part] for one in rounds) for part in range(len(names))]
    shares = [f"{name} {100 * part_s / total_s:.0f} %" for name, part_s in zip(names, sums)]
    print(f"\nOf all recovery time: {', '.join(shares)}.")


def _columns(rounds: list[Round]) -> str:
    promotions = [one.promotion_s for one in rounds if one.promotion_s is not None]
    lists = [promotions, [one.database_s for one in rounds], [one.recovery_s for one in rounds],
             [one.own_s for one in rounds], [one.longest_s for one in rounds]]
    return "".join(f"{statistics.median(values):>10.2f}{max(values):>8.2f}" if values
                   else f"{'-':>10}{'-':>8}" for values in lists)


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
