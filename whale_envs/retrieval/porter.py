"""Porter's stemmer as Lucene has it: the algorithm of 1980 with its author's later changes.

    >>> [stem(w) for w in ("relational", "hopping", "skies", "us")]
    ['relat', 'hop', 'ski', 'us']

The later changes: -bli becomes -ble (not -abli), -logi becomes -log, and words of one or two letters stay.

Words are lower case. Only a, e, i, o, u and some y are vowels, whatever the script, so a word of another
script is left alone unless it ends as an English one does.

Not covered: words of letters beyond the basic plane, which Java counts as two each.
"""

_ENDINGS_2 = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble",
    "alli": "al", "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate",
    "ator": "ate", "alism": "al", "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al",
    "iviti": "ive", "biliti": "ble", "logi": "log",
}  # fmt: skip
_ENDINGS_3 = {
    "icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": "",
}  # fmt: skip
_ENDINGS_4 = dict.fromkeys(
    ("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism",
     "ate", "iti", "ous", "ive", "ize"),
    "",
)  # fmt: skip


def stem(word: str) -> str:
    """The stem of a lower-case word."""
    if len(word) <= 2:
        return word
    word = _plural(word)
    word = _past_or_gerund(word)
    if word.endswith("y") and "v" in _shape(word[:-1]):
        word = word[:-1] + "i"
    word = _longest(word, _ENDINGS_2, above=0)
    word = _longest(word, _ENDINGS_3, above=0)
    word = _longest(word, _ENDINGS_4, above=1)
    return _final_letter(word)


def _shape(word: str) -> str:
    """`word` as c(onsonants) and v(owels): "syzygy" is "cvcvcv"; a y after a consonant is a vowel."""
    shape = ""
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and shape.endswith("c"))
        shape += "v" if vowel else "c"
    return shape


def _measure(word: str) -> int:
    """Porter's m: how often a vowel is followed by a consonant."""
    return _shape(word).count("vc")


def _ends_short(word: str) -> bool:
    """Ends consonant, vowel, consonant other than w, x, y, as in "hop": such a stem wants its e back."""
    return _shape(word).endswith("cvc") and word[-1] not in "wxy"


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past_or_gerund(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for ending in ("ed", "ing"):
        rest = word.removesuffix(ending)
        if rest != word and "v" in _shape(rest):
            return _repaired(rest)
    return word


def _repaired(rest: str) -> str:
    """What is left of a verb after -ed or -ing: "conflat" gets its e, "hopp" loses a p."""
    if rest.endswith(("at", "bl", "iz")):
        return rest + "e"
    if rest[-1] == rest[-2:-1] and _shape(rest).endswith("c"):
        return rest if rest[-1] in "lsz" else rest[:-1]
    return rest + "e" if _measure(rest) == 1 and _ends_short(rest) else rest


def _longest(word: str, endings: dict[str, str], *, above: int) -> str:
    """Replaces the longest ending that fits, if the rest's measure is above a number; else nothing."""
    for length in range(min(7, len(word)), 1, -1):
        ending = word[-length:]
        rest = word[:-length]
        if ending in endings and (ending != "ion" or rest.endswith(("s", "t"))):
            return rest + endings[ending] if _measure(rest) > above else word
    return word


def _final_letter(word: str) -> str:
    if word.endswith("e"):
        rest = word[:-1]
        measure = _measure(rest)
        if measure > 1 or (measure == 1 and not _ends_short(rest)):
            word = rest
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word
