"""What a check finds in a harness's text and behaviour, each finding with file and line."""

import asyncio
import base64
import hashlib
import importlib
import json
import re
import types
import zlib
from pathlib import Path
from typing import Any

import pytest
from bench_fakes import FILES, HEAD
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from whale_bench.cli import app
from whale_bench.harness.answers import holds_answers
from whale_bench.harness.check import check_source
from whale_bench.harness.findings import Finding
from whale_bench.harness.host import shipped_harnesses
from whale_bench.harness.prompt_only import prompt_only
from whale_bench.harness.reach import COMPUTE, reaches
from whale_envs import DOMAINS, load_examples

PARENT = '''"""A parent."""
import re
from typing import ClassVar

class Harness(BaseHarness):
    """Its class."""

    SYSTEM_PROMPT = "Answer."
    MAX_TURNS = 3

    def read(self, reply, view):
        """Its hook."""
        return Act(reply.text)
'''


def check(source: str, *domains: str, **options: Any) -> list[str]:
    found = asyncio.run(check_source(HEAD + source, "mine.py", domains or ("chess_puzzles",), **options))
    assert all(finding.file == "mine.py" for finding in found)
    return [finding.message for finding in found]


# --- prompt-only ----------------------------------------------------------------------------------

ALIKE = {
    "the same": PARENT,
    "another prompt": PARENT.replace('"Answer."', '"""Answer\n    in one line."""'),
    "a second prompt": PARENT.replace("    MAX", '    USER_PROMPT = r"\\boxed {observation}"\n    MAX'),
    "no prompt": PARENT.replace('    SYSTEM_PROMPT = "Answer."\n', ""),
    "annotated": PARENT.replace("SYSTEM_PROMPT =", "SYSTEM_PROMPT: ClassVar[str] ="),
    "annotated str": PARENT.replace("SYSTEM_PROMPT =", "SYSTEM_PROMPT: str ="),
    "docstrings": PARENT.replace("A parent.", "Mine.").replace('    """Its class."""\n', ""),
    "comments and blanks": PARENT.replace("import re", "# mine\n\nimport re  # why"),
    "the order": PARENT.replace('    SYSTEM_PROMPT = "Answer."\n', "") + '\n    SYSTEM_PROMPT = "x"\n',
}  # fmt: skip


@pytest.mark.parametrize("what", ALIKE)
def test_a_prompt_only_harness_differs_in_prompts_docstrings_and_layout_only(what: str) -> None:
    assert prompt_only(ALIKE[what], PARENT) is None
    assert prompt_only(PARENT, ALIKE[what]) is None


