"""Reading moves, and writing the legal ones (O-15, O-16)."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import product

import chess
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_envs.chess_puzzles.notation import (
    Reading,
    describe_board,
    legal_moves,
    read_move,
    strict_uci,
    strip_thinking,
)

from .positions import STARTS, mini, played

KNIGHTS = "4k3/8/8/8/3N4/8/3N4/4K3 w - - 0 1"
PAWN_OR_BISHOP = "4k3/8/8/8/8/2n5/1P1B4/4K3 w - - 0 1"
BOTH_SIDES = "r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1"
QUEENSIDE = "3k4/8/7p/8/8/8/8/R3K3 w Q - 0 2"
PROMOTION = "3r3k/P3P3/8/8/8/8/8/6K1 w - - 0 1"
EN_PASSANT = "4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 2"
PINNED = "4k3/8/8/4r3/8/4N3/8/N3K3 w - - 0 1"
START = chess.STARTING_FEN


def read(fen: str, text: str) -> str:
    """The move read, as UCI, else the kind of reading."""
    reading = read_move(chess.Board(fen), text)
    return reading.move.uci() if reading.move else reading.kind


# --- castling ------------------------------------------------------------------------------------

LONG = [
    "e1c1",
    "e1a1",
    "O-O-O",
    "0-0-0",
    "o-o-o",
    "O-O-O+",
    "O-O-O#",
    "O–O–O",
    "0‑0‑0",
    "E1C1 ",
    "e1c1.",
    "Kc1",
]
SHORT = [
    "e1g1",
    "e1h1",
    "O-O",
    "0-0",
    "o-o",
    "O-O!",
    "1. O-O",
    "1.0-0",
    "E1G1",
    "E1H1",
    "e1-g1",
    "Ke1-g1",
    "Kg1",
]


@pytest.mark.parametrize("text", LONG)
@pytest.mark.parametrize("fen", [QUEENSIDE, BOTH_SIDES])
def test_every_way_to_write_long_castling_is_one_move(fen: str, text: str) -> None:
    assert read(fen, text) == "e1c1"


@pytest.mark.parametrize("text", SHORT)
def test_every_way_to_write_short_castling_is_one_move(text: str) -> None:
    assert read(BOTH_SIDES, text) == "e1g1"


@pytest.mark.parametrize(
    ("text", "uci"), [("O-O", "e8g8"), ("e8h8", "e8g8"), ("0-0-0", "e8c8"), ("e8a8", "e8c8")]
)
def test_black_castles_as_white_does(text: str, uci: str) -> None:
    assert read(BOTH_SIDES.replace(" w ", " b "), text) == uci


@pytest.mark.parametrize("text", ["O-O", "0-0", "e1g1", "e1h1"])
@pytest.mark.parametrize(
    "fen",
    [
        QUEENSIDE,
        BOTH_SIDES.replace("KQkq", "Qkq"),
        "4k1r1/8/8/8/8/8/8/4K2R w K - 0 1",
        "4k3/8/8/8/8/8/8/4K1NR w K - 0 1",
    ],
    ids=["no rook", "no right", "into check", "blocked"],
)
def test_castling_that_is_not_allowed_is_illegal(fen: str, text: str) -> None:
    assert read(fen, text) == "illegal"


# --- null moves ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["0000", "--", "e1e1", "a1a1", "E1E1", "Z0", "@@@@", "null", "NULL", "pass", "—–", "e1e1q"]
)
@pytest.mark.parametrize("frame", ["{}", " {}\n", "<move>{}</move>", "<think>e1e2</think>{}"])
@pytest.mark.parametrize("fen", [QUEENSIDE, START])
def test_a_null_move_is_illegal_and_leaves_the_board(fen: str, frame: str, text: str) -> None:
    board = chess.Board(fen)
    reading = read_move(board, frame.format(text))
    assert (reading.kind, reading.move) == ("illegal", None)
    assert (board.fen(), board.move_stack) == (chess.Board(fen).fen(), [])


# --- SAN: ambiguity, case, promotion -------------------------------------------------------------


@pytest.mark.parametrize(
    ("fen", "text", "expected"),
    [
        (KNIGHTS, "Nf3", "illegal"),
        ("4k3/8/8/8/8/8/8/R2K3R w - - 0 1", "Kg1", "illegal"),
        ("4k3/8/8/8/8/8/8/4K2R w - - 0 1", "Kg1", "illegal"),
        ("4k3/8/8/8/8/8/8/4K2R w K - 0 1", "Kh1", "illegal"),
        (KNIGHTS, "N2f3", "d2f3"),
        (KNIGHTS, "N4f3", "d4f3"),
        (KNIGHTS, "Nd2f3", "d2f3"),
        (KNIGHTS, "Nd2-f3", "d2f3"),
        (KNIGHTS, "Ndf3", "illegal"),
        (KNIGHTS, "Nc4", "d2c4"),
        (KNIGHTS, "N3f3", "illegal"),
        (PINNED, "Nc2", "a1c2"),
        ("4k3/8/8/8/8/8/1B1B4/4K3 w - - 0 1", "Bc3", "illegal"),
        ("4k3/8/8/8/8/8/1B1B4/4K3 w - - 0 1", "B2c3", "illegal"),
        ("4k3/8/8/8/8/8/1B1B4/4K3 w - - 0 1", "Bbc3", "b2c3"),
        ("4k3/8/8/8/8/8/1B1B4/4K3 w - - 0 1", "b2c3", "b2c3"),
        ("R6k/8/8/8/8/8/8/R3K3 w - - 0 1", "Ra4", "illegal"),
        ("R6k/8/8/8/8/8/8/R3K3 w - - 0 1", "R1a4", "a1a4"),
        ("4k3/8/8/8/8/8/8/Q1Q1K3 w - - 0 1", "Qb2", "illegal"),
    ],
)
def test_san_that_fits_two_pieces_is_illegal_and_never_a_guess(fen: str, text: str, expected: str) -> None:
    assert read(fen, text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bxc3", "b2c3"), ("Bxc3", "d2c3"), ("b2c3", "b2c3"), ("B2c3", "d2c3"), ("B2C3", "b2c3"),
        ("bc3", "b2c3"), ("Bc3", "d2c3"), ("b2xc3", "b2c3"), ("Bd2xc3", "d2c3"), ("d2c3", "d2c3"),
        ("D2C3", "d2c3"), ("b:c3", "b2c3"), ("B:c3", "d2c3"), ("♗xc3", "d2c3"), ("♙bxc3", "b2c3"),
        ("c3", "illegal"), ("xc3", "illegal"), ("Nc3", "illegal"),
    ],
)  # fmt: skip
def test_the_pawn_and_the_bishop_are_told_apart_by_case(text: str, expected: str) -> None:
    assert read(PAWN_OR_BISHOP, text) == expected


def test_a_capital_b_is_a_file_only_where_no_bishop_can_move() -> None:
    assert read("4k3/8/8/8/8/2n5/1P6/4K3 w - - 0 1", "B2c3") == "b2c3"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a7a8q", "a7a8q"), ("a7a8", "a7a8q"), ("a8", "a7a8q"), ("a8=Q", "a7a8q"), ("a8Q", "a7a8q"),
        ("a8=Q#", "a7a8q"), ("a8=N", "a7a8n"), ("a8n", "a7a8n"), ("a7a8n", "a7a8n"), ("a7a8N", "a7a8n"),
        ("A7A8R", "a7a8r"), ("a8/B", "a7a8b"), ("a8(R)", "a7a8r"), ("a7-a8=R", "a7a8r"), ("a8=♘", "a7a8n"),
        ("a8=", "a7a8q"), ("exd8=R", "e7d8r"), ("exd8", "e7d8q"), ("e7xd8N", "e7d8n"), ("e7d8", "e7d8q"),
        ("[a7a8]", "a7a8q"), ("My move: a7a8n.", "a7a8n"), ("a8=K", "malformed"), ("a7a8k", "malformed"),
        ("a8=P", "malformed"), ("g1g2q", "illegal"), ("Kg2=Q", "illegal"),
    ],
)  # fmt: skip
def test_a_promotion_without_a_piece_is_to_a_queen(text: str, expected: str) -> None:
    assert read(PROMOTION, text) == expected


@pytest.mark.parametrize(
    "text", ["exd6", "exd6 e.p.", "exd6ep", "exd6 (e.p.)", "e5d6", "e5xd6", "exd6 ep!", "ed6"]
)
def test_en_passant_is_read_with_and_without_its_mark(text: str) -> None:
    assert read(EN_PASSANT, text) == "e5d6"


# --- what stands around a move -------------------------------------------------------------------

FRAMES = [
    "{}",
    " {}",
    "{}\n",
    "\t{}\r\n",
    "{}.",
    "{},",
    "{}!",
    "{}?!",
    "{}!!",
    "{}+",
    "{}#",
    "{}++",
    "{}+!?",
    "'{}'",
    '"{}"',
    "`{}`",
    "**{}**",
    "_{}_",
    "“{}”",
    "«{}»",
    "1. {}",
    "1.{}",
    "12... {}",
    "7… {}",
    "...{}",
    "1. ... {}",
    "3) {}",
    "{} $1",
    "{}†",
    "{}±",
    "{} mate",
    "{} check",
    "({})",
    "[{}]",
    "[ {} ]",
    "<move>{}</move>",
    "<MOVE> {} </MOVE>",
    "\u200b{}\ufeff",
    "\u00a0{}\u00a0",
    "<think>I see e2e3.</think>{}",
    "<think>\nNf3? no, d2d3\n</think>\n\n{}\n",
    "It was in the prompt e2e3 </think> {}",
    "<THINK>a2a3</THINK> {}",
    "<thinking>a2a3 h2h3</thinking>\n{}",
    "[THINK]a2a3[/THINK]{}",
    "◁think▷b2b3◁/think▷{}",
    "{}<think>was it good? a2a3",
    "<think>a2a3</think>{}<think>h2h3</think>",
    "Let me see.\n<move>{}</move>\nDone.",
    "{}" + " " * 500,
    "I choose <move>{}</move>, surely <move> {} </move>",
]
UCI_FRAMES = [
    "My move: {}",
    "I play {}.",
    "The best is:\n\n{}",
    "{} wins.",
    "move={}",
    "({}) is mine",
    "{}; that is {}.",
]


@pytest.mark.parametrize("frame", FRAMES, ids=ascii)
@pytest.mark.parametrize("text", ["g1f3", "G1F3", "Nf3", "♘f3", "Ng1f3", "Ng1-f3", "ｇ１ｆ３"])
def test_what_stands_around_a_move_is_ignored(frame: str, text: str) -> None:
    assert read(START, frame.format(*[text] * frame.count("{}"))) == "g1f3"


@pytest.mark.parametrize("frame", UCI_FRAMES, ids=ascii)
@pytest.mark.parametrize("text", ["g1f3", "G1F3"])
def test_a_bare_uci_word_in_a_sentence_is_read(frame: str, text: str) -> None:
    assert read(START, frame.format(*[text] * frame.count("{}"))) == "g1f3"


@pytest.mark.parametrize("text", ["e4", "Pe4", "e2-e4", "Pe2-e4", "E2E4", "e2e4", "1.e4"])
def test_a_pawn_move_is_read_with_and_without_its_letter(text: str) -> None:
    assert read(START, text) == "e2e4"


# --- no move, or more than one -------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\n\n",
        "I resign",
        "a1a9",
        "i1a1",
        "a0a1",
        "e",
        "move",
        "...",
        "\x00",
        "\ud800",
        "♞",
        "{}",
        "e4 e5",
        "Ng",
        "e2e4e5",
        "xe2e4x",
        "9e2e4",
        "<move></move>",
        "[]",
        "<think>e2e4",
        "<think>e2e4</think>",
        "e2e4</think>",
        "Nf3 is nice",
        "knight to f3",
        '{"tool": "move", "arguments": {}}',
        "e2 e4",
        "e2е4",
    ],
    ids=ascii,
)
def test_text_without_a_move_is_malformed(text: str) -> None:
    assert read(START, text) == "malformed"


@pytest.mark.parametrize(
    "text",
    [
        "e2e5",
        "e2",
        "Kg1",
        "a1h8",
        "a1a8",
        "e7e5",
        "Nd4",
        "Ke2",
        "O-O",
        "e5",
        "exd5",
        "[e2e5]",
        "I play e2e5",
        "H7H5",
    ],
)
def test_a_move_that_cannot_be_made_here_is_illegal(text: str) -> None:
    assert read(START, text) == "illegal"


@pytest.mark.parametrize(
    "text",
    [
        "e2e4 or d2d4",
        "[e2e4] [d2d4]",
        "<move>e2e4</move><move>d2d4</move>",
        "e2e4, then e7e5",
        "<move>e4</move> <move>e2e5</move>",
        "not e2e5 but e2e4",
        "[Nf3] [Nc3]",
        "e2e5 e2e6",
    ],
)
def test_two_different_moves_in_one_form_are_none(text: str) -> None:
    assert read_move(chess.Board(), text) == Reading("malformed", None, "", "more than one move was given")


@pytest.mark.parametrize(
    "text",
    [
        "e2e4 E2E4 e2e4",
        "<move>e4</move><move>e2e4</move>",
        "[e2e4] [e4]",
        "<move>e2e4</move> not [d2d4] nor g1f3",
        "[e2e4] rather than d2d4",
        "<move>hm</move> [e2e4]",
        "<move></move> [nothing] e2e4",
    ],
)
def test_the_first_form_that_holds_a_move_decides(text: str) -> None:
    assert read(START, text) == "e2e4"


@pytest.mark.parametrize(
    ("text", "outside"),
    [
        ("a", "a"),
        ("<think>a</think>b", "b"),
        ("<think>a", ""),
        ("a</think>b", "b"),
        ("a<think>b", "a"),
        ("a<think>b</think>c", "a\nc"),
        ("<think>a<think>b</think>c", "c"),
        ("<think>a</think>b</think>c", "c"),
        ("<thinker>a</thinker>", "<thinker>a</thinker>"),
        ("< think >a< /think >b", "b"),
        ("<Reasoning>a</Reasoning>b", "b"),
        ("<scratchpad>a</scratchpad>b", "b"),
        ("", ""),
    ],
)
def test_text_inside_thinking_tags_is_no_answer(text: str, outside: str) -> None:
    assert strip_thinking(text) == outside


@pytest.mark.parametrize(
    ("text", "read_as"),
    [
        ("e2e4", "e2e4"),
        (" e7e8q\n", "e7e8q"),
        ("0000", "0000"),
        ("e1e1", "e1e1"),
        ("E2E4", None),
        ("e2e4.", None),
        ("e4", None),
        ("", None),
        ("--", None),
        ("e7e8k", None),
        ("e2e4 e2e4", None),
        ("[e2e4]", None),
        ("ｅ２ｅ４", None),
    ],
)
def test_the_papers_reading_is_one_lower_case_uci_move(text: str, read_as: str | None) -> None:
    assert strict_uci(text) == read_as


# --- properties ----------------------------------------------------------------------------------

CHESSLIKE = st.text("abcdefgh12345678NBRQKOo0x-=+#.[]<>/ movethink", max_size=24)
PIECES = st.sampled_from(
    [
        "<move>",
        "</move>",
        "<think>",
        "</think>",
        "[",
        "]",
        "e2e4",
        "Nf3",
        "O-O",
        "a7a8",
        "0000",
        " ",
        "\ud800",
    ]
)
TEXTS = (
    st.text(st.characters(), max_size=80) | CHESSLIKE | st.lists(PIECES | CHESSLIKE, max_size=8).map("".join)
)


@settings(max_examples=400)
@given(st.sampled_from(STARTS), TEXTS)
def test_reading_is_total_and_gives_only_legal_moves_and_leaves_the_board(fen: str, text: str) -> None:
    board = chess.Board(fen)
    reading = read_move(board, text)
    assert (reading.kind == "move") == (reading.move is not None)
    assert reading.move is None or (reading.move and reading.move in board.legal_moves)
    assert (board.fen(), board.move_stack) == (chess.Board(fen).fen(), [])
    assert read_move(board, text) == reading


def test_every_legal_move_is_read_back_from_every_way_to_write_it() -> None:
    figurines = str.maketrans("KQRBN", "♔♕♖♗♘")
    for number, board in enumerate(played(games=1, plies=30)):
        for move in list(board.legal_moves)[number % 3 :: 3]:
            san, uci = board.san(move), move.uci()
            forms = [
                uci,
                uci.upper(),
                san,
                board.lan(move),
                san.rstrip("+#"),
                san.translate(figurines),
                f"[{uci}]",
            ]
            forms += [
                f"<think>a1a2 {uci}</think> So: {uci}",
                f"<move>{san}</move>",
                f"4... {san}!",
                f"I play {uci}.",
            ]
            for form in forms:
                assert read_move(board, form).move == move, (board.fen(), form)


ADVERSARIAL = {
    "brackets": "[" * 1_000_000,
    "open tags": "<move>" * 160_000,
    "tags": "<move>e</move>" * 70_000,
    "different tags": "".join(f"<move>{i}</move>" for i in range(60_000)),
    "thinking": "<think>" * 140_000,
    "thoughts": "<think>a</think>" * 60_000,
    "closed": "</think>" * 120_000,
    "squares": "a1" * 500_000,
    "moves": "e2e4 " * 200_000,
    "illegal": "e2e5 " * 200_000,
    "blanks": " " * 1_000_000,
    "numbers": "1." * 500_000,
    "surrogates": "\ud800" * 1_000_000,
    "castles": "O-" * 500_000,
    "long tags": f"<move>{'ep.' * 12}x</move>" * 18_000,
    "plus": f"<move>{'+ ' * 19}x</move>" * 18_000,
    "brackets inside": "[e2 e4 + + + + + x]" * 50_000,
    "all moves": " ".join(a + b for a, b in product(chess.SQUARE_NAMES, repeat=2)) * 50,
    "angles": "< think " * 120_000,
    "wide": "ﷺ" * 300_000,
}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_a_megabyte_of_anything_is_read_in_linear_time(
    name: str, cpu_within: Callable[[float], AbstractContextManager[None]]
) -> None:
    with cpu_within(3):
        read_move(chess.Board(), ADVERSARIAL[name])


@pytest.mark.parametrize("unit", ["ep.", "+ ", "e.p.", "check ", "(", "1.", "♞", "O-", "$1", ". ."])
def test_a_short_text_never_takes_long_to_clean(
    unit: str, cpu_within: Callable[[float], AbstractContextManager[None]]
) -> None:
    with cpu_within(0.1):
        for ending in ("x", "", "é"):
            read_move(chess.Board(), (unit * 60)[:59] + ending)


def assert_as_python_chess(board: chess.Board) -> None:
    assert legal_moves(board) == sorted((move.uci(), board.san(move)) for move in board.legal_moves), (
        board.fen()
    )
    fen, rows = describe_board(board)
    assert (fen, "\n".join(" ".join(row) for row in rows)) == (board.fen(), str(board))


def test_moves_and_board_are_written_as_python_chess_does_in_every_mini_position() -> None:
    for fen in mini():
        assert_as_python_chess(chess.Board(fen))


def test_moves_and_board_are_written_as_python_chess_does_in_random_games() -> None:
    seen = set()
    for board in played(games=5):
        assert_as_python_chess(board)
        moves = list(board.legal_moves)
        seen |= {"promotion"} if any(m.promotion for m in moves) else set()
        seen |= {"en passant"} if any(board.is_en_passant(m) for m in moves) else set()
        seen |= {"castling"} if any(board.is_castling(m) for m in moves) else set()
        seen |= {"check"} if board.is_check() else set()
        seen |= {"mate"} if board.is_checkmate() else set()
        seen |= {"pin"} if any(board.is_pinned(board.turn, m.from_square) for m in moves) else set()
    assert seen == {"promotion", "en passant", "castling", "check", "mate", "pin"}


@pytest.mark.parametrize("word", ["a7a8=N", "a7a8/N", "a7a8(N)", "A7A8N", "a7a8n"])
def test_a_promotion_in_a_sentence_keeps_its_piece(word: str) -> None:
    board = chess.Board("4k3/P7/8/8/8/8/8/4K3 w - - 0 1")
    sentence = f"After some thought about this long endgame position I will play {word}, of course."
    assert read_move(board, sentence).move == chess.Move.from_uci("a7a8n")
