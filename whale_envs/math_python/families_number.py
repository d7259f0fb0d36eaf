"""The hard band, number theory: orders, recurrences, towers, continued fractions, Frobenius numbers.

    generate("multiplicative_order", 3, seed=0)

Not covered: the hard families that count things (`families_hard.py`).
"""

from fractions import Fraction
from functools import reduce
from math import gcd
from random import Random

from whale_envs.math_python.families import Family, Params


def _factors(n: int) -> dict[int, int]:
    found: dict[int, int] = {}
    prime = 2
    while prime * prime <= n:
        while n % prime == 0:
            found[prime] = found.get(prime, 0) + 1
            n //= prime
        prime += 1
    if n > 1:
        found[n] = found.get(n, 0) + 1
    return found


def _gcds_from_factors(params: Params) -> int:
    """Pillai's function is multiplicative: ((k + 1) p - k) p^(k - 1) at p^k."""
    product = 1
    for prime, power in _factors(params[0]).items():
        product *= ((power + 1) * prime - power) * prime ** (power - 1)
    return product % 1000


def _gcds_by_adding(params: Params) -> int:
    return sum(gcd(k, params[0]) for k in range(1, params[0] + 1)) % 1000


def _draw_order(rng: Random) -> Params:
    while True:
        modulus = rng.randint(50, 999)
        base = rng.randint(2, modulus - 1)
        if gcd(base, modulus) == 1:
            return base, modulus


