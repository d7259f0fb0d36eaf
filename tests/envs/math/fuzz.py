"""Strings glued from pieces of LaTeX, prose and rubbish, the same for the same seed."""

from collections.abc import Iterator
from random import Random

PIECES = [
    *"0123456789", *"abcxyznkCFPei", *"+-*/^_=<>!|&%$#~'\"`,.;:?@ \n\t", *"(){}[]", "\\",
    "\\frac", "\\dfrac", "\\tfrac", "\\sqrt", "\\sqrt[3]", "\\binom", "\\cdot", "\\times", "\\div", "\\pm",
    "\\left", "\\right", "\\{", "\\}", "\\langle", "\\rangle", "\\le", "\\ge", "\\ne", "\\in", "\\cup",
    "\\infty", "\\pi", "\\theta", "\\sin", "\\cos", "\\log", "\\ln", "\\sum", "\\int", "\\lim", "\\prod",
    "\\text{", "\\mathrm{", "\\mathbf{", "\\overline{", "\\boxed{", "\\boxed", "\\fbox{", "\\boxed {",
    "\\begin{pmatrix}", "\\end{pmatrix}", "\\begin{cases}", "\\end{cases}", "\\\\", "\\,", "\\!", "{,}",
    "\\%",
    "^\\circ", "\\circ", "\\emptyset", "\\dots", "\\to", "\\mod", "\\pmod", "\\lfloor", "\\rfloor",
    "\\frac{1}{2}", "3\\frac34", "12,500", "0.5", ".5", "10^{-40}", "7^{7^{7^{7}}}", "2^{2^{40}}", "x=5",
    "[3,7)", "(1,2)", "\\{1,3\\}", "x+y=5", "1e9", "0x1F", "1/0", "0^0", "5!", "99999!", "e^{i\\pi}",
    "<think>", "</think>", "<thinking>", "</THINKING>", "and", "or", "cm", "dollars", "None", "nan", "inf",
    "\x00", "\x1f", "\ud800", "\u200b", "é", "−", "×", "½", "²", "π", "√", "０", "１", "٣", "👍", "\u202e",
    "²", "¹⁰", "⁻", "\\color{red}", "\\textcolor{blue}{", "Answer: ", "\\text{Answer: }", "\\therefore",
    "\\phantom{0}",
    "√(", "⅙", "\\checkmark", "'", "\\ldots", "...", "\\$", "\\degree", "\\bf", "x=5,y=3",
    "__import__('os')", "lambda: 0", "print(1)", "'''", "%s", "{0}", "\\input{/etc/passwd}",
    "\\def\\x{\\x\\x}\\x",
]  # fmt: skip


def strings(count: int, seed: str) -> Iterator[str]:
    """Bare strings, about half of them with balanced braces and half short enough to be answers."""
    rng = Random(seed)
    for _ in range(count):
        text = "".join(rng.choices(PIECES, k=rng.choice((1, 2, 3, 4, 6, 9, 14, 30))))
        if rng.random() < 0.5:
            text = balanced(text)
        if rng.random() < 0.02:
            text *= rng.choice((50, 1000))
        yield text


def balanced(text: str) -> str:
    """The text with every brace matched."""
    depth, kept, skip = 0, [], False
    for character in text:
        if skip:
            skip = False
        elif character == "\\":
            skip = True
        elif character == "{":
            depth += 1
        elif character == "}":
            if not depth:
                continue
            depth -= 1
        kept.append(character)
    return "".join(kept) + (" " if skip else "") + "}" * depth


def responses(count: int, seed: str) -> Iterator[str]:
    """Responses around such strings: most have a box."""
    rng = Random(f"{seed}/responses")
    for text in strings(count, seed):
        shape = rng.random()
        if shape < 0.6:
            yield f"So \\boxed{{{balanced(text)}}}."
        elif shape < 0.8:
            yield f"<think>{text}</think>\\boxed{{{text}}}"
        else:
            yield text
