"""How much memory each call holds: all of its processes and its scratch folder, beyond the template's.

    held(proc, template_pid, {4711: cell})
    # {cell: 52428800}

Read from /proc some twenty times a second, for calls that run longer than that. Not covered: what is
allocated and given back between two looks, and page caches of the kernel.
"""

import os
import resource
from collections.abc import Mapping
from typing import TypeVar

from whale_envs.sandbox.warm.rootfs import SCRATCH

_PAGE = resource.getpagesize()
_T = TypeVar("_T")


def held(proc: int, template: int, cells: Mapping[int, _T]) -> dict[_T, int]:
    """Bytes per cell; `cells` maps the process ids of first processes."""
    numbers = [int(name) for name in os.listdir(proc) if name.isdigit()]
    base = _private(proc, template)
    result = {cell: _scratch(proc, pid) for pid, cell in cells.items()}
    parents = _parents(proc, numbers) if len(numbers) > len(cells) + 2 else {}
    for number in numbers:
        first = _first(number, parents, cells)
        if first is not None:
            result[cells[first]] += max(0, _private(proc, number) - base)
    return result


def below(proc: int, first: int) -> list[int]:
    """Every process that descends from that one."""
    numbers = [int(name) for name in os.listdir(proc) if name.isdigit()]
    parents = _parents(proc, numbers)
    return [n for n in numbers if n != first and _first(n, parents, {first: None}) == first]


def _first(number: int, parents: Mapping[int, int], cells: Mapping[int, object]) -> int | None:
    for _ in range(10_000):
        if number in cells:
            return number
        number = parents.get(number, 0)
        if not number:
            return None
    return None


def _read(proc: int, path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY, dir_fd=proc)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 1024)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _private(proc: int, number: int) -> int:
    fields = _read(proc, f"{number}/statm").split()
    return (int(fields[1]) - int(fields[2])) * _PAGE if len(fields) > 2 else 0


def _parents(proc: int, numbers: list[int]) -> dict[int, int]:
    found = {}
    for number in numbers:
        after_name = _read(proc, f"{number}/stat").rpartition(b")")[2].split()
        if len(after_name) > 1:
            found[number] = int(after_name[1])
    return found


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
