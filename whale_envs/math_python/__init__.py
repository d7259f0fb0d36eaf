"""Math with a Python interpreter: examples, verifier, tool and environment of the domain."""

from whale_envs.math_python.env import ENV_ID, MathPythonEnv
from whale_envs.math_python.examples import (
    SIZES,
    MathProblem,
    generate_examples,
    load_examples,
    load_family_disjoint,
    make_problem,
)
from whale_envs.math_python.verifier import averify, check, same_answer, verify

ENV = MathPythonEnv

__all__ = [
    "ENV",
    "ENV_ID",
    "SIZES",
    "MathProblem",
    "MathPythonEnv",
    "averify",
    "check",
    "generate_examples",
    "load_examples",
    "load_family_disjoint",
    "make_problem",
    "same_answer",
    "verify",
]
