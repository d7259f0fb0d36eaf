"""Where recipes stand: the shipped ones by name, others by their file.

    recipe_names()                                      # ["demo/chess_puzzles/adaptive_whale", …]
    place, content = read_recipe("paper/search_qa/whale")

Not covered: what a recipe says (`recipes.py`).
"""

import tomllib
from collections.abc import Iterator
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

from whale_envs.errors import UnknownNameError, UsageError

_ENDING = ".toml"
_MOST_HINTS = 4


def recipe_names() -> list[str]:
    """Every shipped recipe, in order; bases that are no method by themselves are left out."""
    return sorted(name for name in _shipped() if not name.endswith("/base"))


def read_recipe(name: str) -> tuple[Path, dict[str, Any]]:
    """(where it stands, what is in it).

    Raises:
        UsageError: there is none of that name, or the file cannot be read.
    """
    shipped = _shipped()
    if not name.endswith(_ENDING) and name not in shipped:
        raise _unknown(name)
    path = Path(name) if name.endswith(_ENDING) else shipped[name]
    try:
        return path, tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        meant = name.removesuffix(_ENDING)
        more = f"; the shipped recipe is {meant!r}, without {_ENDING}" if meant in shipped else ""
        raise UsageError(f"{path}: cannot be read: there is no such file{more}") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error


def _unknown(name: str) -> UnknownNameError:
    """With the recipes that are meant perhaps, and not with all, which fill a screen."""
    names = recipe_names()
    methods = sorted({_method(known) for known in names})
    method = get_close_matches(_method(name), methods, n=1)
    near = get_close_matches(name, names, n=1)
    near += [known for known in names if [_method(known)] == method and known not in near]
    hint = f"; did you mean {' or '.join(map(repr, near[:_MOST_HINTS]))}?" if near else "."
    return UnknownNameError(
        f"unknown recipe {name!r}{hint} `whale-baselines list` names all {len(names)}; "
        f"a file's name ends in {_ENDING}"
    )


def _method(name: str) -> str:
    return name.rpartition("/")[2]


def _shipped() -> dict[str, Path]:
    return dict(_walk(Path(str(files("whale_baselines") / "recipes")), ""))


def _walk(folder: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(_ENDING):
            yield prefix + entry.name.removesuffix(_ENDING), entry
