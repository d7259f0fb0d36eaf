"""Verifier checks per second, beside math-verify on the same answers in the same run.

    python benchmarks/math_verifier.py

Every answer differs, so that math-verify's caches do not help. *ours* is `whale_envs.math_python.verify`
on whole responses: reading the box, both profiles, the comparison. *math-verify* is parse + parse +
verify on the bare answers, its time limits off. One thread; CPU time, median of 5. The last line is
what needs algebra, in wall time: there ours asks math-verify too, in a killable process, and checks
what it says.
"""

import logging
import statistics
import time

from whale_envs.math_python import make_problem, verify, worker

COUNT = 400
KINDS = {
    "integers": (("{n}", "{n}"), ("{n}", "0{n}"), ("{n}", "{m}"), ("{n}000", "{n},000")),
    "rationals": ((r"\frac{{{n}}}{{8}}", "{n}.5"), ("{n}/7", r"\dfrac{{{n}}}{{7}}"),
                  (r"{n}\frac34", "{n}.75"), ("0.{n}5", r"{n}\%")),
    "structures": (("({n},2)", "({n}, 3)"), (r"\{{{n},3\}}", r"\{{3,{n}\}}"), ("{n}", "x={n}"),
                   ("{n}", r"{n}\text{{ cm}}")),
    "algebra": ((r"\sqrt{{{n}}}", r"\frac{{{n}}}{{\sqrt{{{n}}}}}"), ("x^2-{n}x", "x(x-{n})"),
                (r"{n}\pi", r"\pi\cdot {n}"), (r"\sqrt{{{n}}}", r"\sqrt{{{m}}}")),
}  # fmt: skip
PROSE = "We count the cases one by one and add them up. " * 20
ROUNDS = 5


def rate(work, pairs, clock) -> float:
    """Checks per second."""
    began = clock()
    for gold, answer in pairs:
        work(gold, answer)
    return len(pairs) / (clock() - began)


def ours(gold: str, answer: str) -> float:
    problem = make_problem("What is it?", gold, dataset="benchmark")
    return verify(problem, f"{PROSE}So it is $\\boxed{{{answer}}}$.").reward


def peer(gold: str, answer: str) -> bool:
    import math_verify

    parsed = [math_verify.parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (gold, answer)]
    return math_verify.verify(*parsed, timeout_seconds=None)


def main() -> None:
    logging.disable(logging.CRITICAL)
    worker.POOL.same(r"2\sqrt{2}", r"\sqrt{8}", worker.Allowance(60))  # loads the libraries
    peer(r"2\sqrt{2}", r"\sqrt{8}")
    print(f"{'':12}{'ours':>12}{'math-verify':>14}{'times':>8}")
    for kind, forms in KINDS.items():
        mine, theirs = [], []
        clock = time.perf_counter if kind == "algebra" else time.process_time
        for round_ in range(ROUNDS):
            numbers = range(1 + COUNT * round_, 1 + COUNT * round_ + (24 if kind == "algebra" else COUNT))
            few = [tuple(text.format(n=n, m=n + 1) for text in forms[n % len(forms)]) for n in numbers]
            mine.append(rate(ours, few * (1 if kind == "algebra" else 10), clock))
            theirs.append(rate(peer, few[:48], clock))
        a, b = statistics.median(mine), statistics.median(theirs)
        print(f"{kind:12}{a:10,.0f}/s{b:12,.0f}/s{a / b:8,.1f}")


if __name__ == "__main__":
    main()
