"""The hard band, counting: coins, paths, digits, subsets, lattice points, draws from an urn.

    generate("lattice_paths", 3, seed=0)

Not covered: the hard families of number theory (`families_number.py`).
"""

from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from math import comb, gcd
from random import Random

from whale_envs.math_python.families import Family, Params


def _draw_coins(rng: Random) -> Params:
    return (rng.randint(30, 250), *sorted(rng.sample(range(2, 30), rng.randint(3, 4))))


def _listed(numbers: Params) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def _coins_by_table(params: Params) -> int:
    total, *coins = params
    ways = [1] + [0] * total
    for coin in coins:
        for amount in range(coin, total + 1):
            ways[amount] += ways[amount - coin]
    return ways[total]


def _coins_by_trial(params: Params) -> int:
    total, *coins = params
    if len(coins) == 1:
        return int(total % coins[0] == 0)
    largest = coins[-1]
    return sum(_coins_by_trial((total - largest * n, *coins[:-1])) for n in range(total // largest + 1))


def _draw_paths(rng: Random) -> Params:
    while True:
        m, n = rng.randint(4, 16), rng.randint(4, 16)
        a, b, c, d = rng.randint(0, m), rng.randint(0, n), rng.randint(0, m), rng.randint(0, n)
        if len({(0, 0), (a, b), (c, d), (m, n)}) == 4:
            return m, n, *min((a, b), (c, d)), *max((a, b), (c, d))


def _paths_by_binomials(params: Params) -> int:
    m, n, a, b, c, d = params

    def between(x: int, y: int, u: int, v: int) -> int:
        return comb(u - x + v - y, u - x) if u >= x and v >= y else 0

    through_first = between(0, 0, a, b) * between(a, b, m, n)
    through_second = between(0, 0, c, d) * between(c, d, m, n)
    through_both = between(0, 0, a, b) * between(a, b, c, d) * between(c, d, m, n)
    return (between(0, 0, m, n) - through_first - through_second + through_both) % 1000


def _paths_by_table(params: Params) -> int:
    m, n, a, b, c, d = params
    row = [0] * (n + 1)
    for x in range(m + 1):
        for y in range(n + 1):
            row[y] += (row[y - 1] if y else 0) + (x == y == 0)
            if (x, y) in ((a, b), (c, d)):
                row[y] = 0
    return row[n] % 1000


def _draw_digit_sum(rng: Random) -> Params:
    return rng.randint(2_000, 30_000), rng.randint(3, 40), rng.randint(6, 27)


def _digit_sums_by_table(params: Params) -> int:
    """Digit by digit from the left: (remainder, digit sum) of the prefixes below the limit's."""
    limit, divisor, wanted = params
    below: dict[tuple[int, int], int] = {}
    edge = (0, 0)
    for digit in map(int, str(limit)):
        grown: dict[tuple[int, int], int] = {}
        for (rest, total), count in below.items():
            for d in range(10):
                key = ((rest * 10 + d) % divisor, total + d)
                grown[key] = grown.get(key, 0) + count
        for d in range(digit):
            key = ((edge[0] * 10 + d) % divisor, edge[1] + d)
            grown[key] = grown.get(key, 0) + 1
        edge = ((edge[0] * 10 + digit) % divisor, edge[1] + digit)
        below = grown
    return below.get((0, wanted), 0)


def _digit_sums_by_trial(params: Params) -> int:
    limit, divisor, wanted = params
    return sum(sum(map(int, str(n))) == wanted for n in range(divisor, limit, divisor))


def _draw_subset(rng: Random) -> Params:
    return (rng.randint(3, 17), *sorted(rng.sample(range(2, 100), rng.randint(8, 12))))


def _subsets_by_table(params: Params) -> int:
    modulus, *numbers = params
    counts = [1] + [0] * (modulus - 1)
    for number in numbers:
        counts = [counts[r] + counts[(r - number) % modulus] for r in range(modulus)]
    return counts[0]


def _subsets_by_trial(params: Params) -> int:
    modulus, *numbers = params
    sizes = range(len(numbers) + 1)
    return sum(sum(chosen) % modulus == 0 for size in sizes for chosen in combinations(numbers, size))


def _draw_triangle(rng: Random) -> Params:
    while True:
        x1, y1, x2, y2 = (rng.randint(1, 45) for _ in range(4))
        if abs(x1 * y2 - x2 * y1) > 40:
            return x1, y1, x2, y2


def _inside_by_pick(params: Params) -> int:
    x1, y1, x2, y2 = params
    edge = gcd(x1, y1) + gcd(x2, y2) + gcd(abs(x1 - x2), abs(y1 - y2))
    return (abs(x1 * y2 - x2 * y1) - edge + 2) // 2


def _inside_by_trial(params: Params) -> int:
    x1, y1, x2, y2 = params
    turn = x1 * y2 - x2 * y1
    sign = 1 if turn > 0 else -1
    inside = 0
    for x in range(max(x1, x2) + 1):
        for y in range(max(y1, y2) + 1):
            first = sign * (x1 * y - y1 * x)
            second = sign * ((x2 - x1) * (y - y1) - (y2 - y1) * (x - x1))
            third = sign * (-x2 * (y - y2) + y2 * (x - x2))
            inside += min(first, second, third) > 0
    return inside


def _urn_by_formula(params: Params) -> int:
    red, blue = params
    expected = Fraction(red + blue + 1, red + 1)
    return expected.numerator + expected.denominator


def _urn_by_steps(params: Params) -> int:
    red, blue = params
    expected = Fraction(0)
    for left in range(blue + 1):  # blue balls still in the urn
        expected = 1 + Fraction(left, left + red) * expected
    return expected.numerator + expected.denominator


def _draw_partition(rng: Random) -> Params:
    parts, most = rng.randint(3, 9), rng.randint(5, 24)
    return rng.randint(parts + 4, max(parts + 4, parts * most - 3)), parts, most


def _partitions_by_table(params: Params) -> int:
    """Coefficients of the product of 1/(1 - q x^k) for k up to the largest part."""
    total, parts, most = params
    ways = [[0] * (parts + 1) for _ in range(total + 1)]
    ways[0][0] = 1
    for part in range(1, most + 1):
        for amount in range(part, total + 1):
            for used in range(1, parts + 1):
                ways[amount][used] += ways[amount - part][used - 1]
    return ways[total][parts]


@lru_cache(maxsize=100_000)
def _partitions(total: int, parts: int, most: int) -> int:
    if parts == 0:
        return int(total == 0)
    if total < parts or total > parts * most:
        return 0
    return sum(_partitions(total - part, parts - 1, part) for part in range(1, min(most, total) + 1))


FAMILIES = (
    Family(
        name="coin_change",
        band="hard",
        draw=_draw_coins,
        texts=(
            "In how many ways can {0} cents be paid with coins worth {1} cents? There are enough coins of "
            "each kind, not every kind must be used, and the order of the coins does not matter.",
            "Stamps come in values of {1} cents, and stamps of the same value are alike. How many different "
            "collections of stamps, repetition allowed, are worth exactly {0} cents?",
        ),
        formula=_coins_by_table,
        brute=_coins_by_trial,
        show=lambda params: (str(params[0]), _listed(params[1:])),
        least=2,
    ),
    Family(
        name="lattice_paths",
        band="hard",
        draw=_draw_paths,
        texts=(
            "A path goes from (0, 0) to ({0}, {1}) in unit steps to the right or up and visits neither "
            "({2}, {3}) nor ({4}, {5}). Let N be the number of such paths. Find the remainder when N is "
            "divided by 1000.",
            "Let N be the number of ways to walk from (0, 0) to ({0}, {1}) when each step adds 1 to exactly "
            "one coordinate and the points ({2}, {3}) and ({4}, {5}) must be avoided. Find N modulo 1000.",
        ),
        formula=_paths_by_binomials,
        brute=_paths_by_table,
    ),
    Family(
        name="digit_sum_multiples",
        band="hard",
        draw=_draw_digit_sum,
        texts=(
            "How many positive multiples of {1} less than {0} have digits that add up to {2}?",
            "Find the number of positive integers n < {0} such that n is divisible by {1} and the sum of "
            "the decimal digits of n is {2}.",
        ),
        formula=_digit_sums_by_table,
        brute=_digit_sums_by_trial,
        least=1,
    ),
    Family(
        name="subset_sums",
        band="hard",
        draw=_draw_subset,
        texts=(
            "How many subsets of {{{1}}}, the empty set included, have a sum divisible by {0}? "
            "(The sum of the empty set is 0.)",
            "Let S = {{{1}}}. Find the number of subsets of S whose elements add up to a multiple of {0}, "
            "counting the empty set with sum 0.",
        ),
        formula=_subsets_by_table,
        brute=_subsets_by_trial,
        show=lambda params: (str(params[0]), ", ".join(map(str, params[1:]))),
    ),
    Family(
        name="lattice_triangle",
        band="hard",
        draw=_draw_triangle,
        texts=(
            "How many points with integer coordinates lie strictly inside the triangle with vertices "
            "(0, 0), ({0}, {1}) and ({2}, {3})?",
            "A triangle has vertices (0, 0), ({0}, {1}) and ({2}, {3}). Find the number of lattice points "
            "in its interior, those on its sides not counted.",
        ),
        formula=_inside_by_pick,
        brute=_inside_by_trial,
        canonical=lambda params: min(params, params[2:] + params[:2]),
    ),
    Family(
        name="urn_expectation",
        band="hard",
        draw=lambda rng: (rng.randint(2, 90), rng.randint(5, 300)),
        texts=(
            "An urn holds {0} red and {1} blue balls. Balls are drawn at random without replacement until "
            "the first red ball has been drawn. The expected number of balls drawn, the red one included, "
            "is m/n in lowest terms, where m and n are positive integers. Find m + n.",
            "From a box with {0} red and {1} blue balls, balls are taken out one at a time at random and not "
            "put back, up to and including the first red one. The expected number of balls taken out equals "
            "m/n with relatively prime positive integers m and n. Find m + n.",
        ),
        formula=_urn_by_formula,
        brute=_urn_by_steps,
    ),
    Family(
        name="bounded_partitions",
        band="hard",
        draw=_draw_partition,
        texts=(
            "In how many ways can {0} be written as a sum of exactly {1} positive integers, none larger than "
            "{2}, if the order of the summands does not matter?",
            "Find the number of multisets of {1} positive integers, each at most {2}, whose sum is {0}.",
        ),
        formula=_partitions_by_table,
        brute=lambda params: _partitions(*params),
    ),
)
