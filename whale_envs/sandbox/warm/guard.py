"""Keeps running programs from taking more than their share of processors, processes and memory.

    guard.look(cells, now)      # some twenty times a second; `cells` maps first processes' ids

- A program that has run for a while is put behind younger ones.
- A crowd, a program of more than two processes and threads, is put behind the rest at once; where
  there are more crowds than cores they take turns, all processes of the others stopped.
- One call may hold its limit of memory, and all of them together the machine's share: the largest goes.

Not covered: what happens between two looks.
"""

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from whale_envs.sandbox.warm import watch, wire
from whale_envs.sandbox.warm.cells import Cell
from whale_envs.sandbox.warm.jail import Walls

EVERY = 0.05
"""Seconds between two looks, where these are cheap."""

YOUNG = 0.5
"""Seconds for which a program goes before older ones."""

_LATER, _LAST = 10, 15
"""Added to the priority number of an old program, and of a crowd."""
_CROWD = 2
_MOST_SHARE = 0.2
"""Of one core, for looking."""
_MIB = 2**20


class Guard:
    def __init__(self, proc: int, template: int, config: dict[str, Any], walls: Walls) -> None:
        self._proc, self._template = proc, template
        self._nice: int = config["nice"]
        self._cores: int = config["cores"]
        self._memory = config["limits"]["memory_mb"] * _MIB
        self._all_memory = config["total_mb"] * _MIB
        self._tasks: int = config["limits"]["processes"]
        self._deep, self._shared = walls.processes, not walls.seccomp
        self._turn = 0
        self._next = 0.0

    def look(self, cells: Mapping[int, Cell], now: float) -> None:
        """Looks at every call, unless it did so just now."""
        if now < self._next:
            return
        seen = watch.look(self._proc, self._template, cells, deep=self._deep, shared=self._shared)
        for cell, found in seen.items():
            cell.others = [process.number for process in found.processes if process.number != cell.pid]
            cell.crowd = cell.request is not None and found.tasks > _CROWD
            if found.tasks > self._tasks + 1:  # where no namespace counts them for the kernel
                cell.kill(wire.CRASHED)
        self._bound_memory({cell: found.bytes for cell, found in seen.items()})
        self._order(seen, now)
        took = time.monotonic() - now
        self._next = now + max(EVERY, took / _MOST_SHARE)

    def _bound_memory(self, sizes: dict[Cell, int]) -> None:
        total = sum(sizes.values())
        for cell, size in sorted(sizes.items(), key=lambda item: -item[1]):
            if size > self._memory or total > self._all_memory:
                cell.kill(wire.MEMORY)
                total -= size

    def _order(self, seen: Mapping[Cell, watch.Seen], now: float) -> None:
        running = {c: f for c, f in seen.items() if c.request is not None and c.verdict == wire.FINISHED}
        crowds = sorted((cell for cell in running if cell.crowd), key=lambda cell: cell.number)
        self._turn += self._cores
        at = self._turn % max(1, len(crowds))
        moving = set((crowds + crowds)[at : at + self._cores])
        for cell, found in running.items():
            if cell.crowd or now - cell.started > YOUNG:
                for process in found.processes:
                    _put_back(process, min(19, self._nice + (_LAST if cell.crowd else _LATER)))
            if cell.crowd and cell not in moving:
                cell.paused = True
                if not all(process.stopped for process in found.processes):
                    cell.signal(signal.SIGSTOP)
            elif cell.paused:
                cell.paused = False
                cell.signal(signal.SIGCONT)


def _put_back(process: watch.Process, nice: int) -> None:
    if process.nice < nice:
        try:
            os.setpriority(os.PRIO_PROCESS, process.number, nice)
        except (ProcessLookupError, PermissionError):
            return
