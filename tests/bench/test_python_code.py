"""Normalisation of model-written code, and the provenance rule for it."""

import ast
import contextlib
import io
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_bench.harness.python_code import normalise, same_code, unwrap

GUARD = "(lambda value: value is None or print(value))"


@pytest.mark.parametrize(
    ("code", "program"),
    [
        ("6*7", "print(6*7)"),
        ("x = 3\nx", f"x = 3\n{GUARD}(x)"),
        ("x = 6*7", "x = 6*7"),
        ("print(6*7)", "print(6*7)"),
        ("for i in range(3):\n    i", "for i in range(3):\n    i"),
        ("def f():\n    3", "def f():\n    3"),
        ("if x: y", "if x: y"),
        ("x = 1; x + 1  # two", "x = 1; print(x + 1)  # two"),
        ("1, 2", "print((1, 2))"),
        ("(\n1 +\n2\n)", "print((\n1 +\n2\n))"),
        ("'é' 'ü'", "print('é' 'ü')"),
        ("é = 'ü'; é + é", "é = 'ü'; print(é + é)"),
        ("None", "None"),
        ("...", "..."),
        ("import math", "import math"),
        ("def f(:", "def f(:"),
        ("", ""),
        ("  a = 1\n  a + 1", "a = 1\nprint(a + 1)"),
        ("x: int", "x: int"),
        ("x = 1 \\\n + 2\nx == 3", "x = 1 \\\n + 2\nprint(x == 3)"),
        ("```python\n6*7\n```", "print(6*7)"),
        ("```\n6*7\n```", "print(6*7)"),
        ("Look:\n```py\n6*7\n```\nSo it is.\n```py\n1\n```", "print(6*7)"),
        ("```bash\nls\n```\n```python\n1 + 1\n```", "print(1 + 1)"),
        ("~~~python\n6*7\n~~~", "print(6*7)"),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''"),
        ("```python\n6*7", "print(6*7)"),
        ("  ```python\n  x = 1\n  ```", "x = 1"),
        ("a = 1\r\na + 1\r\n", "a = 1\nprint(a + 1)"),
    ],
)
def test_normalise(code: str, program: str) -> None:
    assert normalise(code) == program
    assert normalise(program) == program or "```" in program
    assert same_code(code, program)
    assert same_code(f"I think.\n{code}\n", unwrap(code))


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("6*7", "42\n"),
        ("x = [1]\nx.append(2)", ""),
        ("x = [1]\nx.append(2)\nx", "[1, 2]\n"),
        ("'text'", "text\n"),
        ("1, 2", "(1, 2)\n"),
        ("sum(i for i in range(4))", "6\n"),
        ("(n := 5)", "5\n"),
        ("print('once')", "once\n"),
        ("def f():\n    return 1\nf()", "1\n"),
    ],
)
def test_the_last_value_is_shown_as_a_user_expects(code: str, shown: str) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(normalise(code), {"__name__": "__main__"})
    assert out.getvalue() == shown


EXPRESSIONS = [
    "6*7",
    "f(x)",
    "x",
    "x.y",
    "[1, 2]",
    "(1, 2)",
    "1, 2",
    "f'{x}'",
    "lambda: 3",
    "not x",
    "'a' 'b'",
]


@given(
    st.lists(st.sampled_from(["x = 1", "import math", "if x:\n    x", *EXPRESSIONS]), min_size=1, max_size=6)
)
def test_only_the_last_statement_changes(lines: list[str]) -> None:
    code = "\n".join(lines)
    before, after = ast.parse(code).body, ast.parse(normalise(code)).body
    assert [ast.dump(s) for s in before[:-1]] == [ast.dump(s) for s in after[:-1]]
    assert same_code(code, normalise(code))
    assert normalise(normalise(code)) == normalise(code)


@given(st.text())
def test_any_text_is_accepted(text: str) -> None:
    assert same_code(text, normalise(text))
    assert same_code(text, unwrap(text))


@given(st.text("`~ \n\tpy1+x()'\"#:\\;\r", max_size=60))
def test_any_fence_is_accepted(text: str) -> None:
    assert same_code(text, normalise(text))


@pytest.mark.parametrize(
    ("sampled", "code"),
    [
        ("print(6*7)", "print(6*8)"),
        ("print(6*7)", "import os\nprint(6*7)"),
        ("x = 12345", "x = 1234"),
        ("sum = 1\n    y = 2", "sum = 1\ny = 2"),
        ("a = 1\nb = 2\nc = 3", "a = 1\nc = 3"),
        ("Solve it.", "print(42)"),
        ("6*7", "print(6*7); print(8)"),
        ("x", "print(x, y)"),
        ("value = 3", "alue = 3"),
    ],
)
def test_code_that_the_model_did_not_write_is_told_apart(sampled: str, code: str) -> None:
    assert not same_code(sampled, code)


@pytest.mark.parametrize(
    ("sampled", "code"),
    [
        ("Thus <python>6*7</python>.", "print(6*7)"),
        ("- run:\n\n    x = 1\n    if x:\n        print(x)\n\ndone", "x = 1\nif x:\n    print(x)"),
        ("x = 1   \nprint(x)\n", "x = 1\nprint(x)"),
        ("anything", ""),
    ],
)
def test_code_that_the_model_wrote_is_recognised(sampled: str, code: str) -> None:
    assert same_code(sampled, code)


@pytest.mark.parametrize(
    "text",
    [
        "-" * 90_000 + "1", "(" * 9_000, "a." * 40_000 + "a", "not " * 20_000 + "1", "lambda:" * 12_000 + "1",
        "1+" * 45_000 + "1", "x if y else " * 8_000 + "1", "a\n" * 45_000, "`" * 90_000, "```\n" * 20_000,
        " " * 90_000, "```python\n" * 9_000, "x=1;" * 20_000 + "x", "a" * 2_000_000,
    ],
    ids=lambda text: text[:8],
)  # fmt: skip
def test_long_texts_take_little_time(
    text: str, cpu_within: Callable[[float], AbstractContextManager[None]]
) -> None:
    with cpu_within(4):
        assert same_code(text, normalise(text))