OTHERS = {
    "a constant": (PARENT.replace("3", "4"), 9, "not in the parent: 'MAX_TURNS = 4'"),
    "a hook": (PARENT.replace("reply.text", "reply.text.strip()"), 13, "not in the parent"),
    "a line more": (PARENT + "    X = 1\n", 14, "not in the parent: 'X = 1'"),
    "a line less": (PARENT.replace("    MAX_TURNS = 3\n", ""), 10, "not in the parent: 'def read("),
    "the end": (PARENT[: PARENT.index("    def")], 9, "lacks, after 'MAX_TURNS = 3', what the parent has on"),
    "an import": ("import os\n" + PARENT, 1, "not in the parent"),
    "f-string": (PARENT.replace('"Answer."', 'f"{1}"'), 8, "not in the parent"),
    "sum": (PARENT.replace('"Answer."', '"a" + "b"'), 8, "not in the parent"),
    "side by side": (PARENT.replace('"Answer."', '"a" "b"'), 8, "SYSTEM_PROMPT must be one plain string"),
    "side by side in lines": (PARENT.replace('"Answer."', '(\n"a"\n"b")'), 8, "must be one plain"),
    "a call": (PARENT.replace('"Answer."', '"a".upper()'), 8, "not in the parent"),
    "a name": (PARENT.replace('"Answer."', "__doc__"), 8, "not in the parent"),
    "bytes": (PARENT.replace('"Answer."', 'b"a"'), 8, "not in the parent"),
    "twice": (PARENT.replace("    MAX", '    SYSTEM_PROMPT = "x"\n    MAX'), 9, "is set a second time"),
    "a chain": (PARENT.replace("SYSTEM_PROMPT =", "SYSTEM_PROMPT = X ="), 8, "not in the parent"),
    "added to": (PARENT.replace("    MAX", '    SYSTEM_PROMPT += "x"\n    MAX'), 9, "not in the parent"),
    "from outside": (PARENT + 'Harness.SYSTEM_PROMPT = "x"\n', 14, "not in the parent"),
    "an annotation that runs": (PARENT.replace("PROMPT =", "PROMPT: f() ="), 8, "not in the parent"),
    "of the module": ('SYSTEM_PROMPT = "x"\n' + PARENT, 1, "not in the parent"),
    "a walrus": (PARENT.replace("= 3", '= (SYSTEM_PROMPT := "x") and 3'), 9, "not in the parent"),
    "no Python": (PARENT + "(", 14, "cannot be read"),
    "too deep": (PARENT + "x = " + "-" * 100_000 + "1\n", 1, "cannot be read"),
    "null": (PARENT + "\0", 1, "cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHERS)
def test_any_other_difference_is_named_with_its_line(what: str) -> None:
    source, line, words = OTHERS[what]
    found = prompt_only(source, PARENT)
    assert found is not None
    assert found.line == line
    assert words in found.message


def test_a_parents_own_way_of_writing_a_prompt_may_stay() -> None:
    joined = PARENT.replace('"Answer."', '("Answer "\n        "briefly.")')
    assert prompt_only(joined, joined) is None
    assert prompt_only(joined.replace("= 3", "= 3  # c"), joined) is None
    assert prompt_only(joined.replace("briefly", "long"), joined) is not None
    for source in shipped_harnesses().values():
        assert prompt_only(source, source) is None
    with pytest.raises(ValueError, match="the parent cannot be read"):
        prompt_only(PARENT, "class")


@settings(max_examples=50)
@given(st.text(st.characters(codec="utf-8"), max_size=60), st.booleans())
def test_every_text_can_be_a_prompt_and_none_can_be_more(text: str, quoted: bool) -> None:
    """A literal of any text passes; the same text as it is passes only if it is a literal."""
    written = repr(text) if quoted else text
    found = prompt_only(PARENT.replace('"Answer."', written), PARENT)
    if quoted:
        assert found is None
    elif found is None:
        import ast

        assert isinstance(ast.literal_eval(written.strip().partition("\n")[0].partition(";")[0]), str)


# --- what it reaches for --------------------------------------------------------------------------

REACHES = {
    "import os": "imports os,",
    "import os.path as p": "imports os.path,",
    "from subprocess import run": "imports subprocess,",
    "from time import monotonic": "imports time: a clock is no input",
    "import numpy": "imports numpy, which is not there",
    "from whale_envs import load_examples": "imports whale_envs, which is not there",
    "from whale_bench.harness.host import load_harness": "imports whale_bench.harness.host, which",
    "from . import utils": "imports ., which is not there",
    "open('x')": "uses open,",
    "x = eval": "uses eval,",
    "f = (lambda: 0).__globals__": "uses __globals__,",
    "import datetime; d = datetime.datetime.now()": "uses now: a clock is no input",
    "import random; r = random.SystemRandom()": "uses SystemRandom,",
    "import random; r = random._urandom(8)": "uses _urandom,",
    "from random import _urandom": "uses _urandom,",
    "import random; r = random.Random()": "uses Random without a seed: entropy",
    "import random; random.seed(None)": "uses seed without a seed: entropy",
    "import statistics; r = statistics.random.SystemRandom()": "uses SystemRandom,",
    "import dataclasses; p = dataclasses.sys.path": "uses sys,",
    "import dataclasses; d = dataclasses; p = d.sys.path": "uses sys,",
    "from contextlib import os": "uses os,",
    "import json; s = json.decoder.scanner": "uses scanner,",
    "import calendar; d = calendar.datetime.date.today()": "uses today: a clock is no input",
    "import threading; t = threading.Timer": "imports threading,",
    "import logging": "imports logging,",
    "from email.utils import formatdate": "imports email.utils,",
    "import timeit": "imports timeit: a clock is no input",
    "x = id(x)": "uses id: an address is no input",
    "x = getattr(y, '_urandom')": "uses _urandom,",
    "x = getattr(y, '_ur' + 'andom')": "uses getattr with a name that is made at run time",
    "import operator; x = operator.attrgetter('_os.urandom')": "uses _os,",
    "x = vars(y)": "uses vars,",
}


@pytest.mark.parametrize("source", REACHES)
def test_what_a_harness_has_no_use_for_is_named(source: str) -> None:
    [(line, why)] = reaches("x = 1\n" + source)
    assert line == 2
    assert why.startswith(REACHES[source])


@pytest.mark.parametrize("module", sorted(COMPUTE - {"__future__"}))
def test_no_module_that_a_harness_may_import_leads_to_one_that_it_may_not(module: str) -> None:
    found = importlib.import_module(module)
    inner = {name: value for name, value in vars(found).items() if isinstance(value, types.ModuleType)}
    for name, value in inner.items():
        clean = reaches(f"import {module}; x = {module}.{name}") == []
        assert clean == (value.__name__ in COMPUTE and not name.startswith("_")), name
        assert clean == (reaches(f"from {module} import {name}") == []), name


def test_what_a_harness_calls_its_own_may_have_any_name() -> None:
    source = (
        "class Harness(H0):\n    def _read(self, text):\n        self._seen = super()._read(text)\n"
        "        return Harness._read(self, text)._replace(a=_WORD, b=getattr(self, '_seen', None))\n"
        "import random\nx = random.Random(5), random.Random(x=1)\n"
    )
    assert reaches(source) == []


OWN = {
    "a parameter": ("def f({0}): return {0}(1)", "def g(): return {0}(1)"),
    "a keyword": ("def f(*, {0}=1): return [{0} for _ in 'a']", "def g(x={0}): pass"),
    "a lambda's": ("f = lambda {0}: {0}", "f = lambda: {0}"),
    "a local": ("def f():\n    for {0} in 'ab': print({0})\n    return lambda: {0}", "def g(): return {0}"),
    "a comprehension's": ("x = [{0} for {0} in 'ab']", "x = [{0} for y in 'ab']"),
    "of an inner function": ("def f():\n    {0} = 1\n    def g(): return {0}\n    return g", "x = {0}"),
    "a method's": ("class A:\n    {0} = 1\n    x = {0}", "class B:\n    def f(self): return {0}"),
    "the module's": ("{0} = 1; x = {0}\ndef f(): return {0}", "class B: del {0}\nx = {0}"),
    "the module's function": ("def {0}(x): return x\nx = {0}(1)", "del {0}\nx = {0}"),
    "a module": ("import re as {0}\nx = {0}.sub", "del {0}\nx = {0}"),
    "a loop's": ("for {0} in 'ab':\n    x = {0}", "del {0}\nx = {0}"),
    "a handler's": ("def f():\n    try: pass\n    except E as {0}: print({0})", "if x: {0} = 1\ny = {0}"),
}  # fmt: skip


@pytest.mark.parametrize("name", ["id", "input", "vars", "open", "eval"])
@pytest.mark.parametrize("how", OWN)
def test_a_built_in_is_refused_and_a_name_of_the_files_own_is_not(how: str, name: str) -> None:
    own, other = (text.format(name) for text in OWN[how])
    assert reaches(own) == []
    [(_, why)] = reaches(f"{own}\n{other}")[:1]
    assert f"uses {name}" in why
    before = f"y = {name}\n{own}"
    assert [where for where, _ in reaches(before)][:1] == [1]


EARLY = {
    "a function": "def f(): return {0}\nx = f()\n{0} = 1\n",
    "unpacked": "def f(): return 1, {0}\nI, E = f()\n{0} = vars = 0\n",
    "a lambda": "y = (lambda: {0})()\n{0} = 1\n",
    "a method": "class A:\n    def f(self): return {0}\nx = A().f()\ndef {0}(x): pass\n",
    "a class of that name": "class {0}:\n    x = (lambda: {0})()\n",
    "a default": "def {0}(x=(lambda: {0})()): pass\n",
    "a decorator": "@(lambda f: f())\ndef {0}(): return {0}\n",
    "in the same statement": "{0} = [\n    (lambda: {0})(),\n]\n",
    "an empty loop": "for {0} in (): pass\nx = {0}\n",
    "a function behind an empty loop": "for {0} in (): pass\ndef f(): return {0}\n",
}
LATE = {
    "a helper below": "def {0}(x): return x\nclass A:\n    def f(self): return {0}(1)\n",
    "recursion": "def {0}(\n    x,\n):\n    return {0}(x - 1) if x else 0\ny = {0}(3)\n",
    "a class's own": "class {0}:\n    pass\ndef f(): return {0}()\n",
    "in a loop": "for {0} in 'ab':\n    f = lambda: {0}\n    x = {0}\n",
    "over lines": "{0} = [\n    1,\n]\ndef f(): return {0}\nx = {0}\n",
}


@pytest.mark.parametrize("name", ["id", "eval"])
def test_a_name_is_the_files_own_only_behind_what_binds_it(name: str) -> None:
    for how, source in EARLY.items():
        assert any(f"uses {name}" in why for _, why in reaches(source.format(name))), how
    for how, source in LATE.items():
        assert reaches(source.format(name)) == [], how


DEEP = {
    "attributes": "x = a" + ".b" * 50_000,
    "a sum": "x = " + "1 + " * 50_000 + "a",
    "signs": "x = " + "-" * 50_000 + "a",
    "calls": "x = a" + "()" * 50_000,
    "branches": "if a: pass\n" + "elif a: pass\n" * 20_000,
    "functions": "".join(f"{' ' * n}def f():\n" for n in range(90)) + " " * 90 + "pass",
    "powers": "x = 10 ** 10 ** 10 ** 10; y = 'a' * 10 ** 12; z = 1 << 10 ** 12",
    "a pattern's bait": f"x = {'a' * 299 + ' '!r} * 9\ny = {('b' * 299 + ' ') * 600!r}",
    "wide letters": "x = 1\ny = ｏｐｅｎ",
    "wide modules": "import ｏｓ",
}


@pytest.mark.parametrize("what", DEEP)
def test_no_text_hurts_whoever_looks_at_it(what: str) -> None:
    found = [why for _, why in reaches(DEEP[what])]
    assert [why.split(",")[0] for why in found] == {
        "wide letters": ["uses open"], "wide modules": ["imports os"],
    }.get(what, [])  # fmt: skip
    assert holds_answers(DEEP[what], scored("chess_puzzles")) == []


@pytest.mark.parametrize("path", [*shipped_harnesses(), "examples"])
def test_our_own_harnesses_reach_for_nothing(path: str) -> None:
    here = Path(__file__).resolve().parents[2] / "examples" / "candidate_moves.py"
    assert reaches(shipped_harnesses().get(path) or here.read_text()) == []
    assert (
        reaches(HEAD + "import re, json, random, statistics\nfrom datetime import date\nimport msgspec") == []
    )


# --- behaviour ------------------------------------------------------------------------------------

CLASS = "class Harness(BaseHarness):\n"
READS = "class Harness(BaseHarness):\n    def read(self, reply, view):\n        "
BEHAVES = {
    "MAX_TURNS": (CLASS + "    MAX_TURNS = 40\n", ":3: max_turns is 40, outside 1 to 18"),
    "ENV_OPTIONS": (
        "class Harness(BaseHarness):\n\n    ENV_OPTIONS = {'format_retry_budget': 11}\n",
        ":4: format_retry_budget is 11, outside 0 to 10",
    ),
    "MAX_TOKENS": ("class Harness(BaseHarness):\n    MAX_TOKENS = 0\n", ":3: MAX_TOKENS is 0, below 1"),
    "changes the view": (READS + "view.turns = ()\n        return Act(reply.text)\n",
                         ":3: read changed the view or the reply"),
    "chooses": (
        "import re\nclass Harness(BaseHarness):\n    def read(self, reply, view):\n"
        "        moves = re.findall('[a-h][1-8][a-h][1-8]', reply.text)\n"
        "        return Act(moves[len(moves) // 2] if moves else reply.text)\n",
        ":4: read acts with '",
    ),
    "plays": (READS + "return Act('e2e4')\n", ":3: read acts with 'e2e4', which does not stand in the reply"),
    "forgets": ("n = []\n" + READS + "n.append(1)\n        return Nudge(str(len(n)))\n",
                ":4: read answered the same call in two ways"),
    "draws": ("import random\n" + READS + "return Nudge(str(id(object()) + random.Random().random()))\n",
              ":4: read answered the same call in two ways"),
    "leaves": ("import os\n" + READS + "os._exit(0)\n", ":4: its process ended during a call"),
    "raises later": (READS + "return [Act(reply.text)][len(view.turns)]\n", ":4: IndexError"),
}  # fmt: skip


@pytest.mark.parametrize("what", BEHAVES)
def test_a_harness_that_breaks_the_contract_is_found_with_its_line(what: str) -> None:
    source, words = BEHAVES[what]
    stated = ("reaches outside", "is no input", "which is another module's own")  # from its text alone
    found = [m for m in check(source) if not any(one in m for one in stated)]
    assert len(found) == 1
    assert f"mine.py{words}" in found[0]


def test_code_for_the_interpreter_that_the_model_did_not_write_is_found() -> None:
    source = "import json\n" + READS + (
        "code = 'print(6 * 7 + 1)'\n        return Act(json.dumps({'tool': 'code_interpreter', 'arguments': "
        "{'code': code}}))\n"
    )  # fmt: skip
    [message] = check(source, "math_python")
    assert message.startswith("mine.py:4: read acts with ")


def test_a_file_in_its_parents_clothes_is_found_beside_what_else_is_wrong() -> None:
    parent = HEAD + "class Harness(BaseHarness):\n    SYSTEM_PROMPT = 'a'\n"
    assert check("class Harness(BaseHarness):\n    SYSTEM_PROMPT = 'b'\n", prompt_only_of=parent) == []
    found = check("import os\nclass Harness(BaseHarness):\n    SYSTEM_PROMPT = 'b'\n", prompt_only_of=parent)
    assert [message.split(":")[1] for message in found] == ["2", "2"]


def test_the_command_prints_rows_and_ends_with_what_it_found(tmp_path: Path) -> None:
    run = CliRunner().invoke
    clean = run(app, ["check-harness", str(FILES / "good.py"), "--domain", "chess_puzzles", "--json"])
    assert (clean.exit_code, json.loads(clean.stdout)) == (0, [])
    bad = run(app, ["check-harness", str(FILES / "plays_itself.py"), "--domain", "chess_puzzles", "--json"])
    [row] = json.loads(bad.stdout)
    assert (bad.exit_code, row["file"], row["line"], row["domain"]) == (
        1, str(FILES / "plays_itself.py"), 7, "chess_puzzles",
    )  # fmt: skip
    other = run(app, ["check-harness", str(FILES / "good.py"), "--prompt-only-of", "chess_puzzles"])
    assert other.exit_code == 1
    assert "good.py:3: not in the parent: 'import random'" in other.stdout
    for parent in ("nowhere.py", str(tmp_path / "broken.py")):
        (tmp_path / "broken.py").write_text("class")
        wrong = run(app, ["check-harness", str(FILES / "good.py"), "--prompt-only-of", parent])
        assert parent in str(wrong.exception)


# --- answers --------------------------------------------------------------------------------------


def scored(domain: str) -> list[Any]:
    return [e for split in ("harness", "dev", "test") for e in load_examples(domain, "mini", split)]


def text_of(example: Any) -> str:
    for name in ("question", "problem", "fen"):
        if hasattr(example, name):
            return str(getattr(example, name))
    raise AssertionError(example)


def gold_of(example: Any) -> str:
    return str(example.gold if isinstance(example.gold, str) else example.gold[0])


@pytest.mark.parametrize("domain", DOMAINS)
def test_o39_examples_and_their_answers_in_a_text_are_found(domain: str) -> None:
    examples = scored(domain)
    ways = {
        "a dictionary": "T = " + repr({text_of(e): e.gold for e in examples[:3]}),
        "a table": "T = " + repr({i: gold_of(e) for i, e in enumerate(examples[:40])}),
        "a prompt": f"P = {'Remember: ' + text_of(examples[4]) + ' is ' + str(examples[4].gold)!r}",
        "an id": f"def f(view): return {examples[5].id!r} in view.opening",
    }  # fmt: skip
    for way, source in ways.items():
        found = holds_answers("x = 1\n" + source, examples)
        assert found, way
        assert all(finding.domain == domain and finding.message.startswith("2: ") for finding in found)


def test_o39_a_branch_on_part_of_an_examples_text_is_found() -> None:
    examples = scored("search_qa")
    texts = [text_of(example) for example in examples]
    part = next(text[:24] for text in texts if sum(text[:24] in other for other in texts) == 1)
    for source in (f"x = {part!r} in y", f"x = y.startswith({part!r})", f"x = {{{part!r}: 1}}"):
        [finding] = holds_answers(source, examples)
        assert "goes by text of a scored example" in finding.message
    assert holds_answers(f"x = {part!r}", examples) == []


@pytest.mark.parametrize("domain", DOMAINS)
def test_o39_thresholds_and_parts_of_words_are_no_branch_on_an_example(domain: str) -> None:
    examples = scored(domain)
    for number in (100, 128, 200, 256, 300, 400, 500, 512, 600, 800, 1_000, 1_024, 2_048, 4_096, 10_000):
        assert holds_answers(f"x = len(y) > {number}", examples) == []
    part = next(example.id[-8:] for example in examples if re.search(r"\d{3}", example.id[-8:]))
    assert holds_answers(f"x = {part!r} in y", examples) == []


HASHED = {
    "numbers": "T = {}".format({zlib.crc32(b"%d" % n): n for n in range(8)}),
    "one by one": "\n".join(f"x = y == {zlib.crc32(b'%d' % n)}" for n in range(8)),
    "in hex": "T = {}".format({hashlib.sha256(b"%d" % n).hexdigest()[:12]: n for n in range(8)}),
    "in a text": "T = {!r}".format(" ".join(f"{zlib.crc32(b'%d' % n)}:e2e{n % 8 + 1}" for n in range(8))),
    "base64": f"T = {base64.b64encode(bytes(range(256))).decode()!r}",
    "bytes": f"T = {zlib.compress(bytes(range(256)))!r}",
}  # fmt: skip


@pytest.mark.parametrize("way", HASHED)
def test_o39_tables_that_nobody_can_read_are_found(way: str) -> None:
    for examples in (scored("chess_puzzles"), []):
        [finding] = holds_answers("x = 1\n" + HASHED[way], examples)
        assert finding.message.startswith("2: holds ")


DATES = "20010911 19450508 19690720 19891109 20080915 18651409 17760704 17890714"
READABLE = {
    "dates": f"T = {DATES.split()}",
    "a divider": f"P = {'a1' + '-' * 320!r}",
    "dividers": f"P = {'a1 ' + '=-_' * 320!r}",
    "hex letters": f"T = {['deadbeef' + one * 3 for one in 'abcdef'] + ['fadedfaded', 'beadedbeaded']}",
}


@pytest.mark.parametrize("way", READABLE)
def test_what_anybody_can_read_is_no_table_of_hashes(way: str) -> None:
    assert holds_answers(READABLE[way], scored("chess_puzzles")) == []


def test_a_check_without_examples_finds_them_too() -> None:
    found = check(HASHED["numbers"] + "\nclass Harness(BaseHarness): pass\n", *DOMAINS, scored=())
    assert found == ["mine.py:2: holds a table of hashes"]


BY_HASH = [
    "x = zlib.crc32(view.opening.encode()) == 3421780262",
    "x = 7 if 3421780262 != crc32(t) else 8",
    "x = T[hash(view.observation)]",
    "x = T.get(str(zlib.adler32(t)))",
    "x = hashlib.sha256(t).hexdigest()[:8] in 'a1b2c3d4 e5f6a7b8'",
    "h = hashlib.md5(t); k = h.hexdigest()\nx = k in self.T",
    "x = (crc32(t) & 0xffffffff) in T",
    "x = crc32(t) % 1000003 == 5",
    "x = f'{crc32(t):x}' == 'cbf43926'",
    "match crc32(t):\n    case 5: x = 1",
    "x = '%d' % crc32(t) == '5'",
]
BY_DRAW = [
    "x = zlib.crc32(view.observation.encode()) % 3 == 0",
    "x = moves[crc32(t) % len(moves)]",
    "x = sorted(moves, key=lambda m: hash((m, view.seed)))",
    "x = random.Random(crc32(t)).choice(moves)",
    "x = crc32(t) & 1 == 0",
    "x = hashlib.sha256(t).digest()[0] in T",
    "x = hashlib.sha256(t).hexdigest()[0] in '01234567'",
    "x = int(hashlib.sha256(t).hexdigest(), 16) % 7 == 3",
    "x = hash(a) == hash(b)",
    "x = crc32(t) / 2**32 < 0.5",
    "x = str(crc32(t)) in view.state",
    "x = view.state.get(str(crc32(t)))",
    "x = crc32(t) >> 31 == 1",
    "x = T[crc32(t) % n]",
]


def test_o39_one_decision_by_a_hash_is_a_special_case_and_a_draw_is_none() -> None:
    for source in BY_HASH:
        [finding] = holds_answers(source, [])
        assert "goes by text of which it holds a hash" in finding.message
    for source in BY_DRAW:
        assert holds_answers(source, scored("math_python")) == [], source


def test_o39_no_constant_hides_the_others() -> None:
    examples = scored("search_qa")
    for other in ("0x" + "f" * 5_000, "b'\\xff'", "...", "1j", "1e999", "'\\ud800'"):
        source = f"x = {other}\nT = {[other, 1]!r}\nP = {'Q: ' + text_of(examples[0])!r}\nL = [{other}] * 9"
        assert holds_answers(source, examples), other
        alone = holds_answers(f"x = {other}\nL = [{other}]", examples)
        assert [finding.message for finding in alone] == (
            ["1: holds packed data, which nobody can read"] if len(other) > 300 else []
        )


@pytest.mark.parametrize("domain", DOMAINS)
def test_o39_worked_examples_of_the_weight_split_and_our_own_files_hold_none(domain: str) -> None:
    examples = scored(domain)
    others = list(load_examples(domain, "mini", "weight"))[:80]
    for at in range(0, 80, 4):
        shown = "\n".join(f"Q: {text_of(e)}\nA: {e.gold}" for e in others[at : at + 4])
        assert holds_answers(f"P = {shown!r}", examples) == []
    for source in shipped_harnesses().values():
        assert holds_answers(source, examples) == []


def test_a_finding_knows_its_place() -> None:
    assert Finding("", "a/b c.py:7: x:9: y") == ("", "a/b c.py:7: x:9: y")
    assert (Finding("", "a/b c.py:7: x").file, Finding("", "a/b c.py:7: x").line) == ("a/b c.py", 7)
    assert (Finding("", "nothing").file, Finding("", "nothing").line) == ("", 1)
