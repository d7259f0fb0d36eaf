"""Ways of writing that change nothing, beside those that do; and dangerous texts of every kind we know."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.envs.math.test_findings import pairs
from whale_envs.math_python import make_problem, verify
from whale_envs.math_python.equality import UndecidedError, same, undecided
from whale_envs.math_python.labels import strip_label
from whale_envs.math_python.values import TooComplexError

EQUAL = r"""
    -5 <- –5
    -5 <- −5
    16 <- 2⁴
    1/4 <- 2⁻²
    1024 <- 2¹⁰
    x^{10} <- x¹⁰
    1000 <- 1×10³
    1000 <- 1.0e3
    1000 <- 1.0E3
    5 <- \therefore 5
    5 <- \Rightarrow 5
    5 <- ∴ x = 5
    5 <- \quad\implies x=5
    10 <- 10$
    10 <- 10\$
    10 <- $10
    \$10 <- 10$
    5 <- \text{Answer: } 5
    5 <- \text{Answer:}\ 5
    5 <- \text{Answer } 5
    5 <- \textbf{Final answer: }5
    5 <- \text{The answer is } 5
    5 <- \mathrm{Area:}\ 5\text{ cm}^2
    5 <- Answer: 5
    5 <- \color{red}{5}
    5 <- \color{red}5
    5 <- {\color{blue!50}5}
    5 <- \textcolor{blue}{5}
    5 <- \colorbox{yellow}{5}
    5 <- \fcolorbox{red}{white}{5}
    \frac{1}{2} <- \frac{\color{red}{1}}{\textcolor{blue}{2}}
    5 <- \underline{\textbf{5}}
    5 <- \Large{5}
    5 <- {\bf 5}
    5 <- 5\phantom{0}
    5 <- \hspace{1cm}5\tag{1}
    5 <- 5\text{.}
    5 <- 5 \checkmark
    5 <- 5 ✅
    90 <- 90\degree
    90 <- 90º
    1/6 <- ⅙
    11/2 <- 5½
    \sqrt{12} <- √12
    \sqrt{x+1} <- √(x+1)
    \sqrt{3} <- √{3}
    12 <- １２
    12 <- \displaystyle\left(12\right)\!
    (5,3) <- x=5,y=3
    5,3 <- y=3,x=5
    x=5,y=3 <- y=3, x=5
    x=5,y=3 <- (5,3)
    10\ldots <- 10\ldots
    f' <- f'
"""
UNEQUAL = r"""
    5 <- 5'
    10 <- 10\ldots
    10 <- 10...
    10 <- 10.\overline{1}
    10.5 <- 10.5\dots
    1/3 <- 0.333...
    (5,3) <- y=3,x=5
    x=5,y=3 <- x=3,y=5
    x=5,y=3 <- (3,5)
    5 <- \text{not } 5
    5 <- \text{Answer: not }5
    5 <- \text{Answer: half of }5
    5 <- \text{wrong answer: }5
    5 <- \text{minus } 5
    5 <- \cancel{5}
    5 <- \not 5
    5 <- \sout{5}
    5 <- \approx 5
    5 <- \to\infty
    5 <- \textcolor{blue}{6}
    5 <- \phantom{5}
    1 <- \phantom{0}10
    50 <- 5\phantom{0}
    10 <- 10\$5
    5 <- 5\$ or 6
    -5 <- \text{Answer: }5
    2^3 <- 2^{3^2}
    23 <- 2³
    (1,2) <- (2,1)
