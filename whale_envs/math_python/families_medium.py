"""The medium band: school arithmetic and number theory, a few steps each.

    generate("gcd_of_two", 3, seed=0)

Not covered: the other bands (`families_easy.py`, `families_hard.py`, `families_number.py`).
"""

from math import gcd, lcm
from random import Random

from whale_envs.math_python.families import Family, Params


def _ordered_pair(params: Params) -> Params:
    return (min(params[:2]), max(params[:2]), *params[2:])


def _draw_two_step(rng: Random) -> Params:
    return rng.randint(12, 39), rng.randint(4, 24), rng.choice((-1, 1)) * rng.randint(3, 99)


def _two_step_by_adding(params: Params) -> int:
    a, b, c = params
    total = c
    for _ in range(b):
        total += a
    return total


def _draw_with_common_divisor(rng: Random) -> Params:
    common = rng.randint(2, 120)
    first, second = rng.sample(range(2, 60), 2)
    return common * first, common * second


def _largest_common_divisor(params: Params) -> int:
    a, b = params
    return max(d for d in range(1, min(a, b) + 1) if a % d == b % d == 0)


def _divisors_from_factors(params: Params) -> int:
    n, count, prime = params[0], 1, 2
    while prime * prime <= n:
        power = 0
        while n % prime == 0:
            n //= prime
            power += 1
        count *= power + 1
        prime += 1
    return count * 2 if n > 1 else count


def _divisors_by_trial(params: Params) -> int:
    return sum(params[0] % d == 0 for d in range(1, params[0] + 1))


def _draw_series(rng: Random) -> Params:
    return rng.randint(1, 30), rng.randint(2, 12), rng.randint(5, 16)


def _series_by_adding(params: Params) -> int:
    first, difference, terms = params
    return sum(range(first, first + difference * terms, difference))


def _draw_power(rng: Random) -> Params:
    return rng.randint(2, 60), rng.randint(5, 60), rng.randint(7, 300)


def _power_by_multiplying(params: Params) -> int:
    base, exponent, modulus = params
    product = 1
    for _ in range(exponent):
        product *= base
    return product - product // modulus * modulus


def _draw_multiples(rng: Random) -> Params:
    return (*rng.sample(range(3, 25), 2), rng.randint(100, 2500))


def _multiples_by_inclusion(params: Params) -> int:
    a, b, limit = params
    return limit // a + limit // b - limit // lcm(a, b)


def _multiples_by_trial(params: Params) -> int:
    a, b, limit = params
    return sum(n % a == 0 or n % b == 0 for n in range(1, limit + 1))


def _draw_numeral(rng: Random) -> Params:
    base = rng.randint(3, 9)
    return base, rng.randint(1, base - 1), *(rng.randint(0, base - 1) for _ in range(rng.randint(2, 5)))


def _numeral(params: Params) -> tuple[str, ...]:
    return "".join(map(str, params[1:])), str(params[0])


def _numeral_by_places(params: Params) -> int:
    base, *digits = params
    return sum(digit * base**place for place, digit in enumerate(reversed(digits)))


def _draw_remainders(rng: Random) -> Params:
    while True:
        p, q = rng.sample(range(5, 60), 2)
        if gcd(p, q) == 1:
            return p, rng.randrange(p), q, rng.randrange(q)


def _remainders_by_inverse(params: Params) -> int:
    p, r, q, s = params
    return (r + p * ((s - r) * pow(p, -1, q) % q)) % (p * q)


def _remainders_by_trial(params: Params) -> int:
    p, r, q, s = params
    return next(n for n in range(p * q) if n % p == r and n % q == s)


def _draw_linear(rng: Random) -> Params:
    return (*rng.sample(range(2, 20), 2), rng.randint(60, 3000))


