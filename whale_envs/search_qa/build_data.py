"""Builds the embedded corpora and questions from their drafts.

    python -m whale_envs.search_qa.build_data SOURCE_DIR whale_envs/data/search_qa

SOURCE_DIR holds the drafts, as they came out of the packages that NOTICE names:

    wikipedia_passages.jsonl.gz   title, description, text
    factbook_passages.jsonl.gz    id, title, text
    wikipedia.jsonl, natural_questions.jsonl, factbook.jsonl     questions

The questions' drafts are in the repository (`tests/envs/search_qa/drafts`). Beside each folder's
questions lie two files that people wrote while reading them: `dropped.jsonl` says which were left out
and why, `edited.jsonl` gives the wording or the reference answers of others anew (an article, an
alias). The builder applies both, refuses a question that breaks a rule (`honesty.py`), and gives each
its split: questions that share an entity stay together, and the seeded order of these groups decides.
The same input gives the same bytes, as far as two zlibs pack alike.

Not covered: making the drafts; judging them.
"""

import gzip
import hashlib
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from whale_envs.core import SPLITS
from whale_envs.errors import DataError
from whale_envs.search_qa.corpora import Stored
from whale_envs.search_qa.examples import FOLDERS, SPLIT_SEED, Row, as_golds
from whale_envs.search_qa.honesty import MOST_USES, broken_rules, fold, holds

SHARES: Mapping[str, float] = {"weight": 0.40, "harness": 0.15, "dev": 0.15, "test": 0.30}

TITLES: Mapping[str, str] = {
    "The Dominican": "Dominican Republic",
    "DRC": "Democratic Republic of the Congo",
    "Congo": "Republic of the Congo",
    "Cocos": "Cocos (Keeling) Islands",
}
"""Names that the Factbook's packager cut short."""

_LINK = re.compile(
    r"(?:capital is|highest point is|anthem is titled|independent on|with the internet country code|"
    r'symbol is the) "?(.+?)"?(?: become independent| gain independence)?\?$'
)
_FIELDS = {
    "capital": re.compile(r"Capital: name: ([^;.]*)"),
    "highest": re.compile(r"highest point: ([^;]*)"),
    "anthem": re.compile(r"National anthem\(s\): title: ([^;]*)"),
    "tld": re.compile(r"Internet country code: (\S+)"),
    "indep_date": re.compile(r"Independence: (.*?)(?=National holiday|$)", re.DOTALL),
    "symbol": re.compile(r"National symbol\(s\): (.*?)(?=\. National|$)", re.DOTALL),
    "only_neighbour": re.compile(r"border countries: (.*?)\. Coastline"),
}
_CAPITAL_OF = re.compile(r"Capital\b.* of (?:the )?(.+)")
_PARENTHESIS = re.compile(r" \([^)]*\)$")


def build(source: Path, out: Path) -> dict[str, int]:
    """Writes passages and questions below `out` and returns the number of questions by folder.

    Args:
        source: holds the drafts.
        out: holds wikipedia, natural_questions and factbook, with dropped.jsonl and edited.jsonl each.

    Raises:
        DataError: a draft, a decision or a question is not what it should be.
    """
    wikipedia = wikipedia_passages(_read_packed(source / "wikipedia_passages.jsonl.gz"))
    factbook = factbook_passages(_read_packed(source / "factbook_passages.jsonl.gz"))
    rows = {
        "wikipedia": questions(
            source / "wikipedia.jsonl", out / "wikipedia", wikipedia, _wikipedia_row(wikipedia)
        ),
        "natural_questions": questions(
            source / "natural_questions.jsonl", out / "natural_questions", wikipedia, _nq_row(wikipedia)
        ),
        "factbook": questions(source / "factbook.jsonl", out / "factbook", factbook, _factbook_row(factbook)),
    }
    for folders in FOLDERS.values():
        splits = assign_splits([row for folder in folders for row in rows[folder]])
        for folder in folders:
            chosen = [msgspec.structs.replace(row, split=splits[row.id]) for row in rows[folder]]
            lines = (msgspec.json.encode(row) + b"\n" for row in chosen)
            (out / folder / "questions.jsonl").write_bytes(b"".join(lines))
    for folder, passages in (("wikipedia", wikipedia), ("factbook", factbook)):
        lines = (msgspec.json.encode(stored) + b"\n" for stored in passages)
        packed = gzip.compress(b"".join(lines), 9, mtime=0)
        (out / folder / "passages.jsonl.gz").write_bytes(packed)
    return {folder: len(found) for folder, found in rows.items()}


