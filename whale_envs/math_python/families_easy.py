"""The easy band: sums of one-digit numbers, comparing, counting, continuing a sequence.

    generate("largest_of_three", 3, seed=0)

Measured for SmolLM2-135M with one worked example in the prompt: largest of three 0.14 to 0.20,
sums of two digits 0.07 (feasibility page §4); without an example 0.

Not covered: the other bands (`families_medium.py`, `families_hard.py`, `families_number.py`).
"""

from random import Random

from whale_envs.math_python.families import Family, Params


def _in_order(params: Params) -> Params:
    return tuple(sorted(params))


def _listed(params: Params) -> tuple[str, ...]:
    return (", ".join(map(str, params)), f"{', '.join(map(str, params[:-1]))} and {params[-1]}")


def _draw_digits(rng: Random) -> Params:
    return tuple(rng.randint(1, 9) for _ in range(rng.choices((2, 3, 4, 5), (40, 30, 15, 15))[0]))


def _count_up(params: Params) -> int:
    total = 0
    for number in params:
        for _ in range(number):
            total += 1
    return total


def _draw_difference(rng: Random) -> Params:
    return (rng.randint(20, 99), *(rng.randint(1, 9) for _ in range(rng.choices((1, 2, 3), (50, 30, 20))[0])))


def _count_down(params: Params) -> int:
    left = list(range(params[0]))
    for number in params[1:]:
        del left[len(left) - number :]
    return len(left)


def _draw_three(rng: Random) -> Params:
    return tuple(rng.sample(range(10, 100), 3))


def _draw_two(rng: Random) -> Params:
    low, high = (10, 100) if rng.random() < 0.6 else (100, 1000)
    return tuple(rng.sample(range(low, high), 2))


def _highest_standing(params: Params) -> int:
    """The number that is still there when counting up has passed all others."""
    left, step = set(params), 0
    while len(left) > 1:
        left.discard(step)
        step += 1
    return left.pop()


def _first_reached(params: Params) -> int:
    step = 0
    while step not in params:
        step += 1
    return step


def _draw_list(rng: Random) -> Params:
    return tuple(rng.sample(range(1, 100), rng.randint(2, 9)))


def _draw_sequence(rng: Random) -> Params:
    step = rng.choice((1, 1, 2, 2, 3, 4, 5, 10))
    return rng.randint(1, 60 if rng.random() < 0.5 else 900), step, rng.randint(3, 5)


def _sequence(params: Params) -> tuple[str, ...]:
    start, step, terms = params
    return (", ".join(str(start + step * i) for i in range(terms)),)


def _next_by_steps(params: Params) -> int:
    start, step, terms = params
    number = start
    for _ in range(terms):
        number += step
    return number


FAMILIES = (
    Family(
        name="one_digit_sum",
        band="easy",
        draw=_draw_digits,
        texts=("What is {0}?", "Compute {0}.", "Work out {0}.", "Find the sum {0}."),
        formula=sum,
        brute=_count_up,
        show=lambda params: (" + ".join(map(str, params)),),
        canonical=_in_order,
    ),
    Family(
        name="small_difference",
        band="easy",
        draw=_draw_difference,
        texts=("What is {0}?", "Compute {0}.", "Work out {0}."),
        formula=lambda params: params[0] - sum(params[1:]),
        brute=_count_down,
        show=lambda params: (" - ".join(map(str, params)),),
        canonical=lambda params: (params[0], *sorted(params[1:])),
    ),
    Family(
        name="largest_of_three",
        band="easy",
        draw=_draw_three,
        texts=("Which is largest: {0}?", "Which is largest: {0}?", "What is the largest of {1}?"),
        formula=max,
        brute=_highest_standing,
        show=_listed,
        canonical=_in_order,
    ),
    Family(
        name="smallest_of_three",
        band="easy",
        draw=_draw_three,
        texts=("Which is smallest: {0}?", "Which is smallest: {0}?", "What is the smallest of {1}?"),
        formula=min,
        brute=_first_reached,
        show=_listed,
        canonical=_in_order,
    ),
    Family(
        name="larger_of_two",
        band="easy",
        draw=_draw_two,
        texts=("Which number is larger: {0} or {1}?", "Which of the numbers {0} and {1} is larger?"),
        formula=max,
        brute=_highest_standing,
        canonical=_in_order,
    ),
    Family(
        name="count_items",
        band="easy",
        draw=_draw_list,
        texts=("How many numbers are in this list: {0}?", "How many entries does this list have: {0}?"),
        formula=len,
        brute=lambda params: ", ".join(map(str, params)).count(",") + 1,
        show=_listed,
        canonical=_in_order,
    ),
    Family(
        name="next_in_sequence",
        band="easy",
        draw=_draw_sequence,
        texts=(
            "The numbers {0} go up by the same amount each time. Which number comes next?",
            "Each number in the list {0} is the one before it plus the same amount. What is the next number?",
        ),
        formula=lambda params: params[0] + params[1] * params[2],
        brute=_next_by_steps,
        show=_sequence,
        canonical=lambda params: params[:2],
    ),
    Family(
        name="units_digit",
        band="easy",
        draw=lambda rng: (rng.randint(10, 99_999),),
        texts=("What is the last digit of {0}?", "What is the units digit of the number {0}?"),
        formula=lambda params: params[0] % 10,
        brute=lambda params: int(str(params[0])[-1]),
    ),
)