def _pairs_by_congruence(params: Params) -> int:
    a, b, total = params
    common = gcd(a, b)
    if total % common:
        return 0
    a, b, total = a // common, b // common, total // common
    first = total * pow(a, -1, b) % b if b > 1 else 0
    return 0 if a * first > total else (total // a - first) // b + 1


def _pairs_by_trial(params: Params) -> int:
    a, b, total = params
    return sum((total - a * x) % b == 0 for x in range(total // a + 1))


FAMILIES = (
    Family(
        name="two_step_arithmetic",
        band="medium",
        draw=_draw_two_step,
        texts=("Compute {0} * {1} {2} {3}.", "What is {0} times {1}, {4} {3}?"),
        formula=lambda params: params[0] * params[1] + params[2],
        brute=_two_step_by_adding,
        show=lambda params: (
            *map(str, params[:2]),
            "+" if params[2] > 0 else "-",
            str(abs(params[2])),
            "plus" if params[2] > 0 else "minus",
        ),
        canonical=_ordered_pair,
    ),
    Family(
        name="gcd_of_two",
        band="medium",
        draw=_draw_with_common_divisor,
        texts=(
            "What is the greatest common divisor of {0} and {1}?",
            "Find the largest integer that divides both {0} and {1}.",
        ),
        formula=lambda params: gcd(*params),
        brute=_largest_common_divisor,
        canonical=_ordered_pair,
    ),
    Family(
        name="divisor_count",
        band="medium",
        draw=lambda rng: (rng.randint(100, 9999),),
        texts=(
            "How many positive divisors does {0} have, 1 and {0} included?",
            "How many positive integers divide {0} without remainder?",
        ),
        formula=_divisors_from_factors,
        brute=_divisors_by_trial,
    ),
    Family(
        name="arithmetic_series",
        band="medium",
        draw=_draw_series,
        texts=(
            "An arithmetic sequence begins with {0} and has common difference {1}. "
            "What is the sum of its first {2} terms?",
            "Find the sum of the first {2} terms of the arithmetic sequence with first term {0} "
            "and common difference {1}.",
        ),
        formula=lambda params: params[2] * (2 * params[0] + (params[2] - 1) * params[1]) // 2,
        brute=_series_by_adding,
    ),
    Family(
        name="power_remainder",
        band="medium",
        draw=_draw_power,
        texts=(
            "Find the remainder when {0}^{1} is divided by {2}.",
            "What remainder does {0} to the power {1} leave on division by {2}?",
        ),
        formula=lambda params: pow(*params),
        brute=_power_by_multiplying,
    ),
    Family(
        name="multiples_count",
        band="medium",
        draw=_draw_multiples,
        texts=(
            "How many integers from 1 to {2} inclusive are divisible by {0} or by {1} (or by both)?",
            "How many of the numbers 1, 2, ..., {2} are multiples of at least one of {0} and {1}?",
        ),
        formula=_multiples_by_inclusion,
        brute=_multiples_by_trial,
        canonical=_ordered_pair,
    ),
    Family(
        name="base_conversion",
        band="medium",
        draw=_draw_numeral,
        texts=(
            "A number is written {0} in base {1}. What is it in base ten?",
            "Convert the base-{1} numeral {0} to base ten.",
        ),
        formula=lambda params: int("".join(map(str, params[1:])), params[0]),
        brute=_numeral_by_places,
        show=_numeral,
    ),
    Family(
        name="remainder_pair",
        band="medium",
        draw=_draw_remainders,
        texts=(
            "Find the smallest non-negative integer that leaves remainder {1} when divided by {0} "
            "and remainder {3} when divided by {2}.",
            "Let n be the least non-negative integer that is congruent to {1} modulo {0} and to {3} "
            "modulo {2}. Find n.",
        ),
        formula=_remainders_by_inverse,
        brute=_remainders_by_trial,
        canonical=lambda params: min(params, params[2:] + params[:2]),
    ),
    Family(
        name="linear_pairs",
        band="medium",
        draw=_draw_linear,
        texts=(
            "How many ordered pairs (x, y) of non-negative integers satisfy {0}x + {1}y = {2}?",
            "In how many ways can {2} be written as {0}x + {1}y with integers x >= 0 and y >= 0?",
        ),
        formula=_pairs_by_congruence,
        brute=_pairs_by_trial,
        canonical=_ordered_pair,
        least=1,
    ),
)
