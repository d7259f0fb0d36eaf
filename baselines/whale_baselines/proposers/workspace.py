"""The tools of a proposer that is a model, confined to the archive (read) and to its slots (write).

    space = Workspace(brief)
    result = await space.call("read", {"path": "archive/README.md"})
    space.proposals()

Paths are relative and begin with `archive/` or `workspace/`. Absolute paths, `..`, links out of the two
folders and anything that is no regular file are refused; so is a write to anything but a slot. What is
refused is said to the model and kept in `log`; nothing on disk changes. Every result is cut to
`RESULT_BYTES`, and all results together to the session's `tool_bytes`.

The slots' texts are kept in memory as they were accepted: what else happens to the files does not matter.

Not covered: isolation of the harnesses that `run_check` runs, which is `whale_bench.harness`'s.
"""

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from whale_baselines.proposers.tools import LINES, TOOLS
from whale_baselines.search.proposal import Brief, Proposal
from whale_bench.harness.check import check_harness
from whale_bench.harness.prompt_only import prompt_only
from whale_envs.errors import InfrastructureError, UsageError

RESULT_BYTES = 24_000
"""Most of one result."""
SOURCE_BYTES = 200_000
"""Longest candidate."""
SCAN_BYTES = 64 * 2**20
"""Most that one search looks through."""
MOST_HITS = 100
MOST_NAMES = 400
CHECK_SECONDS = 120.0


class Refused(Exception):  # noqa: N818 - it is what is said to the model
    """A call that is not carried out; the text says why."""


