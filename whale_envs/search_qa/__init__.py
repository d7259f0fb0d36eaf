"""SearchQA: examples, corpora, verifier, tool and environment of the domain."""

from whale_envs.search_qa.env import ENV_ID, Judge, Judgement, SearchQAEnv
from whale_envs.search_qa.examples import SIZES, SearchQuestion, load_examples, make_question
from whale_envs.search_qa.normalise import exact_match, stands_in, token_f1
from whale_envs.search_qa.verifier import read_answer, verify

ENV = SearchQAEnv

__all__ = [
    "ENV",
    "ENV_ID",
    "SIZES",
    "Judge",
    "Judgement",
    "SearchQAEnv",
    "SearchQuestion",
    "exact_match",
    "load_examples",
    "make_question",
    "read_answer",
    "stands_in",
    "token_f1",
    "verify",
]
