r"""Words that only announce an answer: `\text{Answer: } 5`, `Total: 5`, `\text{Area}=5`.

    >>> strip_label(r"\text{The final answer is: } 5"), strip_label(r"\text{not } 5")
    ('5', '\\text{not } 5')

A label is made of the words below and nothing else, so that no word that could change the answer is
passed over. Outside `\text` it needs its colon.

Not covered: labels in other languages; names of one letter (`equality.py`).
"""

import re

_WRAPPED = r"\\(?:text|mathrm|textbf|textit|mbox|textrm|mathbf)\s*\{\s*([A-Za-z ]{2,60})[:=]?\s*\}"
_ALONE = re.compile(_WRAPPED + r":?\Z")
_BEFORE = re.compile(rf"(?:{_WRAPPED}\s*:?|([A-Za-z][A-Za-z ]{{1,60}}):)\s*(?=[^\s=<>])")
_NAMING_WORDS = """
    the of a an final total answer result solution sum product difference quotient remainder value values
    number area volume perimeter circumference length width height distance radius diameter side sides
    angle slope speed rate time cost price profit amount count probability ratio mean median mode range
    average maximum minimum max min greatest least largest smallest expected degree degrees surface base
    depth age weight mass money change tax interest discount score ways units people triangle square rectangle
    circle trapezoid polygon parallelogram rhombus hexagon pentagon sphere cube cone cylinder pyramid in
    for and digit digits
"""
_NAMING = frozenset(_NAMING_WORDS.split())
"""Words of which a name such as "Total" or "Area of the circle" is made."""
_ANNOUNCING = frozenset({"answer", "result", "solution", "total", "sum", "area", "value", "number", "final"})
_BETWEEN = frozenset({"is", "are", "equals", "so", "thus", "therefore", "hence", "our", "my", "correct"})


def is_label(text: str) -> bool:
    r"""Whether it is a name in words, such as `\text{Area of the circle}`."""
    words = _ALONE.match(text)
    return words is not None and _NAMING.issuperset(words[1].lower().split())


def strip_label(text: str) -> str:
    """The text without a label before it."""
    before = _BEFORE.match(text)
    if before is None:
        return text
    words = set((before[1] or before[2]).lower().split())
    if words & _ANNOUNCING and words <= _NAMING | _BETWEEN:
        return text[before.end() :]
    return text
