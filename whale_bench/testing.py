"""What authors test with: the shipped fake model and the harness checker.

from whale_bench.testing import ScriptedModel, check_harness

Not covered: environments, whose checker is `whale_envs.testing`.
"""

from whale_bench.harness.check import Finding, check_harness
from whale_bench.models.scripted import ScriptedModel

__all__ = ["Finding", "ScriptedModel", "check_harness"]
