"""The suite as literal data: which domains, tiers and splits there are, written once.

    >>> make_env("chess_puzzles", split="dev").domain
    'chess_puzzles'

Every other table (command lines, docs, tests over all environments) derives from `DOMAINS`. A
domain's folder is imported when it is first used.

Not covered: models and harnesses, which are `whale_bench`'s.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any

from whale_envs.core import SPLITS, ExampleSet, TextEnv
from whale_envs.errors import UnknownNameError


@dataclass(frozen=True, slots=True)
class Domain:
    """One environment and its data."""

    name: str
    """Also the name of its folder in `whale_envs`."""
    env_id: str
    token_budget: int
    """Published limit of sampled tokens per rollout (reference §2)."""
    tiers: Mapping[str, str]
    """What each tier is, in a line; the embedded ones first."""
    tools: tuple[str, ...] = ()
    """What its environment offers beside the final response."""
    shown_by: tuple[str, ...] = ()
    """Groups of examples whose means a printed table shows; all groups stand in the records."""

    @property
    def module(self) -> Any:
        """The domain's folder, with `ENV`, `SIZES`, `load_examples` and `verify`."""
        return import_module(f"whale_envs.{self.name}")

    def budget(self, given: int | None) -> int:
        """Most sampled tokens of a rollout: those given, or the published limit."""
        return self.token_budget if given is None else given


DOMAINS: Mapping[str, Domain] = MappingProxyType(
    {
        domain.name: domain
        for domain in (
            Domain(
                name="chess_puzzles",
                env_id="whale/ChessPuzzles-v0",
                token_budget=8_129,
                tiers={
                    "mini": "480 Lichess puzzles, embedded",
                    "small": "6,605 Lichess puzzles, embedded",
                    "full": "Lichess/chess-puzzles from the hub (extra: data)",
                },
            ),
            Domain(
                name="math_python",
                env_id="whale/MathPython-v0",
                token_budget=8_192,
                tools=("code_interpreter",),
                shown_by=("band",),
                tiers={
                    "mini": "300 synthetic problems, embedded",
                    "small": "5,256 synthetic problems, embedded",
                    "full": "DAPO-Math-17k, AIME 2024 and 2025 from the hub (extra: data)",
                },
            ),
            Domain(
                name="search_qa",
                env_id="whale/SearchQA-v0",
                token_budget=8_192,
                tools=("search",),
                shown_by=("kind",),
                tiers={
                    "mini": "Wikipedia summaries and questions, embedded",
                    "factbook": "World Factbook passages and questions, embedded",
                    "full": "NQ, HotpotQA and the seven benchmarks from the hub (extra: data)",
                },
            ),
        )
    }
)
"""Every domain by name."""


def get_domain(name: str) -> Domain:
    """The domain of that name.

    Raises:
        UnknownNameError: there is none.
    """
    if name not in DOMAINS:
        raise UnknownNameError("environment", name, DOMAINS)
    return DOMAINS[name]


def load_examples(domain: str, tier: str = "mini", split: str = "test") -> ExampleSet[Any]:
    """The examples of a split, in fixed order.

    Raises:
        UnknownNameError: no such domain, tier or split.
    """
    found = get_domain(domain)
    if tier not in found.tiers:
        raise UnknownNameError(f"tier of {domain}", tier, found.tiers)
    if split not in SPLITS:
        raise UnknownNameError("split", split, SPLITS)
    examples: ExampleSet[Any] = found.module.load_examples(tier, split)
    return examples


def make_env(domain: str, **options: Any) -> TextEnv:
    """The domain's environment without Gymnasium's wrappers; options as `TextEnv`'s."""
    env: TextEnv = get_domain(domain).module.ENV(**options)
    return env
