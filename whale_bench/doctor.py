"""What this machine has for the suite, part by part, each with what mends it: `whale-bench doctor`.

    >>> for finding in findings(): print(finding.part, finding.state)      # doctest: +SKIP
    python ok
    base install ok
    extra vllm missing

"missing" is what the rest does without, "broken" what will fail. Packages and their versions are looked up
in what is installed; the rest is found by trying: layers are started, servers asked (those whose address or
key a variable names, five seconds each).

Not covered: whether a model fits into a GPU's memory; that is found when it is loaded.
"""

import asyncio
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Literal

import msgspec

from whale_bench.installed import Installed, extras, look_up
from whale_bench.models.anthropic_api import ANTHROPIC_URL
from whale_bench.plan import OPENAI_URL
from whale_envs.errors import InfrastructureError, UsageError
from whale_envs.paths import cache_dir

State = Literal["ok", "missing", "broken"]

NVIDIA = Path("/dev/nvidiactl")

NEEDED_GB = 2.0
"""Free disk space below which a run or a download may not end."""

SERVERS = {
    "OPENAI_BASE_URL": ("OPENAI_API_KEY", OPENAI_URL, "/models", "Authorization", "Bearer {}"),
    "ANTHROPIC_BASE_URL": ("ANTHROPIC_API_KEY", ANTHROPIC_URL, "/v1/models", "x-api-key", "{}"),
}
"""By the variable of an address: the variable of its key, the address without one, what to ask for, and how
the key is sent."""

ANSWER_S = 5.0


class Finding(msgspec.Struct, frozen=True):
    """One part of the machine."""

    part: str
    state: State
    what: str
    """What was found."""
    fix: str = ""
    """What to do where it is not ok."""


def findings() -> Iterator[Finding]:
    """Every part, in an order for people; takes some seconds, most of them for the sandbox."""
    yield _python()
    yield from _packages()
    yield _gpu()
    yield from _sandbox()
    yield _harness_workers()
    yield _lucene()
    for place in (cache_dir(), Path.cwd()):
        yield _disk(place)
    yield from asyncio.run(_servers())


def _python() -> Finding:
    return Finding("python", "ok", f"{platform.python_version()}, {sys.executable}")


def _packages() -> Iterator[Finding]:
    try:
        yield _installed("base install", look_up(), "pip install --force-reinstall whale-envs")
        for extra in extras():
            yield _installed(f"extra {extra}", look_up(extra), f'pip install "whale-envs[{extra}]"')
    except PackageNotFoundError:
        why = "whale-envs itself is not installed, so nobody knows what it needs"
        yield Finding("base install", "broken", why, "pip install -e . in the source tree")


def _installed(part: str, found: Installed, fix: str) -> Finding:
    """Of what is not there at all, one does without; of a version that is not taken, something will fail."""
    lacks = [f"lacks {', '.join(found.missing)}"] if found.missing else []
    if lacks and part != "base install":
        return Finding(part, "missing", "; ".join([*lacks, *found.wrong]), fix)
    if lacks or found.wrong:
        return Finding(part, "broken", "; ".join([*lacks, *found.wrong]), fix)
    return Finding(part, "ok", ", ".join(found.versions))


def _gpu() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return _driver()
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return Finding("gpu", "ok", f"{', '.join(names)}; torch {torch.__version__}")
    if torch.version.cuda is None:
        return Finding("gpu", "missing", f"torch {torch.__version__} is a build for CPUs",
                       "models run on the CPU; for a GPU install a CUDA build of torch")  # fmt: skip
    return Finding("gpu", "missing", f"torch {torch.__version__} finds no CUDA device",
                   "models run on the CPU; check the driver with nvidia-smi")  # fmt: skip


def _driver() -> Finding:
    """What can be said of a GPU without torch: whether there is a driver's device."""
    install = 'pip install "whale-envs[local]"'
    if NVIDIA.exists():
        return Finding("gpu", "missing", f"torch is not installed; {NVIDIA} is there", install)
    why = f"torch is not installed, and there is no {NVIDIA}, the device of NVIDIA's driver"
    return Finding("gpu", "missing", why, f"none is needed for servers and own agents; else {install}")


