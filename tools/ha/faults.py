"""What is done to the cluster in a round, and how it is undone."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import processes
from cluster import Cluster, Member, Server


@dataclass
class Fault:
    """A fault in effect."""

    # What it was done to, for the log.
    target: str
    # When it took effect, on the test's clock.
    moment: float
    # Brings back what was killed or frozen.
    repair: Callable[[], None]
    # The primary that somebody else has to replace, if it was the primary.
    lost_primary: Member | None = None
    # Servers that the repair starts again.
    servers: list[Server] = field(default_factory=list)
    # How long it stays in effect at least, so that it is more than a hiccup.
    least_s: float = 6.0


def kill_postgres(cluster: Cluster, _round: int) -> Fault:
    """Kills PostgreSQL on the primary; its Patroni goes on."""
    member = cluster.leader()
    moment = processes.kill_server(member.data_dir)
    return Fault(member.name, moment, lambda: None, lost_primary=member)


def kill_primary(cluster: Cluster, _round: int) -> Fault:
    """Kills PostgreSQL and Patroni of the primary, as a power failure would."""
    member = cluster.leader()
    return Fault(member.name, *_kill_member(member), lost_primary=member)


def lose_machine(cluster: Cluster, round_number: int) -> Fault:
    """Kills everything on the primary's machine: PostgreSQL, Patroni, etcd and a Berth server."""
    member = cluster.leader()
    server = cluster.servers[round_number % len(cluster.servers)]
    server.process.kill()
    member.etcd.kill()
    moment, start_patroni = _kill_member(member)

    def repair() -> None:
        member.etcd.start()
        start_patroni()
        server.process.start()
    return Fault(f"{member.name} and {server.name}", moment, repair, lost_primary=member,
                 servers=[server])


def kill_standby(cluster: Cluster, _round: int) -> Fault:
    """Kills PostgreSQL and Patroni of the synchronous standby, for which every commit waits."""
    member = cluster.synchronous_standby()
    return Fault(member.name, *_kill_member(member))


def _kill_member(member: Member) -> tuple[float, Callable[[], None]]:
    # Patroni first: it would start PostgreSQL again.
    member.patroni.kill()
    return processes.kill_server(member.data_dir), member.patroni.start


def freeze_primary(cluster: Cluster, _round: int) -> Fault:
    """Stops PostgreSQL and Patroni of the primary without ending them; later they go on."""
    member = cluster.leader()
    return Fault(member.name, *_freeze_member(member), lost_primary=member)


def freeze_standby(cluster: Cluster, _round: int) -> Fault:
    """The same for the synchronous standby: its connections stay open and nothing answers."""
    member = cluster.synchronous_standby()
    return Fault(member.name, *_freeze_member(member))


def _freeze_member(member: Member) -> tuple[float, Callable[[], None]]:
    processes.freeze([member.patroni.pid])
    server = processes.postmaster(member.data_dir)
    frozen = [member.patroni.pid] + (processes.with_children(server) if server else [])
    processes.freeze(frozen)
    return time.monotonic(), lambda: processes.thaw(frozen)


def kill_etcd(cluster: Cluster, round_number: int) -> Fault:
    """Kills one member of etcd; the other two have a majority."""
    member = cluster.members[round_number % len(cluster.members)]
    member.etcd.kill()
    return Fault(member.etcd.name, time.monotonic(), member.etcd.start)


def kill_etcd_majority(cluster: Cluster, round_number: int) -> Fault:
    """Kills two members of etcd, for longer than the leader's key lasts: it cannot be renewed."""
    kept = round_number % len(cluster.members)
    lost = [member for number, member in enumerate(cluster.members) if number != kept]
    for member in lost:
        member.etcd.kill()
    moment = time.monotonic()

    def repair() -> None:
        for member in lost:
            member.etcd.start()
    return Fault(" and ".join(member.etcd.name for member in lost), moment, repair,
                 least_s=cluster.ttl_s + 6.0)


def kill_server(cluster: Cluster, round_number: int) -> Fault:
    """Kills a Berth server."""
    server = cluster.servers[round_number % len(cluster.servers)]
    server.process.kill()
    return Fault(server.name, time.monotonic(), server.process.start, servers=[server])


# In the order in which rounds take them.
KINDS: dict[str, Callable[[Cluster, int], Fault]] = {
    "kill primary": kill_primary,
    "kill standby": kill_standby,
    "kill etcd": kill_etcd,
    "kill server": kill_server,
    "freeze primary": freeze_primary,
    "kill postgres": kill_postgres,
    "freeze standby": freeze_standby,
    "kill etcd majority": kill_etcd_majority,
    "lose machine": lose_machine,
}