def _order_from_totient(params: Params) -> int:
    base, modulus = params
    order = 1
    for prime, power in _factors(modulus).items():
        order *= (prime - 1) * prime ** (power - 1)
    for prime in _factors(order):
        while order % prime == 0 and pow(base, order // prime, modulus) == 1:
            order //= prime
    return order


def _order_by_multiplying(params: Params) -> int:
    base, modulus = params
    value, exponent = base % modulus, 1
    while value != 1:
        value = value * base % modulus
        exponent += 1
    return exponent


def _draw_recurrence(rng: Random) -> Params:
    return (
        rng.randint(0, 9), rng.randint(1, 9), rng.randint(1, 9), rng.randint(1, 9),
        rng.randint(40, 2000), rng.randint(101, 1000),
    )  # fmt: skip


def _recurrence_by_matrix(params: Params) -> int:
    first, second, p, q, n, modulus = params

    def times(a: Params, b: Params) -> Params:
        return (
            (a[0] * b[0] + a[1] * b[2]) % modulus, (a[0] * b[1] + a[1] * b[3]) % modulus,
            (a[2] * b[0] + a[3] * b[2]) % modulus, (a[2] * b[1] + a[3] * b[3]) % modulus,
        )  # fmt: skip

    result: Params = (1, 0, 0, 1)
    square: Params = (p, q, 1, 0)
    power = n
    while power:
        if power & 1:
            result = times(result, square)
        square = times(square, square)
        power >>= 1
    return (result[2] * second + result[3] * first) % modulus


def _recurrence_by_steps(params: Params) -> int:
    previous, current, p, q, n, modulus = params
    for _ in range(n):
        previous, current = current, p * current + q * previous
    return previous % modulus


def _draw_frobenius(rng: Random) -> Params:
    while True:
        values = tuple(sorted(rng.sample(range(7, 80), 3)))
        if reduce(gcd, values) == 1:
            return values


def _frobenius_by_residues(params: Params) -> int:
    """The least payable amount in each class modulo the smallest value, by relaxation."""
    smallest, *others = params
    least = [0] + [10**9] * (smallest - 1)
    changed = True
    while changed:
        changed = False
        for value in others:
            for residue in range(smallest):
                target, amount = (residue + value) % smallest, least[residue] + value
                if amount < least[target]:
                    least[target], changed = amount, True
    return max(least) - smallest


def _frobenius_by_trial(params: Params) -> int:
    payable, run, amount, last = [True], 0, 0, -1
    while run < params[0]:
        amount += 1
        payable.append(any(amount >= v and payable[amount - v] for v in params))
        run = run + 1 if payable[amount] else 0
        last = last if payable[amount] else amount
    return last


def _draw_tower(rng: Random) -> Params:
    return rng.randint(2, 60), rng.randint(2, 30), rng.randint(2, 4), rng.randint(100, 1000)


def _tower_by_cycle(params: Params) -> int:
    """Follows the powers of the base until they repeat and places the exponent on the cycle."""
    base, middle, top, modulus = params
    seen: dict[int, int] = {}
    powers: list[int] = []
    value = 1 % modulus
    while value not in seen:
        seen[value] = len(powers)
        powers.append(value)
        value = value * base % modulus
    start = seen[value]
    exponent: int = middle**top
    if exponent < len(powers):
        return powers[exponent]
    return powers[start + (exponent - start) % (len(powers) - start)]


def _draw_continued(rng: Random) -> Params:
    return tuple(rng.randint(1, 9) for _ in range(rng.randint(3, 6)))


def _continued_by_convergents(params: Params) -> int:
    p, q, before_p, before_q = params[0], 1, 1, 0
    for term in params[1:]:
        p, before_p = term * p + before_p, p
        q, before_q = term * q + before_q, q
    return p + q


def _continued_from_inside(params: Params) -> int:
    value = Fraction(params[-1])
    for term in reversed(params[:-1]):
        value = term + 1 / value
    return value.numerator + value.denominator


def _continued(params: Params) -> tuple[str, ...]:
    text = str(params[-1])
    for term in reversed(params[:-1]):
        text = f"{term} + 1/({text})"
    return (text.replace(f"({params[-1]})", str(params[-1])),)


FAMILIES = (
    Family(
        name="sum_of_gcds",
        band="hard",
        draw=lambda rng: (rng.randint(60, 20_000),),
        texts=(
            "Let S be the sum of gcd(k, {0}) over all integers k from 1 to {0}. Find the remainder when S is "
            "divided by 1000.",
            "For k = 1, 2, ..., {0}, take the greatest common divisor of k and {0}, and add up these {0} "
            "numbers. What are the last three digits of the sum, read as an integer from 0 to 999?",
        ),
        formula=_gcds_from_factors,
        brute=_gcds_by_adding,
    ),
    Family(
        name="multiplicative_order",
        band="hard",
        draw=_draw_order,
        texts=(
            "Find the least positive integer k such that {0}^k leaves remainder 1 when divided by {1}.",
            "What is the smallest k >= 1 for which {0}^k - 1 is a multiple of {1}?",
        ),
        formula=_order_from_totient,
        brute=_order_by_multiplying,
    ),
    Family(
        name="modular_recurrence",
        band="hard",
        draw=_draw_recurrence,
        texts=(
            "A sequence is given by a_0 = {0}, a_1 = {1} and a_n = {2} a_(n-1) + {3} a_(n-2) for n >= 2. "
            "Find the remainder when a_{4} is divided by {5}.",
            "Let a_0 = {0}, a_1 = {1}, and for every n >= 0 let a_(n+2) = {2} a_(n+1) + {3} a_n. "
            "What remainder does a_{4} leave on division by {5}?",
        ),
        formula=_recurrence_by_matrix,
        brute=_recurrence_by_steps,
    ),
    Family(
        name="frobenius_three",
        band="hard",
        draw=_draw_frobenius,
        texts=(
            "Coins come in three values: {0}, {1} and {2} cents, with as many of each as needed. What is the "
            "largest whole number of cents that cannot be paid exactly?",
            "Find the largest integer that is not of the form {0}x + {1}y + {2}z with non-negative integers "
            "x, y and z.",
        ),
        formula=_frobenius_by_residues,
        brute=_frobenius_by_trial,
    ),
    Family(
        name="power_tower",
        band="hard",
        draw=_draw_tower,
        texts=(
            "Find the remainder when {0}^({1}^{2}) is divided by {3}.",
            "Let E = {1}^{2}. What remainder does {0}^E leave on division by {3}?",
        ),
        formula=_tower_by_cycle,
        brute=lambda params: pow(params[0], params[1] ** params[2], params[3]),
    ),
    Family(
        name="continued_fraction",
        band="hard",
        draw=_draw_continued,
        texts=(
            "Written in lowest terms, {0} equals p/q with positive integers p and q. Find p + q.",
            "The value of {0} is p/q, where p and q are relatively prime positive integers. Find p + q.",
        ),
        formula=_continued_by_convergents,
        brute=_continued_from_inside,
        show=_continued,
    ),
)
