"""Broken: an option that no environment has."""

from typing import ClassVar

from whale_bench.harness import BaseHarness


class Harness(BaseHarness):
    ENV_OPTIONS: ClassVar = {"search_depth": 3}
