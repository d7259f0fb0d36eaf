"""JSON Schemas (2020-12) of the files we write, and the program that makes them.

    python -m whale_bench.schemas      # writes the *.json beside this module anew

They are made from the types that write the files, descriptions from their docstrings, and committed,
so that a change of a file's shape is seen in review; a test holds the two together. `VERSION` is that
of the run folder's layout and stands in each `$id`.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_type_hints

import msgspec

from whale_bench.store import FORMAT
from whale_envs.errors import UnknownNameError

VERSION = FORMAT
"""Of all schemas; a layout that old readers would misread has another."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


class Resolved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What run.toml holds beside the plan."""

    format: int
    """Version of the folder's layout."""
    settings_id: str
    """Hash of all settings but the server's address."""
    n: int
    """Examples, the first of the split."""
    env_id: str
    """Environment with its version."""
    fixture: bool
    """True for scripted models, which are no entry of any ranking."""
    weights_id: str
    """Content hash of the weights; "remote:NAME" where they cannot be seen."""
    harness_id: str
    """Content hash of the harness."""
    examples_id: str
    """Hash of the examples' ids, in order."""
    env_options: dict[str, int] = {}
    """Of an own agent, the options of the environment that it asked for; a harness's stand in its file."""
    retriever_id: str = ""
    """Content hash of what searches, where something does."""
    versions: dict[str, str]
    """Of whale-envs and Python."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The schemas of a package, as they are made and as they lie in its folder."""

    package: str
    """As the `$id`s have it."""
    folder: Path
    makers: Mapping[str, tuple[str, Callable[[], dict[str, Any]]]]
    """Title and maker by name."""

    @classmethod
    def of_types(cls, package: str, folder: Path, kinds: Mapping[str, tuple[str, Any]]) -> "Committed":
        """Of a package whose schemas are those of types; title and type by name."""
        makers = {name: (title, partial(schema_of, kind)) for name, (title, kind) in kinds.items()}
        return cls(package, folder, makers)

    def read(self, name: str) -> str:
        """The committed schema of that name, as JSON text.

        Raises:
            UnknownNameError: there is none.
        """
        if name not in self.makers:
            raise UnknownNameError("schema", name, self.makers)
        return self.path_of(name).read_text(encoding="utf-8")

    def make(self, name: str) -> str:
        """The schema as the types now have it."""
        title, maker = self.makers[name]
        names = {"$schema": _DIALECT, "$id": f"urn:{self.package}:{name}:{VERSION}", "title": title}
        return msgspec.json.format(msgspec.json.encode(names | maker()), indent=2).decode() + "\n"

    def path_of(self, name: str) -> Path:
        """Where the committed schema is."""
        return self.folder / f"{name}.json"

    def write(self) -> None:
        """Makes all of them anew."""
        for name in self.makers:
            self.path_of(name).write_text(self.make(name), encoding="utf-8")


def _rollout() -> dict[str, Any]:
    from whale_bench.records import Rollout

    return schema_of(Rollout)


def _summary() -> dict[str, Any]:
    from whale_bench.scoring import Summary

    return schema_of(Summary)


def _event() -> dict[str, Any]:
    from whale_bench.ledger import Charge, Event

    written = msgspec.defstruct("Event", [*get_type_hints(Event).items()])
    written.__doc__ = Event.__doc__
    schema = schema_of(written)
    _describe(schema["$defs"]["Event"], Event)
    charge = schema_of(Charge)
    schema["$defs"] |= charge["$defs"]
    schema["$defs"]["Event"]["properties"]["charge"] |= {
        "contentMediaType": "application/json",
        "contentSchema": {"$ref": "#/$defs/Charge"},
    }
    return schema


def _run() -> dict[str, Any]:
    """The plan, whose unset options are left out of the file, and what it was resolved to."""
    from whale_bench.models.base import SAMPLING
    from whale_bench.plan import EvalPlan

    plan = schema_of(EvalPlan)["$defs"]["EvalPlan"]
    rest = schema_of(Resolved)["$defs"]["Resolved"]
    for described in plan["properties"].values():
        kinds = [kind for kind in described.pop("anyOf", []) if kind != {"type": "null"}]
        described |= kinds[0] if kinds else {}
        if described.get("default", 0) is None:
            del described["default"]
    always = {field.name for field in fields(EvalPlan) if field.default is not None}.difference(SAMPLING)
    return {
        "type": "object",
        "properties": plan["properties"] | rest["properties"],
        "required": sorted({*always, *rest["required"]}),
    }


MAKERS = MappingProxyType[str, tuple[str, Callable[[], dict[str, Any]]]](
    {
        "run": ("run.toml: what was run, resolved", _run),
        "rollout": ("a line of rollouts-*.jsonl", _rollout),
        "summary": ("summary.json: the scores", _summary),
        "event": ("a line of the ledger's export", _event),
    }
)
"""Title and maker by name."""

COMMITTED = Committed("whale-bench", Path(__file__).parent, MAKERS)
read_schema, make, path_of = COMMITTED.read, COMMITTED.make, COMMITTED.path_of


def schema_of(kind: Any) -> dict[str, Any]:
    """Msgspec's schema with our field descriptions, for each type that it mentions.

    Anchors of patterns are written as JSON Schema's dialect has them, not as Python's.
    """
    (schema,), found = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    for mentioned in _types(kind, {}).values():
        _describe(found[mentioned.__name__], mentioned)
    _write_anchors(found)
    return {**schema, "$defs": found}


def _write_anchors(part: Any) -> None:
    if isinstance(part, dict):
        if isinstance(pattern := part.get("pattern"), str):
            part["pattern"] = pattern.replace(r"\A", "^").replace(r"\Z", "$")
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            _write_anchors(inner)


def _types(kind: Any, found: dict[str, Any]) -> dict[str, Any]:
    """`kind` and every struct or dataclass of ours in its fields, by name."""
    ours = hasattr(kind, "__struct_fields__") or hasattr(kind, "__dataclass_fields__")
    if ours and kind.__name__ not in found:
        found[kind.__name__] = kind
        for hint in get_type_hints(kind).values():
            _types(hint, found)
    for argument in getattr(kind, "__args__", ()):
        _types(argument, found)
    return found


def _describe(schema: dict[str, Any], kind: Any) -> None:
    """Puts the string under each field of a class, and of those that it extends, into its property."""
    for owner in reversed(kind.__mro__):
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        except (OSError, TypeError):  # a class made by a program, or in C, has no source
            continue
        assert isinstance(body, ast.ClassDef)
        for field, text in pairwise(body.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                    if name in schema["properties"]:
                        schema["properties"][name]["description"] = " ".join(said.split())