class Workspace:
    """See the module's docstring.

    Args:
        brief: whose folders and slots.
        tool_bytes: most bytes of all results.

    Attributes:
        log: every call, in order, with what became of it.
        outside: how many calls were refused for their path.
    """

    def __init__(self, brief: Brief, *, tool_bytes: int = 400_000) -> None:
        self._brief = brief
        self._roots = {"archive": brief.archive.resolve(), "workspace": brief.workspace.resolve()}
        self._left = tool_bytes
        self._written: dict[str, Proposal] = {}
        self.slots = tuple(f"slot_{number}.py" for number in range(1, brief.slots + 1))
        self.log: list[dict[str, Any]] = []
        self.outside = 0

    @property
    def empty(self) -> list[str]:
        """Slots that nothing was written to."""
        return [f"workspace/{slot}" for slot in self.slots if slot not in self._written]

    def proposals(self) -> tuple[Proposal, ...]:
        """What was written, by slot."""
        return tuple(self._written[slot] for slot in self.slots if slot in self._written)

    async def call(self, name: str, arguments: Any) -> str:
        """The result of a call, or in brackets why there is none. Never raises for what a model does.

        Args:
            name: of the tool.
            arguments: an object, or JSON text of one.
        """
        refused = ""
        try:
            text = await self._call(name, _object(arguments))
        except Refused as reason:
            text = refused = f"[{reason}]"
        # A path that no file can have, a disk that is full, a source that no tool here can walk.
        except (OSError, ValueError, RecursionError, MemoryError) as error:
            text = refused = f"[{name[:80]} failed: {type(error).__name__}: {error}]"[:400]
        raw = text.encode("utf-8", "replace")
        if len(raw) > RESULT_BYTES:
            kept = raw[:RESULT_BYTES].decode("utf-8", "ignore")
            text = f"{kept}\n[cut: {len(raw) - RESULT_BYTES} bytes more; ask for a part]"
        cost = min(len(raw), RESULT_BYTES)
        if cost > self._left and name in ("list", "read", "search"):
            text = refused = "[this session has read all that it may; write the candidates now]"
        else:
            self._left -= cost
        self.log.append({"event": "tool", "tool": name[:80], "refused": refused, "bytes": cost})
        return text

    async def _call(self, name: str, arguments: dict[str, Any]) -> str:
        tools = {tool.name: tool for tool in TOOLS}
        if name not in tools:
            raise Refused(f"there is no tool {name[:80]!r}; the tools are {', '.join(tools)}")
        if missing := [one for one in tools[name].required if one not in arguments]:
            raise Refused(f"{name} needs {', '.join(missing)}")
        if extra := [one for one in arguments if one not in tools[name].properties]:
            raise Refused(f"{name} takes {', '.join(tools[name].properties)}, not {', '.join(extra)[:80]}")
        if name == "write":
            return self._write(arguments)
        if name == "run_check":
            return await self._check(self._slot(arguments["path"]))
        work = {"list": self._list, "read": self._read, "search": self._search}[name]
        return await asyncio.to_thread(work, arguments)

    # --- where a path leads ------------------------------------------------------------------

    def _resolve(self, path: Any) -> Path:
        """The file or folder that a path means.

        Raises:
            Refused: it leads out of the two folders.
        """
        if not isinstance(path, str) or not path or len(path) > 1000 or "\0" in path:
            raise Refused(f"a path is text such as archive/README.md, got {path!r:.80}")
        parts = PurePosixPath(path).parts
        if path.startswith(("/", "~")) or ".." in parts or not parts:
            return self._refuse(path)
        root, rest = self._roots.get(parts[0]), parts[1:]
        if root is None:
            raise Refused(f"paths begin with archive/ or workspace/, got {path[:80]!r}")
        target = root.joinpath(*rest)
        try:
            if not target.resolve().is_relative_to(root):
                return self._refuse(path)
        except (OSError, RuntimeError):  # a loop of links
            return self._refuse(path)
        return target

    def _refuse(self, path: str) -> Path:
        self.outside += 1
        raise Refused(f"{path[:200]!r} is outside of archive/ and workspace/")

    def _slot(self, path: Any) -> str:
        """The slot that a path means."""
        name = path.removeprefix("workspace/") if isinstance(path, str) else ""
        if name not in self.slots:
            self._resolve(path)  # may have more to say
            self.outside += 1
            valid = ", ".join(f"workspace/{slot}" for slot in self.slots)
            raise Refused(f"only the slots can be written and checked: {valid}; got {path[:80]!r}")
        return name

    # --- the tools ---------------------------------------------------------------------------

    def _list(self, arguments: dict[str, Any]) -> str:
        given = arguments.get("path") or "."
        if given in (".", "./"):
            return "archive/\nworkspace/"
        folder = self._resolve(given)
        if not folder.is_dir():
            raise Refused(f"{given!r:.200} is no folder")
        names = []
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.is_dir(follow_symlinks=False):
                    names.append(f"{entry.name}/")
                elif entry.is_file(follow_symlinks=False):
                    names.append(f"{entry.name}  {entry.stat(follow_symlinks=False).st_size} bytes")
        more = [f"[{len(names) - MOST_NAMES} more]"] if len(names) > MOST_NAMES else []
        return "\n".join(names[:MOST_NAMES] + more) or "[empty]"

    def _read(self, arguments: dict[str, Any]) -> str:
        first = _number(arguments, "first_line", 1)
        lines = _number(arguments, "lines", LINES)
        found, size = [], 0
        with _opened(self._resolve(arguments["path"]), arguments["path"]) as text:
            for number, line in enumerate(text, start=1):
                if number < first:
                    continue
                if number >= first + lines or size > RESULT_BYTES:
                    found.append(f"[more from line {number}]")
                    break
                found.append(line.rstrip("\n")[: RESULT_BYTES + 1])
                size += len(found[-1])
        return "\n".join(found) or "[no lines there]"

    def _search(self, arguments: dict[str, Any]) -> str:
        wanted = arguments["text"]
        if not isinstance(wanted, str) or not wanted.strip():
            raise Refused(f"search needs a text, got {wanted!r:.80}")
        wanted, hits, looked_at = wanted.casefold(), list[str](), 0
        for path, shown in self._files(arguments.get("path") or "archive"):
            try:
                with _opened(path, shown) as text:
                    for number, line in enumerate(text, start=1):
                        looked_at += len(line)
                        if wanted in line.casefold():
                            hits.append(f"{shown}:{number}: {line.strip()[:300]}")
                        if len(hits) >= MOST_HITS or looked_at > SCAN_BYTES:
                            return "\n".join([*hits, "[stopped here; search a smaller part]"])
            except Refused:
                continue
        return "\n".join(hits) or "[nothing found]"

    def _files(self, given: Any) -> Iterator[tuple[Path, str]]:
        """(file, as the model names it) of all regular files under a path."""
        start = self._resolve(given)
        root = str(given).strip("/")
        if start.is_file():
            yield start, root
            return
        for folder, folders, names in os.walk(start):
            folders.sort()
            for name in sorted(names):
                path = Path(folder) / name
                if not path.is_symlink():
                    yield path, f"{root}/{path.relative_to(start)}"

    def _write(self, arguments: dict[str, Any]) -> str:
        slot = self._slot(arguments["path"])
        source = arguments["source"]
        if not isinstance(source, str) or not source.strip():
            raise Refused("source is the text of a harness file, and cannot be empty")
        try:
            raw = source.encode()
        except UnicodeEncodeError as error:
            raise Refused("source holds characters that no file can") from error
        if len(raw) > SOURCE_BYTES:
            raise Refused(f"source has {len(raw)} bytes, more than {SOURCE_BYTES}")
        self._must_be_new(slot, source)
        proposal = Proposal(
            source=source,
            hypothesis=_words(arguments, "hypothesis"),
            changes=_words(arguments, "changes"),
            parents=self._parents(arguments.get("parents")),
            components=tuple(_list_of(arguments.get("components"))),
        )
        _put(self._roots["workspace"] / slot, raw)
        again = slot in self._written
        self._written[slot] = proposal
        left = f"empty slots: {', '.join(self.empty)}" if self.empty else "all slots are written"
        return f"{'replaced' if again else 'wrote'} workspace/{slot}, {len(raw)} bytes; {left}"

    def _must_be_new(self, slot: str, source: str) -> None:
        for known in self._brief.known:
            if known.source == source:
                raise Refused(f"this is {known.name} of the archive, which is known; write something new")
        for other, proposal in self._written.items():
            if other != slot and proposal.source == source:
                raise Refused(f"this stands in workspace/{other} already; write something else")

    def _parents(self, given: Any) -> tuple[str, ...]:
        """Ids of the harnesses that are named; the accepted one where none is."""
        by_name = {known.name: known.harness_id for known in self._brief.known}
        by_name |= {known.harness_id: known.harness_id for known in self._brief.known}
        found = dict.fromkeys(by_name[name] for name in _list_of(given) if name in by_name)
        return tuple(found) or (self._brief.accepted,)

    async def _check(self, slot: str) -> str:
        if slot not in self._written:
            raise Refused(f"nothing was written to workspace/{slot} yet")
        source, findings = self._written[slot].source, list[str]()
        if self._brief.prompt_only and (difference := prompt_only(source, self._base())):
            findings.append(f"{slot}:{difference.line}: {difference.message}")
        path = self._roots["workspace"] / slot
        await asyncio.to_thread(_put, path, source.encode())  # whatever became of the file
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                found = await check_harness(path, (self._brief.domain,), scored=())
        except TimeoutError:
            return f"[the check took longer than {CHECK_SECONDS:g} s]"
        except (UsageError, InfrastructureError) as error:
            return f"[the check could not be made: {error}]"
        findings += [one.message.replace(str(path), slot) for one in found]
        return "\n".join(findings) or "no findings"

    def _base(self) -> str:
        found = [known.source for known in self._brief.known if known.harness_id == self._brief.base]
        return found[0] if found else ""


