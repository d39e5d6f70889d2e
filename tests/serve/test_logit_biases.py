"""Biases of tokens: thousands of them are checked once, however many texts a request asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ipex_assist.env.options import Number, TokenNumbers
from ipex_assist.serve.backend import GenerationRequest
from ipex_assist.serve.engine_slot import ActiveRequest
from ipex_assist.speculative.options import DraftOptions, GenerationOptions

pytestmark = pytest.mark.one_stack

BIASES = {str(token): -1.5 for token in range(200)}


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The biases that were checked, as often as they were."""
    seen: list[Any] = []
    real = Number.take

    def take(self: Number, value: Any) -> Any:
        if value == -1.5:
            seen.append(value)
        return real(self, value)

    monkeypatch.setattr(Number, "take", take)
    return seen


@pytest.mark.parametrize(
    ("path", "asked", "texts"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "n": 50, "seed": 1}, 50),
        ("/v1/completions", {"prompt": ["a"] * 20, "n": 3, "seed": 1}, 60),
    ],
)
def test_each_is_checked_once(client, backend, checked, path, asked, texts):
    answer = client.post(path, json=asked | {"logit_bias": BIASES, "max_tokens": 2})
    assert answer.status_code == 200
    assert len(checked) == len(BIASES)
    assert len({request.options.seed for request in backend.requests}) == asked["n"]
    assert len(backend.requests) == texts
    assert all(request.options.logit_bias == {int(key): -1.5 for key in BIASES} for request in backend.requests)


def test_an_engine_is_given_them_unchecked(checked):
    options = GenerationOptions(logit_bias={1: -1.5, 2: -1.5}, do_sample=True)
    assert len(checked) == 2
    active = ActiveRequest.of(GenerationRequest([1], options), DraftOptions(num_assistant_tokens=3))
    assert active.options.num_assistant_tokens == 3
    assert active.options.logit_bias == {1: -1.5, 2: -1.5}
    assert len(checked) == 2


def test_what_another_option_has_taken_is_checked():
    """Its bounds may be wider."""
    wide = TokenNumbers(Number(-1000, 1000)).take({1: -500})
    with pytest.raises(ValueError, match="between -100 and 100"):
        TokenNumbers(Number(-100, 100)).take(wide)
    options = GenerationOptions(logit_bias={1: 2})
    assert replace(options, seed=3) == GenerationOptions(logit_bias={1: 2}, seed=3)
    assert GenerationOptions.of(**options.as_dict()) == options
