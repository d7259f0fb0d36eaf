"""Math with a Python interpreter: problems, verifier and environment of the domain."""

from whale_envs.math_python.examples import (
    SIZES,
    MathProblem,
    generate_examples,
    load_examples,
    load_family_disjoint,
    make_problem,
)
from whale_envs.math_python.verifier import averify, check, same_answer, verify

__all__ = [
    "SIZES",
    "MathProblem",
    "averify",
    "check",
    "generate_examples",
    "load_examples",
    "load_family_disjoint",
    "make_problem",
    "same_answer",
    "verify",
]