def _opened(path: Path, shown: object) -> Any:
    """A regular file's text, without following a link to it."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Refused(f"{shown!r:.200} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise Refused(f"{shown!r:.200} is no file")
    return os.fdopen(handle, encoding="utf-8", errors="replace")


def _put(path: Path, raw: bytes) -> None:
    """Writes a file in one step; a link of that name is replaced, not followed."""
    partial = path.with_name(f".{path.name}.part")
    partial.unlink(missing_ok=True)
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with os.fdopen(handle, "wb") as file:
        file.write(raw)
    partial.replace(path)


def _object(arguments: Any) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments or "{}")
        except (msgspec.DecodeError, RecursionError) as error:
            raise Refused(f"the arguments are no JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise Refused(f"the arguments must be an object, got {arguments!r:.80}")
    return arguments


def _number(arguments: dict[str, Any], name: str, default: int) -> int:
    value = arguments.get(name)
    if value is None:
        return default
    if type(value) is not int or value < 1:
        raise Refused(f"{name} must be a number from 1, got {value!r:.80}")
    return value


def _words(arguments: dict[str, Any], name: str) -> str:
    value = arguments.get(name, "")
    return value.encode("utf-8", "replace").decode()[:2000] if isinstance(value, str) else ""


def _list_of(value: Any) -> list[str]:
    given = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return [one.encode("utf-8", "replace").decode()[:80] for one in given if isinstance(one, str)][:16]