# --- passages ------------------------------------------------------------------------------------


def wikipedia_passages(rows: Iterable[Mapping[str, Any]]) -> list[Stored]:
    """The summaries in the order of their ids: titles as in an address of Wikipedia."""
    return _ordered(
        Stored(row["title"].replace(" ", "_"), row["title"], row["text"], row["description"]) for row in rows
    )


def factbook_passages(rows: Iterable[Mapping[str, Any]]) -> list[Stored]:
    """The Factbook's passages in the order of their ids, with the names of `TITLES` made whole."""
    stored = []
    for row in rows:
        country, dash, section = row["title"].partition(" — ")
        stored.append(Stored(row["id"], TITLES.get(country, country) + dash + section, row["text"]))
    return _ordered(stored)


def _ordered(passages: Iterable[Stored]) -> list[Stored]:
    ordered = sorted(passages, key=lambda stored: stored.id)
    for before, after in pairwise(ordered):
        if before.id == after.id:
            raise DataError(f"two passages have the id {after.id!r}")
    return ordered


# --- questions -----------------------------------------------------------------------------------


def questions(
    draft: Path, folder: Path, stored: Sequence[Stored], make: Callable[[Mapping[str, Any]], Row]
) -> list[Row]:
    """A folder's questions without splits: what the draft holds less what was dropped, as edited.

    Raises:
        DataError: a decision names no question, a question breaks a rule, or one page is the target of
            more than `MOST_USES` questions of a kind.
    """
    rows = {row["id"]: row for row in _read(draft)}
    dropped = {row["id"] for row in _read(folder / "dropped.jsonl")}
    edited = {row["id"]: row for row in _read(folder / "edited.jsonl")}
    unknown = sorted((dropped | edited.keys()) - rows.keys() | dropped & edited.keys())
    if unknown:
        raise DataError(f"{folder.name}: decisions on questions that are not there, or two on one: {unknown}")
    passages = {one.id: one.passage() for one in stored}
    kept = []
    for name, draft_row in rows.items():
        if name in dropped:
            continue
        row = make({**draft_row, **edited.get(name, {})})
        broken = broken_rules(row, passages)
        if broken:
            raise DataError(f"{folder.name} {name}, {row.question!r}: {'; '.join(broken)}")
        kept.append(row)
    uses = Counter((row.kind, target(row)) for row in kept)
    often = {key: count for key, count in uses.items() if count > MOST_USES}
    if often:
        raise DataError(f"{folder.name}: more than {MOST_USES} questions have the same target: {often}")
    return kept


def target(row: Row) -> str:
    """What a question asks for: the page of its last hop, or the answer where there is no hop."""
    return row.support[-1] if row.kind in {"bridge", "border"} else fold(row.answers[0])


def _row(draft: Mapping[str, Any], support: Sequence[str], link: str, entities: set[str]) -> Row:
    return Row(
        id=draft["id"],
        kind=draft.get("type", "nq"),
        question=draft["question"],
        answers=as_golds(draft["answers"], draft["id"]),
        support=tuple(support),
        link=link,
        entities=tuple(sorted(entities)),
        split="",
    )


def _pages(stored: Sequence[Stored]) -> dict[str, list[str]]:
    """Ids of pages by folded title, without the title's parenthesis."""
    pages: dict[str, list[str]] = defaultdict(list)
    for one in stored:
        pages[fold(_PARENTHESIS.sub("", one.title))].append(one.id)
    return pages


def _answer_pages(answers: Sequence[str], pages: Mapping[str, Sequence[str]]) -> set[str]:
    """Pages whose title is one of the answers; a number is a year here, and no page."""
    folded = [fold(answer) for answer in answers]
    return {page for answer in folded if not answer.isdigit() for page in pages.get(answer, ())}


def _wikipedia_row(stored: Sequence[Stored]) -> Callable[[Mapping[str, Any]], Row]:
    pages = _pages(stored)
    descriptions = {one.title: one.description for one in stored}
    capitals = Counter(found[1] for text in descriptions.values() if (found := _CAPITAL_OF.fullmatch(text)))

    def make(draft: Mapping[str, Any]) -> Row:
        support = [title.replace(" ", "_") for title in draft["gold"]]
        entities = {*support, *_answer_pages(draft["answers"], pages)}
        link = ""
        if draft["type"] == "bridge":
            last = draft["gold"][-1]
            country = _CAPITAL_OF.fullmatch(descriptions[last])
            link = country[1] if country else _PARENTHESIS.sub("", last)
            leads_to = capitals[link] if country else len(pages[fold(link)])
            if leads_to != 1:
                raise DataError(f"{draft['id']}: {link!r} leads to {leads_to} pages")
            entities |= {*pages.get(fold(link), ())} or {link}
        return _row(draft, support, link, entities)

    return make


