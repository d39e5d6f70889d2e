"""Texts about images from Python: greedy tokens of transformers, drafts, the prefix cache, and who is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import draft_heads
import numpy as np
import pytest
import seeing_models
import tiny_models
import torch
from conftest import HAS_NATIVE
from seeing_models import END, PLACE, START, Seeing, picture
from tiny_tokenizers import tiny_tokenizer

from ipex_assist.api import load
from ipex_assist.env.errors import UsageError

pytestmark = pytest.mark.skipif(not HAS_NATIVE, reason="texts share passes on the native core alone")
ASKED = [3, 17, START, PLACE, END, 42, 77, 101]
SMALL, OTHER = picture(16, 16), picture(16, 16, 5)


@pytest.fixture(scope="module", params=["qwen2.5-vl", "qwen3-vl", "qwen3.5-seeing"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tiny model that sees, with its folder and reference."""
    if request.param not in seeing_models.VARIANTS:
        pytest.skip("this release of transformers does not have the family")
    seeing = Seeing.save(tmp_path_factory.mktemp("model"), request.param)
    tiny_tokenizer().save_pretrained(seeing.folder)
    with load(seeing.folder, "lookup", precision="fp32", executor="native", kv_memory="64M") as loaded:
        yield loaded, seeing


def ids(result: Any) -> list[int]:
    return list(result.tokens)


def test_greedy_tokens_equal_transformers(model: Any) -> None:
    """With drafts by lookup and without, alone and with others beside it."""
    loaded, seeing = model
    expanded, _ = seeing.prompt(ASKED, [SMALL])
    inputs = seeing.inputs(expanded, [SMALL])
    seeing.reference.model.rope_deltas = None
    with torch.no_grad():
        whole = seeing.reference.generate(**inputs, max_new_tokens=24, do_sample=False, eos_token_id=None)[0].tolist()
    expected = whole[len(expanded) :]
    options = {"max_new_tokens": 24, "ignore_eos": True}
    plain = loaded.generate(ASKED, images=[SMALL], assisted=False, **options)
    assert ids(plain) == expected
    assert ids(loaded.generate(ASKED, images=[SMALL], **options)) == expected
    several = [loaded.stream(ASKED, images=[each], **options) for each in (SMALL, OTHER, SMALL)]
    several.append(loaded.stream([3, 17, 42], **options))
    for each in several:
        for _ in each:
            pass
    assert ids(several[0].result()) == ids(several[2].result()) == expected
    assert ids(several[1].result()) != expected, "another image, the same text"


@pytest.mark.parametrize("kind", ["mtp", "model", "lookup"])
def test_drafts_behind_images(kind: str, tmp_path: Path) -> None:
    """Whoever drafts sees placeholders; the text is the plain one, greedy and drawn, alone and beside others."""
    if "qwen3.5-seeing" not in seeing_models.VARIANTS:
        pytest.skip("this release of transformers does not have the family")
    kinds = [*["linear_attention"] * 3, *["full_attention"] * 2]
    draft_heads.save_mtp(tmp_path / "target", "qwen3.5-seeing", {"mtp_num_hidden_layers": 1}, layer_types=kinds)
    config = tmp_path / "target" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | seeing_models.TOKENS))
    tiny_models.save(tmp_path / "small", "llama")
    for name in ("target", "small"):
        tiny_tokenizer().save_pretrained(tmp_path / name)
    (tmp_path / "target" / "preprocessor_config.json").write_text(json.dumps(seeing_models.PROCESSOR))
    assistant = {"model": str(tmp_path / "small")}.get(kind, kind)
    asked = [*ASKED[:5], 9, *ASKED[2:5], *[7, 8, 9] * 6]
    with load(tmp_path / "target", assistant, precision="fp32", executor="native", kv_memory="64M") as model:
        for how in ({"do_sample": False}, {"do_sample": True, "seed": 5}):
            options = {"max_new_tokens": 24, "ignore_eos": True, "images": [picture(40, 24), OTHER], **how}
            plain = model.generate(asked, assisted=False, logprobs=0, **options)
            for count in (1, 3):
                drafted = model.generate(asked, num_assistant_tokens=count, logprobs=0, **options)
                assert drafted.draft.drafted, "nothing was drafted"
                assert drafted.tokens == plain.tokens
                assert drafted.logprobs == plain.logprobs
            several = [model.stream(asked, num_assistant_tokens=2, **options) for _ in range(3)]
            for each in several:
                for _ in each:
                    pass
                assert each.result().tokens == plain.tokens


def test_prefixes_know_images(model: Any) -> None:
    """An image is read again from the cache, and never another one for it."""
    loaded, _ = model
    wide = picture(40, 40, 9)  # 25 rows
    asked = [*range(5, 60), START, PLACE, END, *range(60, 90)]
    options = {"max_new_tokens": 24, "ignore_eos": True}
    first = loaded.generate(asked, images=[wide], **options)
    again = loaded.generate(asked, images=[wide], **options)
    assert again.cached_tokens > 80
    assert ids(again) == ids(first)
    other = loaded.generate(asked, images=[picture(40, 40, 10)], **options)
    assert other.cached_tokens <= 56
    assert ids(other) != ids(first)


def test_places_and_images_must_agree(model: Any) -> None:
    """Each in a sentence."""
    loaded, _ = model
    with pytest.raises(UsageError, match=r"1 places for images .* 2 images are given"):
        loaded.generate(ASKED, images=[SMALL, SMALL])
    with pytest.raises(UsageError, match="no image"):
        loaded.generate(ASKED, images=[b"no image"])
    with pytest.raises(UsageError, match="array of uint8"):
        loaded.generate(ASKED, images=[np.zeros((4, 4), np.float64)])
    with pytest.raises(UsageError, match="not given"):
        loaded.generate([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]}])
    with pytest.raises(UsageError, match="is refused"):
        loaded.generate(ASKED, images=[picture(900, 3)])


def test_a_model_without_eyes_says_so(tmp_path: Path) -> None:
    """Before anything is read."""
    tiny_models.save(tmp_path, "llama")
    tiny_tokenizer().save_pretrained(tmp_path)
    loaded = load(tmp_path, None, precision="fp32", executor="native", kv_memory="64M")
    with loaded, pytest.raises(UsageError, match="takes no images here"):
        loaded.generate([3, 4], images=[SMALL])
