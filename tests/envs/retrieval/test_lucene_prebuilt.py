"""Prebuilt indexes: the real table of names, and real downloads from a server of our own."""

import hashlib
import http.server
import io
import socket
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from whale_envs import InfrastructureError, UnknownNameError, UsageError
from whale_envs.retrieval.lucene import open_prebuilt
from whale_envs.retrieval.lucene_prebuilt import Prebuilt, _unpack, fetch, prebuilt

pytest.importorskip("pyserini", reason="the light installation of Pyserini is not there")


def archive() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name in ("segments_1", "_0.si"):
            entry = tarfile.TarInfo(f"lucene-index.x/{name}")
            entry.size = 5_000
            tar.addfile(entry, io.BytesIO(name.encode().ljust(5_000, b"x")))
    return packed.getvalue()


ARCHIVE = archive()
MD5 = hashlib.md5(ARCHIVE).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    breaks_at: int | None = None
    ranges: list[str | None]


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        if start >= len(ARCHIVE):
            self.send_error(416)
            return
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(ARCHIVE) - start))
        self.end_headers()
        self.wfile.write(ARCHIVE[start : self.server.breaks_at])

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        server.ranges = []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def at(server: Server, md5: str = MD5) -> Prebuilt:
    return Prebuilt([f"http://127.0.0.1:{server.server_port}/x.tar.gz"], md5)


def test_an_index_is_fetched_once_and_unpacked(server: Server, tmp_path: Path) -> None:
    folder = fetch("x", at(server), tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["_0.si", "segments_1"]
    assert fetch("x", at(server), tmp_path) == folder
    assert server.ranges == [None]
    assert list(tmp_path.iterdir()) == [folder]


def test_a_broken_download_is_taken_up_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.breaks_at = 100
    with pytest.raises(InfrastructureError, match="ended after 100 of"):
        fetch("x", at(server), tmp_path)
    server.breaks_at = None
    assert (fetch("x", at(server), tmp_path) / "segments_1").stat().st_size == 5_000
    assert server.ranges == [None, "bytes=100-"]


def test_a_download_that_was_complete_is_used(server: Server, tmp_path: Path) -> None:
    (tmp_path / f"x.{MD5}.tar.gz.part").write_bytes(ARCHIVE)
    assert (fetch("x", at(server), tmp_path) / "segments_1").exists()


def test_another_file_than_the_table_means_is_refused(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="has not the MD5 0000"):
        fetch("x", at(server, "0" * 32), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_a_name_that_leads_out_and_what_is_no_file_are_refused(tmp_path: Path, kind: bytes) -> None:
    archive = tmp_path / "odd.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        member = tarfile.TarInfo("../outside" if kind == tarfile.REGTYPE else "segments_1")
        member.type, member.linkname = kind, "/etc/hostname"
        packed.addfile(member)
    with pytest.raises(UsageError, match=r"cannot be unpacked: .* is no file or folder"):
        _unpack(archive, tmp_path / "index")
    assert list(tmp_path.iterdir()) == [archive]


def test_without_a_network_it_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as deaf:  # bound, so that nobody else answers there, but not listening
        deaf.bind(("127.0.0.1", 0))
        entry = Prebuilt([f"http://127.0.0.1:{deaf.getsockname()[1]}/x.tar.gz"], MD5)
        with pytest.raises(InfrastructureError, match=r"'x' cannot be fetched .*refused.*needs no network"):
            fetch("x", entry, tmp_path)


def test_the_table_is_pyserinis() -> None:
    table = prebuilt()
    assert table["wikipedia-dpr"] == table["wikipedia-dpr-100w"]
    assert table["wikipedia-dpr-100w"].size == 9_177_917_732
    assert table["beir-v1.0.0-nq.flat"].urls
    assert all(len(entry.md5) == 32 and entry.urls for entry in table.values())


def test_an_unknown_name_is_told_the_near_ones() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'wikipedia-dpr-100w'"):
        open_prebuilt("wikipedia-dpr-100")