def _sandbox() -> Iterator[Finding]:
    from whale_envs.sandbox.doctor import layers

    *walls, tool = layers()
    for wall in walls:
        fix = "" if wall.active else "a kernel that has it; inside a container, one that allows it"
        yield Finding(f"sandbox {wall.name}", "ok" if wall.active else "missing", wall.why, fix)
    fix = "" if tool.active else "give --unsafe-python where you trust the model, or --python-url"
    yield Finding(tool.name, "ok" if tool.active else "broken", tool.why, fix)


def _harness_workers() -> Finding:
    """Which layers protect from harness files that do not ship with the suite."""
    from whale_bench.harness.workers import worker_layers
    from whale_envs.sandbox.confined import missing_walls

    part = "harness workers"
    try:
        layers = asyncio.run(worker_layers())
    except (InfrastructureError, UsageError) as error:
        return Finding(part, "broken", str(error), "only the shipped harnesses run here")
    held = ", ".join(layer["name"] for layer in layers if layer["active"])
    missing = missing_walls(layers)
    if missing:
        fix = "load files that you trust with unsafe=True, or check them with --unsafe-harness"
        return Finding(part, "broken", f"harness files would not be confined: {missing}", fix)
    return Finding(part, "ok", f"harness files are confined by {held}")


def _lucene() -> Finding:
    from whale_envs.retrieval.java import INSTALL, find_jar, find_java

    try:
        java, jar = find_java(), find_jar()
    except UsageError as error:
        return Finding("lucene", "missing", str(error), INSTALL)
    return Finding("lucene", "ok", f"{jar.name} on Java {java.version}, {java.found}")


def _disk(place: Path) -> Finding:
    there = next(path for path in (place, *place.parents) if path.exists())
    free = shutil.disk_usage(there).free / 1e9
    what = f"{free:,.1f} GB free at {place}"
    if not os.access(there, os.W_OK):
        return Finding(
            "disk", "broken", f"{place} cannot be written to", "give $WHALE_CACHE or another folder"
        )
    if free < NEEDED_GB:
        return Finding("disk", "broken", what, f"make room: runs and models need {NEEDED_GB:g} GB")
    return Finding("disk", "ok", what)


async def _servers() -> list[Finding]:
    named = [
        variable for variable, (key, *_) in SERVERS.items() if os.environ.get(variable) or os.environ.get(key)
    ]
    return list(await asyncio.gather(*map(_server, named)))


async def _server(variable: str) -> Finding:
    """Whether the server that a variable names, or else the default, answers and takes the key."""
    import aiohttp

    from whale_bench.models.openai import is_address

    key_name, default, path, header, form = SERVERS[variable]
    address = (os.environ.get(variable) or default).rstrip("/")
    part, key = f"server {variable}", os.environ.get(key_name, "").strip()
    if not is_address(address):
        return Finding(part, "broken", f"{address!r} is no address", f"set {variable} to http://HOST:PORT/v1")
    shown = address.rpartition("@")[2]
    has_user = "@" in address.partition("://")[2].partition("/")[0]
    headers = {header: form.format(key)} if key and not has_user else {}
    if path.startswith("/v1/"):
        address = address.removesuffix("/v1")
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(ANSWER_S)) as session,
            session.get(address + path, headers=headers) as answer,
        ):
            status = answer.status
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return Finding(
            part, "broken", f"{shown} does not answer ({said})", f"is the server up and {variable} right?"
        )
    if status in (401, 403):
        return Finding(part, "broken", f"{shown} refuses the key (HTTP {status})", f"set {key_name}")
    if status == 404:
        return Finding(part, "broken", f"{shown} has no {path} (HTTP 404)", f"does {variable} lack its /v1?")
    if status >= 500:
        return Finding(part, "broken", f"{shown} answers with HTTP {status}", "look at the server's log")
    return Finding(part, "ok", f"{shown} answers (HTTP {status})")
