"""The search call: what can be asked, held within bounds, and how mistakes are answered."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_envs.core import ToolCall, parse_action
from whale_envs.search_qa.tools import EMPTY_QUERY, Search, call_text, read_call, result_text


def read(**arguments: Any) -> Search | str:
    return read_call(ToolCall("search", arguments), topk=3, max_doc_tokens=200)


def test_a_query_is_taken_with_the_harness_s_defaults() -> None:
    assert read(query="Oslo") == Search("Oslo", 3, 200)


def test_of_a_query_list_the_first_is_taken() -> None:
    assert read(query_list=["Oslo", "Bergen"]) == read(query_list="Oslo") == Search("Oslo", 3, 200)


@pytest.mark.parametrize(("asked", "got"), [(0, 1), (-5, 1), (1, 1), (10, 10), (11, 10), (10**30, 10)])
def test_what_is_asked_for_is_held_within_bounds(asked: int, got: int) -> None:
    assert read(query="Oslo", topk=asked) == Search("Oslo", got, 200)


def test_nobody_gets_more_tokens_than_the_bound() -> None:
    assert read(query="Oslo", max_doc_tokens=10**6) == Search("Oslo", 3, 1_024)


@pytest.mark.parametrize("query", ["", " ", "\n\t", "\u00a0"])
def test_an_empty_query_is_said_to_be_one(query: str) -> None:
    assert read(query=query) == EMPTY_QUERY


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, 'needs "query"'), ({"query": 7}, 'needs "query"'), ({"query": None}, 'needs "query"'),
        ({"query_list": []}, 'needs "query"'), ({"query_list": [7]}, 'needs "query"'),
        ({"query": "x", "topk": "3"}, "topk must be an integer from 1 to 10"),
        ({"query": "x", "topk": True}, "topk must be an integer"),
        ({"query": "x", "max_doc_tokens": 1.5}, "max_doc_tokens must be an integer from 1 to 1024"),
        ({"query": "x", "lang": "en"}, "takes only query, topk and max_doc_tokens, not lang"),
    ],
)  # fmt: skip
def test_a_call_that_cannot_be_made_says_why(arguments: dict[str, Any], said: str) -> None:
    found = read(**arguments)
    assert isinstance(found, str)
    assert said in found


def test_another_tool_is_named() -> None:
    found = read_call(ToolCall("browse", {}), topk=1, max_doc_tokens=1)
    assert found == "[unknown tool 'browse'; the only tool is search]"


@given(st.text())
def test_a_query_survives_the_action(query: str) -> None:
    if any("\ud800" <= c <= "\udfff" for c in query):
        return
    call = parse_action(call_text(query))
    assert isinstance(call, ToolCall)
    assert call.arguments == {"query": query}
    assert json.loads(result_text(query)) == {"result": query}