def _nq_row(stored: Sequence[Stored]) -> Callable[[Mapping[str, Any]], Row]:
    pages = _pages(stored)

    def make(draft: Mapping[str, Any]) -> Row:
        support = [title.replace(" ", "_") for title in draft["gold"]]
        return _row(draft, support, "", {*support, *_answer_pages(draft["answers"], pages)})

    return make


def _factbook_row(stored: Sequence[Stored]) -> Callable[[Mapping[str, Any]], Row]:
    texts = {one.id: one.text for one in stored}
    names = {one.id.split(":")[0]: one.title.split(" — ")[0] for one in stored}
    countries: dict[str, list[str]] = {fold(name): [code] for code, name in names.items()}

    def make(draft: Mapping[str, Any]) -> Row:
        support = list(draft["gold"])
        relation, link = draft["relations"][0], ""
        if draft["type"] == "bridge":
            found = _LINK.search(draft["question"])
            link = found[1] if found else ""
            section = support[0].split(":")[1]
            with_it = [
                name
                for name, text in texts.items()
                if name.endswith(":" + section)
                and (field := _FIELDS[relation].search(text))
                and holds(field[1], link)
            ]
            if set(with_it) - {support[0]}:
                raise DataError(f"{draft['id']}: {link!r} leads to {with_it}")
        elif draft["type"] == "border":
            link = names[support[-1].split(":")[0]]
            borders = _FIELDS[relation].search(texts[support[0]])
            if borders is None or ";" in borders[1] or not holds(borders[1], link):
                raise DataError(f"{draft['id']}: {link!r} is not the only neighbour")
        entities = {name.split(":")[0] for name in support}
        return _row(draft, support, link, entities | _answer_pages(draft["answers"], countries))

    return make


# --- splits --------------------------------------------------------------------------------------


def assign_splits(rows: Sequence[Row]) -> dict[str, str]:
    """A split for each question's id, so that questions which share an entity share their split.

    Groups of such questions are taken largest first, equal ones in a seeded order, and each goes where
    its kinds are wanted most, by `SHARES`.
    """
    groups: dict[str, list[Row]] = defaultdict(list)
    leaders = _components(rows)
    for row in rows:
        groups[leaders[row.entities[0]]].append(row)
    wanted = Counter(row.kind for row in rows)
    held = {split: Counter[str]() for split in SPLITS}

    def need(split: str, group: Sequence[Row]) -> float:
        kinds = Counter(row.kind for row in group)
        return sum(
            count * (1 - held[split][kind] / (SHARES[split] * wanted[kind])) for kind, count in kinds.items()
        )

    splits: dict[str, str] = {}
    for group in sorted(groups.values(), key=lambda group: (-len(group), _rank(group))):
        chosen = max(SPLITS, key=lambda split: need(split, group))
        held[chosen].update(row.kind for row in group)
        splits.update((row.id, chosen) for row in group)
    return splits


def _components(rows: Iterable[Row]) -> dict[str, str]:
    """For each entity one that stands for all that questions connect it with."""
    above: dict[str, str] = {}

    def top(entity: str) -> str:
        while above.setdefault(entity, entity) != entity:
            entity = above[entity]
        return entity

    for row in rows:
        for entity in row.entities[1:]:
            above[top(entity)] = top(row.entities[0])
        top(row.entities[0])
    return {entity: top(entity) for entity in list(above)}


def _rank(group: Sequence[Row]) -> bytes:
    name = min(row.question for row in group)
    return hashlib.sha256(f"{SPLIT_SEED}:{name}".encode()).digest()


# --- files ---------------------------------------------------------------------------------------


def _read(path: Path) -> list[dict[str, Any]]:
    return _decode(path.read_bytes())


def _read_packed(path: Path) -> list[dict[str, Any]]:
    return _decode(gzip.decompress(path.read_bytes()))


def _decode(data: bytes) -> list[dict[str, Any]]:
    return msgspec.json.Decoder(dict[str, Any]).decode_lines(data)


if __name__ == "__main__":
    for folder, count in build(*map(Path, sys.argv[1:3])).items():
        sys.stdout.write(f"{count} questions written to {sys.argv[2]}/{folder}\n")
