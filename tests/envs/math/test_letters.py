"""Letters in answers: a product is all of its letters however it is written, and i is one number."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_envs.math_python import check, same_answer
from whale_envs.math_python.spelling import _CAPITALS, spell

LETTERS = [*"abcdghklmnprstuvwxyzABHMR", r"\pi", r"\theta", r"\omega", r"\Omega"]
JOINTS = [" ", r"\,", r"\cdot ", r" \cdot "]


@st.composite
def products(draw: st.DrawFn) -> tuple[str, str]:
    """(a product, the same in another order and another way of writing)."""
    factors = draw(st.lists(st.sampled_from(LETTERS), min_size=1, max_size=4, unique=True))
    powers = [draw(st.sampled_from(["", "", "^2", "^{3}"])) for _ in factors]
    terms = [f + p for f, p in zip(factors, powers, strict=True)]
    number = draw(st.sampled_from(["", "2", "12", r"\frac12"]))
    other = draw(st.permutations(terms))

    def written(parts: list[str]) -> str:
        parts = [number, *parts] if number else parts
        return parts[0] + "".join(draw(st.sampled_from(JOINTS)) + part for part in parts[1:])

    return number + " ".join(terms), written(list(other))


@settings(max_examples=40)
@given(product=products(), extra=st.sampled_from(LETTERS), joint=st.sampled_from(JOINTS))
def test_a_product_is_itself_in_any_order_and_way_of_writing_and_no_other_product(
    product: tuple[str, str], extra: str, joint: str
) -> None:
    gold, answer = product
    assert same_answer(gold, answer)
    assert not same_answer(gold, answer + joint + extra)
    assert not same_answer(gold + joint + extra, answer)


@settings(max_examples=25)
@given(
    real=st.integers(-20, 20).filter(bool),
    imaginary=st.integers(2, 20),
    sign=st.sampled_from("+-"),
    first=st.sampled_from(["i", " i", r"\,i", r"\cdot i", r" \cdot i", r"\mathrm{i}", r"\, \mathrm{i}"]),
    second=st.sampled_from(["i", " i", r"\,i", r"\cdot i", r" \cdot i", r"\mathrm{i}", r"\, \mathrm{i}"]),
)
def test_a_complex_number_is_itself_however_its_i_is_written(
    real: int, imaginary: int, sign: str, first: str, second: str
) -> None:
    gold = f"{real}{sign}{imaginary}{first}"
    assert same_answer(gold, f"{real} {sign} {imaginary}{second}")
    assert same_answer(gold, f"{sign}{imaginary}{second} + {real}".removeprefix("+"))
    assert not same_answer(gold, f"{real}{'-' if sign == '+' else '+'}{imaginary}{second}")
    assert not same_answer(gold, f"{real}{sign}{imaginary + 1}{second}")
    assert not same_answer(gold, str(real))
    assert not same_answer(gold, f"{real}{sign}{imaginary}")


@pytest.mark.parametrize("name", sorted(_CAPITALS))
def test_greek_capitals_are_symbols_of_their_own(name: str) -> None:
    capital, small = name, name.lower()
    assert not same_answer(f"2{capital}", f"2{small}")
    assert not same_answer(f"2{small}", f"2{capital}")
    assert not same_answer(f"{capital}+{small}", f"2{small}")
    assert same_answer(f"2{capital}+{small}", f"{small} + 2{capital}")


@pytest.mark.parametrize("single", [r"\sqrt2", "x", r"\frac{\pi}{2}", "2+3i"])
@pytest.mark.parametrize("group", [r"[{0},{0}]", "({0},{0})", r"\{{{0}\}}", r"\{{{0},{0}\}}", "[{0},{0})"])
def test_an_expression_is_no_group_of_itself(single: str, group: str) -> None:
    assert not same_answer(single, group.format(single))
    assert not same_answer(group.format(single), single)
    assert same_answer(group.format(single), group.format(single))


@pytest.mark.parametrize("end", ["\\ ", "\\\\", "\\\\ ", " \\\\\n", "\\ \\ ", ".\\\\", "\\, \\ "])
@pytest.mark.parametrize("answer", ["12", r"\frac{24}{2}", "12.0", r"\mathbf{12}", r"12\text{ cm}"])
def test_a_space_or_line_break_at_the_end_is_none_of_the_answer(answer: str, end: str) -> None:
    assert check("12", rf"So \boxed{{{answer}{end}}}")
    assert not check("12", rf"So \boxed{{{answer}{end}1}}")


FONTS = ["mathbf", "mathrm", "mathsf", "mathit", "textbf", "textit", "boldsymbol", "bm", "underline"]


@pytest.mark.parametrize("font", FONTS)
def test_a_font_around_a_number_changes_nothing_with_or_without_a_unit(font: str) -> None:
    for unit in ("", r"\,\text{cm}", r"\text{ cm}", " cm", r"^\circ", r"\ \mathrm{m}"):
        assert check("12", rf"\boxed{{\{font}{{12}}{unit}}}")
        assert check("5", rf"\boxed{{\{font} 5{unit}}}")
        assert check("5", rf"\boxed{{x=\{font}{{5}}{unit}}}")
        assert not check("12", rf"\boxed{{\{font}{{13}}{unit}}}")
    assert check(r"\frac12", rf"\boxed{{\{font}{{\frac{{1}}{{2}}}}\text{{ cm}}}}")
    assert check(r"\frac12", rf"\boxed{{\frac{{\{font}{{1}}}}{{2}}}}")
    assert not check("57", rf"\boxed{{5\{font}{{7 or 8}}}}")
    assert not check("35", rf"\boxed{{5\{font}{{7}}}}")


def test_an_index_is_no_base() -> None:
    assert not same_answer("x+a_1", "x+a")
    assert not same_answer("a_1", "a")
    assert same_answer("A_1+a_1", "a_1+A_1")
    assert same_answer("1010_2", "(1010)_{2}")


@pytest.mark.parametrize("name", ["sin", "ln", "theta"])
def test_the_name_of_a_function_is_no_product_of_letters(name: str) -> None:
    letters = r"\cdot ".join(name)
    assert same_answer(f"3+\\{name} x", f"3 + {name} x")
    assert not same_answer(f"3+{name} x", rf"3+{letters}\cdot x")
    assert not same_answer(rf"3+{letters}\cdot x", f"3+\\{name} x")


def test_letters_get_names_that_are_free_in_both_texts() -> None:
    for gold, answer in ((r"R+r+\Pi", "abc"), ("Aa", "bB"), ("d+D", "xyz")):
        first, second = spell(gold, answer)
        letters = sorted(c for c in (first + second) if c.isalpha())
        assert len(set(letters)) == len(letters)
