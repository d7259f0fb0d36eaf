"""What each call holds: its processes, and its memory beyond the template's.

    look(proc, template_pid, {4711: cell}, deep=True, shared=False)
    # {cell: Seen(processes=[Process(number=4711, stopped=False, nice=0, tasks=1)], bytes=52428800)}

Read from /proc some twenty times a second, for calls that run longer than that. Bytes are the memory
of all processes that no other has, the scratch folder, memory maps shared among them (`shared`, where
no filter forbids these) and what their descriptors may keep in the kernel: pipes and pairs of sockets.

Not covered: what is allocated and given back between two looks, page caches of the kernel, and its
tables of a process's maps and locks.
"""

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from whale_envs.sandbox.warm.rootfs import SCRATCH

_PAGE = resource.getpagesize()
_FREE_DESCRIPTORS = 16
_DESCRIPTOR = 212_992
"""Bytes that one end of a pair of sockets may hold (`wmem_default`); a pipe holds less."""
_T = TypeVar("_T")


class Process(NamedTuple):
    number: int
    stopped: bool
    nice: int
    tasks: int
    """Its threads, the first included."""


@dataclass(slots=True)
class Seen:
    processes: list[Process] = field(default_factory=list)
    bytes: int = 0

    @property
    def tasks(self) -> int:
        return sum(process.tasks for process in self.processes)


def look(proc: int, template: int, cells: Mapping[int, _T], *, deep: bool, shared: bool) -> dict[_T, Seen]:
    """What is there per cell; `cells` maps the process ids of first processes.

    `deep` also looks for the processes that these have started; without, there can be none.
    """
    states = _states(proc, _numbers(proc) if deep else cells)
    base = _private(proc, template)
    result = {cell: Seen() for cell in cells.values()}
    apart = dict.fromkeys(result, 0)
    for number, (_, process) in states.items():
        first = _first(number, states, cells)
        if first is None:
            continue
        seen = result[cells[first]]
        seen.processes.append(process)
        seen.bytes += max(0, _private(proc, number) - base)
        seen.bytes += max(0, _descriptors(proc, number) - _FREE_DESCRIPTORS) * _DESCRIPTOR
        apart[cells[first]] += _shared(proc, number) if shared else 0
    for pid, cell in cells.items():
        result[cell].bytes += max(apart[cell], _scratch(proc, pid))  # shared maps may be files there
    return result


def below(proc: int, first: int) -> list[int]:
    """Every process that descends from that one."""
    states = _states(proc, _numbers(proc))
    return [n for n in states if n != first and _first(n, states, {first: None}) == first]


def tasks(proc: int, number: int) -> int:
    """Threads of one process; 0 where it is gone."""
    found = _states(proc, [number])
    return found[number][1].tasks if found else 0


_States = Mapping[int, tuple[int, Process]]


def _numbers(proc: int) -> list[int]:
    return [int(name) for name in os.listdir(proc) if name.isdigit()]


def _states(proc: int, numbers: "list[int] | Mapping[int, object]") -> dict[int, tuple[int, Process]]:
    """Parent and state of each process."""
    found = {}
    for number in numbers:
        fields = _read(proc, f"{number}/stat").rpartition(b")")[2].split()
        if len(fields) > 17:
            state = Process(number, fields[0] == b"T", int(fields[16]), int(fields[17]))
            found[number] = int(fields[1]), state
    return found


def _first(number: int, states: _States, cells: Mapping[int, object]) -> int | None:
    for _ in range(10_000):
        if number in cells:
            return number
        number = states[number][0] if number in states else 0
        if not number:
            return None
    return None


def _read(proc: int, path: str, most: int = 1024) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY, dir_fd=proc)
    except OSError:
        return b""
    try:
        return os.read(descriptor, most)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _private(proc: int, number: int) -> int:
    fields = _read(proc, f"{number}/statm").split()
    return (int(fields[1]) - int(fields[2])) * _PAGE if len(fields) > 2 else 0


def _shared(proc: int, number: int) -> int:
    words = _read(proc, f"{number}/status", 8192).partition(b"RssShmem:")[2].split()
    return int(words[0]) * 1024 if words else 0


def _descriptors(proc: int, number: int) -> int:
    try:
        count = os.stat(f"{number}/fd", dir_fd=proc).st_size  # since Linux 6.2
        if count:
            return count
        folder = os.open(f"{number}/fd", os.O_RDONLY | os.O_DIRECTORY, dir_fd=proc)
    except OSError:
        return 0
    try:
        return len(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return 0
    finally:
        os.close(folder)


def _scratch(proc: int, number: int) -> int:
    try:
        descriptor = os.open(f"{number}/root{SCRATCH}", os.O_RDONLY | os.O_DIRECTORY, dir_fd=proc)
    except OSError:
        return 0
    try:
        numbers = os.fstatvfs(descriptor)
        return (numbers.f_blocks - numbers.f_bfree) * numbers.f_frsize
    finally:
        os.close(descriptor)
