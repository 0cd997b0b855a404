#!/usr/bin/env python3
"""Writes the configuration files of one machine of a cluster.

  render.py CLUSTER.toml MEMBER FOLDER

Reads the description of all machines (see cluster.toml) and fills in the templates next to this
program. Files with passwords are readable by their owner only. Needs only Python 3.11.
"""

import argparse
import os
import pathlib
import string
import sys
import tomllib
from typing import Any

_TEMPLATES = pathlib.Path(__file__).resolve().parent / "templates"
_PASSWORDS = ("superuser", "replication", "rewind", "patroni", "berth")


class Invalid(Exception):
    """The description cannot be used; the text says why."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cluster", type=pathlib.Path, help="the description of the cluster")
    parser.add_argument("member", help="the machine to write files for")
    parser.add_argument("folder", type=pathlib.Path, help="where to write them")
    arguments = parser.parse_args()
    try:
        cluster = tomllib.loads(arguments.cluster.read_text())
        written = render(cluster, arguments.member, arguments.folder)
    except (OSError, Invalid, tomllib.TOMLDecodeError) as error:
        print(f"render.py: {arguments.cluster}: {error}", file=sys.stderr)
        return 1
    for path in written:
        print(path)
    return 0


def render(cluster: dict[str, Any], member: str, folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes the files of one member and returns their paths."""
    values = _values(cluster, member)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for template in sorted(_TEMPLATES.iterdir()):
        text = string.Template(template.read_text()).substitute(values)
        path = folder / template.name
        # Created with its final mode: it must not be readable by others even for a moment.
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        written.append(path)
    return written


def _values(cluster: dict[str, Any], name: str) -> dict[str, str]:
    members = [_member(cluster, member) for member in cluster.get("member", [])]
    own = next((member for member in members if member["name"] == name), None)
    if own is None:
        known = ", ".join(member["name"] for member in members)
        raise Invalid(f"no member {name!r}; members are {known}")
    if len(members) < 3 or len(members) % 2 == 0:
        raise Invalid(f"{len(members)} members: etcd needs 3 or 5 to survive the loss of one")
    timing = cluster["timing"]
    least = timing["loop_wait"] + 2 * timing["retry_timeout"]
    if timing["ttl"] < least:
        raise Invalid(f"timing.ttl is {timing['ttl']}; accepted is loop_wait + 2 * retry_timeout "
                      f"or more, here {least}")
    sections = {"v2": "etcd", "v3": "etcd3"}
    api = own["etcd"]["api"]
    if api not in sections:
        raise Invalid(f"etcd.api is {api!r}; accepted are v2 and v3")
    ports, postgres = own["ports"], own["postgres"]
    data_dir = pathlib.PurePath(postgres["data_dir"])
    return {
        "name": name,
        "address": own["address"],
        "cluster": cluster["cluster"],
        "network": cluster["network"],
        **{key: str(value) for key, value in timing.items()},
        **{f"{key}_port": str(port) for key, port in ports.items()},
        **{f"{key}_password": _password(cluster, key) for key in _PASSWORDS},
        "bin_dir": postgres["bin_dir"],
        "data_dir": str(data_dir),
        "max_connections": str(postgres["max_connections"]),
        "synchronous_standbys": str(postgres["synchronous_standbys"]),
        "socket_dir": postgres.get("socket_dir", "/var/run/postgresql"),
        # Patroni writes it; next to the data directory its account may create files.
        "pgpass": str(data_dir.with_name(data_dir.name + ".pgpass")),
        "etcd_data_dir": own["etcd"]["data_dir"],
        "etcd_section": sections[api],
        "etcd_enable_v2": "true" if api == "v2" else "false",
        "etcd_hosts": ",".join(_at(member, "etcd_client") for member in members),
        "etcd_cluster": ",".join(f"{member['name']}=http://{_at(member, 'etcd_peer')}"
                                 for member in members),
        "postgres_hosts": ",".join(_at(member, "postgres") for member in members),
        "haproxy_servers": "\n".join(
            f"    server {member['name']} {_at(member, 'postgres')} check port "
            f"{member['ports']['patroni']}" for member in members),
    }


def _member(cluster: dict[str, Any], member: dict[str, Any]) -> dict[str, Any]:
    """A member with what it does not set itself."""
    sections = {key: {**cluster[key], **member.get(key, {})}
                for key in ("ports", "postgres", "etcd")}
    return {**member, **sections}


def _at(member: dict[str, Any], port: str) -> str:
    return f"{member['address']}:{member['ports'][port]}"


def _password(cluster: dict[str, Any], key: str) -> str:
    password = str(cluster["passwords"].get(key, ""))
    if not (password.isascii() and password.isalnum()):
        raise Invalid(f"passwords.{key}: accepted are letters and digits; generate one with: "
                      "openssl rand -hex 24")
    return password


if __name__ == "__main__":
    sys.exit(main())