"""


def decided(gold: str, answer: str) -> bool | None:
    try:
        return same(gold, answer, undecided)
    except UndecidedError:
        return None


@pytest.mark.parametrize(("gold", "answer"), pairs(EQUAL))
def test_dress_changes_nothing(gold: str, answer: str) -> None:
    assert decided(gold, answer) is True


@pytest.mark.parametrize(("gold", "answer"), pairs(UNEQUAL))
def test_what_changes_an_answer_is_not_passed_over(gold: str, answer: str) -> None:
    assert decided(gold, answer) is False


@pytest.mark.parametrize(
    "text", ["a: 5", "n: 5", "3: 5", "the: 5", "total > 5", "total", "sum:", "", "ratio 2:3"]
)
def test_what_is_no_label_stays(text: str) -> None:
    assert strip_label(text) == text


N = 100_000
DANGEROUS = {
    "digits": "9" * 10 * N,
    "digits and a point": "9" * N + "." + "9" * N,
    "long fraction": r"\frac{" + "9" * N + "}{" + "7" * N + "}",
    "power of ten": "9e999999999",
    "tiny": "1e-999999999",
    "factorial": "10^{10}!",
    "factorials": "9" + "!" * 500,
    "binomial": r"\binom{10^{9}}{10^{8}}",
    "tower": "^".join("9" * 300),
    "braced tower": "{9^" * 300 + "9" + "}" * 300,
    "tower under a root": r"\sqrt{9^{9^{9^{9}}}}",
    "power under a root": r"\sqrt{9^{99999999}}",
    "power of a sum": r"(2+\sqrt{3})^{99999999}",
    "exponent too large": "x^{9^{9^{9}}}",
    "nested fractions": r"\frac{1}{" * 600 + "2" + "}" * 600,
    "roots": r"\sqrt{" * 250 + "2" + "}" * 250,
    "braces": "{" * N + "5" + "}" * N,
    "parentheses": "(" * N + "5" + ")" * N,
    "some parentheses": "(" * 900 + "5" + ")" * 900,
    "open braces": "{" * N,
    "closing braces": "}" * N,
    "boxes": r"\boxed{" * N,
    "closed boxes": r"\boxed{" * N + "5" + "}" * N,
    "box after box": r"\boxed{5}" * N,
    "box words": "boxed" * N,
    "commas": "1," * N,
    "some commas": "1," * 900,
    "matrix": r"\begin{pmatrix}" + "&".join("1" * 900) + r"\end{pmatrix}",
    "giant matrix": r"\begin{pmatrix}" + r"1&2\\" * N + r"\end{pmatrix}",
    "matrices": r"\begin{pmatrix}" * 60 + "1" + r"\end{pmatrix}" * 60,
    "equals signs": "=" * N,
    "some equals signs": "x=" * 900 + "5",
    "text": r"\text{" + "word " * N + "}",
    "some text": r"\text{" + "a" * 1900 + "}",
    "units": "5" + " cm" * 600,
    "labels": "answer " * 280 + ": 5",
    "label after label": "Answer: " * 240 + "5",
    "spaces": " " * 10 * N + "5",
    "some spaces": "5" + " " * 1900 + "x",
    "colours": r"\color{red}" * 180,
    "open colour": r"\color{" + "a" * 1900,
    "ticks": "5" + r"\checkmark " * 150 + "x",
    "therefore": r"\therefore" * 190,
    "nul": "\x00" * N,
    "five and a nul": "5\x00",
    "bidirectional": "\u202e5\u202c\u2066" * 400,
    "surrogates": "\ud800" * N,
    "accents": "5" + "\u0301" * 1900,
    "raised": "2" + "⁹" * 1900,
    "raised tower": "2⁹⁹⁹⁹⁹⁹⁹⁹⁹",
    "backslashes": "\\" * N,
    "dollars": "$" * 1999,
    "thinking": "<think>" * N,
    "sets of sets": r"\{" + ",".join(r"\{1,2,3,4,5,6,7\}" for _ in range(60)) + r"\}",
    "infinite macro": r"\def\x{\x\x}\x",
    "file": r"\input{/etc/passwd}",
}


@pytest.mark.parametrize("kind", DANGEROUS)
def test_a_dangerous_text_is_wrong_without_delay_and_never_an_error(
    kind: str, cpu_within: Callable[[float], AbstractContextManager[None]]
) -> None:
    text = DANGEROUS[kind]
    with cpu_within(4):
        for gold in ("42", r"\frac{1}{2}", "x+y=5", r"\{1,3\}"):
            for response in (rf"\boxed{{{text}}}", text):
                verdict = verify(make_problem("?", gold, dataset="test"), response)
                assert verdict.reward == 0
                assert verdict.reason in ("wrong_answer", "no_answer", "too_complex")


@pytest.mark.parametrize("kind", DANGEROUS)
def test_a_dangerous_gold_answer_delays_nobody_either(
    kind: str, cpu_within: Callable[[float], AbstractContextManager[None]]
) -> None:
    gold = DANGEROUS[kind]
    with cpu_within(4):
        for answer in ("42", gold, gold + "1", gold.replace("1", "2")):
            with contextlib.suppress(TooComplexError, UndecidedError):
                same(gold, answer, undecided)
