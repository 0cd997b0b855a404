"""Processor time: how much a measured system used, and how much the rest of the machine took.

On a shared machine a rate says as much about the neighbours as about the system. Processor time
for each claim hardly does, so both are kept.
"""

import os
import pathlib

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def _machine_busy_s():
    """Time that all cores together were not idle since the machine started."""
    fields = pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _wait, irq, softirq = map(int, fields[:7])
    return (user + nice + system + irq + softirq) * _TICK_S


def _trees_s(roots):
    """Time used by processes and all their descendants, those that ended included."""
    used, parents = {}, {}
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            # The name, in parentheses, may itself hold parentheses and spaces.
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        process = int(folder.name)
        parents[process] = int(fields[1])
        # utime, stime, and the same of children that ended
        used[process] = sum(map(int, fields[11:15])) * _TICK_S
    total = 0
    for process, seconds in used.items():
        ancestor = process
        while ancestor and ancestor not in roots:
            ancestor = parents.get(ancestor, 0)
        total += seconds if ancestor else 0
    return total


class Meter:
    """Reads processor time from now on, of some process trees and of the machine."""

    def __init__(self, *roots):
        self.roots = set(roots)
        self.own_s, self.machine_s = _trees_s(self.roots), _machine_busy_s()

    def read(self, seconds):
        """Returns the trees' processor seconds, and how many cores others kept busy."""
        own_s = _trees_s(self.roots) - self.own_s
        machine_s = _machine_busy_s() - self.machine_s
        return own_s, round(max(machine_s - own_s, 0) / seconds, 2)
