"""Kinds of wrong verdicts that reviews found, each with its neighbours that must not change."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from whale_envs.math_python import check, same_answer
from whale_envs.text import strip_thinking


def pairs(text: str) -> list[tuple[str, str]]:
    """Lines of "gold <- answer"."""
    return [
        (g.strip(), a.strip()) for g, _, a in (line.partition("<-") for line in text.strip().splitlines())
    ]


EQUAL = r"""
    12500 <- x=12,500
    12500 <- x = 12{,}500
    12500 <- n=12,500\text{ m}
    1000 <- \text{Total}=1,000
    x=1,000 <- 1000
    x>1000 <- x>1,000
    2000\sqrt2 <- 2,000\sqrt{2}
    2,000\sqrt{2} <- 2000\sqrt2
    1000\pi <- 1,000\pi
    1{,}000,2{,}000 <- 1000,2000
    1000,2000 <- x=1,000, x=2,000
    5 <- 5 square units
    5 <- 5\text{cm}^2
    5 <- 5\text{ meters per second}
    5\text{ km/h} <- 5
    5\text{ foozles} <- 5
    16 <- 16_{10}
    2 <- 10_2
    16 <- 16=n
    16 <- x=y=16
    16 <- x=8+8=16
    16 <- x=\sqrt{256}=16
    16 <- 8+8=16
    10 <- \text{Area of the circle}=10
    10 <- S_{10}=10
    1+2i <- z=1+2i
    2x+1 <- y=2x+1
    Rr <- rR
    R^2-r^2 <- (R-r)(R+r)
    \frac12ab <- \frac{ab}{2}
    \frac12bc\sin A <- \frac{bc\sin A}{2}
    6 <- \int_0^1 12x dx
    6 <- \sum_{k=1}^{3}k
    -3 <- –3
    25 <- 5²
    5 <- 5..
    \frac23 <- 0.6666666667
    \sqrt2 <- 1.414213562373
    -\sqrt2 <- -1.41421356237
    0.3x <- 0.1x+0.2x
    x^{0.5} <- \sqrt{x}
    x+0.5y=1 <- 2x+y=2
    2^{10000}\sqrt2 <- \sqrt{2^{20001}}
    x^{2000}-1 <- (x^{1000}-1)(x^{1000}+1)
"""
UNEQUAL = r"""
    0,3 <- 03
    1,23 <- 123
    1,23 <- x=123
    1,2,3 <- x=123
    16 <- 16\text{ (wrong)}
    16 <- 16\text{ is wrong}
    16 <- 16\text{ maybe}
    16 <- 16\text{ (approx)}
    5\text{ foozles} <- 5\text{ wrong}
    5 <- 5\mathrm{i}
    5 <- 5\mathrm{e}
    5 <- 5 per cent
    5 <- 5‰
    2 <- 2\text{ thirds}
    10 <- 10_{2}
    12 <- 12ab
    \frac12 <- \frac12ab
    3 <- 3th
    10 <- 2x=10
    10 <- \frac{x}{2}=10
    10 <- \sqrt{x}=10
    10 <- x^3=10
    10 <- -x=10
    10 <- 1-x=10
    10 <- \log x=10
    10 <- x-y=10
    10 <- x+x=10
    10 <- \text{wrong}=10
    10 <- \text{Not the answer}=10
    10 <- \not=10
    16 <- x=17=16
    x=16 <- x=17=16
    x <- X
    X <- x
    x^2=2 <- X^2=2
    R^2-r^2 <- (R-r)(r+r)
    10 <- 10...
    10 <- \ldots 10
    \frac12 <- \frac12'
    \sqrt2 <- \sqrt2+10^{-50}
    \sqrt2+10^{-50} <- \sqrt2
    \pi <- \pi+10^{-100}
    \pi <- \pi+10^{-800}
    \pi <- \pi+10^{-10000}
    x^2 <- x^2+10^{-50}
    x+1 <- x+1.0000000000000000001
    x+y=1 <- x+1.00000000000000001y=1
    \sin(10^{-30}) <- 10^{-30}
    \cos(10^{-30}) <- 1
    1/3 <- 0.3333333334
    1/3 <- 0.33333333333333333334
    \sqrt2 <- 1.414213562374
    -\sqrt2 <- 1.41421356237
"""
_WORDS = "trillion millions thousands hundreds dozens pairs halves k M K less not x"


@pytest.mark.parametrize(("gold", "answer"), pairs(EQUAL))
def test_equal(gold: str, answer: str) -> None:
    assert same_answer(gold, answer)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        *pairs(UNEQUAL),
        *(("5", rf"5\text{{ {w}}}") for w in (*_WORDS.split(), "at least", "no way", "wrong answer")),
    ],
)
def test_unequal(gold: str, answer: str) -> None:
    assert not same_answer(gold, answer)


CHANNELS = r"<|channel|>analysis<|message|>or \boxed{4}<|end|><|start|>assistant<|channel|>"


@pytest.mark.parametrize(
    "response",
    [
        r"<|think|>or \boxed{4}<|/think|>So \boxed{5}",
        r"\boxed{5}<|think|>or \boxed{4}",
        r"<seed:think>or \boxed{4}</seed:think>So \boxed{5}",
        r"or \boxed{4}</seed:think>So \boxed{5}",
        r"<reason>or \boxed{4}</reason>So \boxed{5}",
        r"\boxed{5}<think type='x'>or \boxed{4}</think>",
        r'\boxed{5}<think type="x" id = "y">or \boxed{4}',
        CHANNELS + r"final<|message|>So \boxed{5}<|return|>",
        CHANNELS + r"final <|constrain|>json<|message|>So \boxed{5}",
        CHANNELS
        + r"final<|message|>So \boxed{5}<|end|><|start|>assistant<|channel|>analysis<|message|>\boxed{4}",
        r"\boxed{5}<|channel|>commentary<|message|>or \boxed{4}<|call|>",
        r"<|channel|>analysis<|message|>\boxed{4}<|end|>So \boxed{5}",
        r"\boxed{5}<|end|>",
        r"if x<think then \boxed{5}",
    ],
)
def test_nothing_in_any_mark_of_thinking_is_an_answer(response: str) -> None:
    assert check("5", response)


@pytest.mark.parametrize(
    "piece",
    [
        "<think a=",
        "<|channel|>",
        "<|channel|>analysis",
        "<|",
        "<  | /",
        "<|end|>",
        "<|channel|>final",
        "<aaaa:",
    ],
)
def test_marks_of_thinking_take_linear_time(
    piece: str, cpu_within: Callable[[float], AbstractContextManager[None]]
) -> None:
    with cpu_within(3):
        strip_thinking(piece * (1_000_000 // len(piece)))
        strip_thinking(piece + "a " * 500_000)
