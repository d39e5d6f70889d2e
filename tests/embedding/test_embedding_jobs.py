"""Jobs that share passes: a text's vector has the same bits whatever is read beside it, and nobody waits for others."""

from __future__ import annotations

import random
from pathlib import Path

import embedding_folders as folders
import numpy as np
import pytest
from conftest import HAS_NATIVE

from ipex_assist.embedding.decoder import DecoderEmbedder
from ipex_assist.embedding.facts import EncodedText
from ipex_assist.embedding.jobs import JOB_TEXTS, JOB_TOKENS, EmbeddingInputs, in_jobs
from ipex_assist.embedding.loading import load_embedder
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.native.library import unavailable

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")]


def embedder(
    folder: Path, pooling: str, precision: str = "bf16", kv_memory: int = 64 << 20, model_type: str = "qwen3"
) -> DecoderEmbedder:
    """One that reads long texts."""
    place = folder / f"{model_type}-{pooling}"
    if not place.exists():
        folders.write_modules(folders.write_model(place, model_type, max_position_embeddings=2048), pooling)
    options = LoadOptions.of(
        target=str(place), precision=precision, executor="native", kv_memory=kv_memory, cache_packed=False, offline=True
    )
    model = load_embedder(options, "embed")
    assert isinstance(model, DecoderEmbedder)
    return model


def text(seed: int, length: int) -> EncodedText:
    draw = random.Random(seed)
    return EncodedText([draw.randrange(300) for _ in range(length)])


@pytest.mark.parametrize(("pooling", "precision"), [("lasttoken", "bf16"), ("mean", "int8"), ("weightedmean", "fp32")])
def test_bits_do_not_depend_on_company(pooling: str, precision: str, tmp_path: Path) -> None:
    """Another kernel for more rows, a sum in the order of passes, a prefix that is shared with the wrong text, a text
    that went on at the wrong place after its job was set aside, one that was forgotten when another was given up."""
    model, draw = embedder(tmp_path, pooling, precision), random.Random(1)
    start = text(0, 70).tokens  # of half of all texts, which then share its reading
    texts = [text(seed, draw.choice((1, 2, 5, 17, 60, 255, 256, 257, 700))) for seed in range(40)]
    texts = [EncodedText(start + each.tokens) if i % 2 else each for i, each in enumerate(texts)]
    alone = [model.embed([each])[0].tobytes() for each in texts]
    for seed, model.model.pass_rows in enumerate((256, 256, 1000, 4096)):
        draw = random.Random(seed)
        order = draw.sample(range(len(texts)), len(texts))
        cuts = sorted(draw.sample(range(1, len(texts)), 6))
        parts = [order[first:end] for first, end in zip([0, *cuts], [*cuts, len(order)], strict=True)]
        jobs = [(part, model.begin([texts[index] for index in part])) for part in parts]
        given_up = model.begin([text(99, 300), text(98, 20)])
        paused = None
        for step in range(500):
            if step == 2:
                given_up.interrupt()
            if step % 5 == 1 and step < 40 and (running := [job for _, job in jobs if not job.finished]):
                paused = draw.choice(running)
                paused.pause()
            if paused is not None and step % 5 == 3:
                paused.resume()
            if not model.step() and not model.jobs:
                break
        for part, job in jobs:
            assert job.error is None
            assert [vector.tobytes() for vector in job.result().vectors] == [alone[index] for index in part]
    assert not model.jobs
    assert not model._readings
    assert model.engine_stats.prompt_tokens > 0


def test_a_common_beginning_is_read_once(tmp_path: Path) -> None:
    """The query of a rerank request, read again for each of its documents."""
    model = embedder(tmp_path, "lasttoken")
    start = text(0, 200).tokens
    model.embed([EncodedText(start + text(seed, 10).tokens) for seed in range(1, 20)])
    assert model.engine_stats.prompt_tokens == 200 + 19 * 10


def test_a_short_text_waits_for_no_long_ones(tmp_path: Path) -> None:
    """Texts that are read in the order of their arrival, whole."""
    model = embedder(tmp_path, "mean")
    long = [model.begin([text(seed, 2000) for seed in range(4)]) for _ in range(3)]
    for _ in range(4):
        model.step()
    short = model.begin([text(9, 30)])
    model.step()
    assert short.finished
    assert not any(job.finished for job in long)
    for job in long:
        job.interrupt()
    assert not model.step()


def test_little_memory_is_shared(tmp_path: Path) -> None:
    """Texts that hold blocks and wait for each other's, or that fail where they could have waited."""
    model = embedder(tmp_path, "lasttoken")
    texts = [text(seed, 20 + 250 * (seed % 3)) for seed in range(24)]
    expected = [vector.tobytes() for vector in model.embed(texts)]
    small = embedder(tmp_path, "lasttoken", kv_memory=4 * model.model.block_bytes + 1)  # type: ignore[attr-defined]
    pool = small.kv_blocks
    assert pool is not None
    assert pool.count < 6
    jobs = [small.begin(texts[first : first + 6]) for first in range(0, 24, 6)]
    found = [vector.tobytes() for job in jobs for vector in job.run()]
    assert found == expected
    with pytest.raises(UsageError, match=r"memory for \d+: shorten the text"):
        small.begin([text(1, 2000)])
    assert pool.free == pool.count


def test_no_numbers_are_an_error_of_one_job(tmp_path: Path) -> None:
    """NaN as a vector; a job that fails beside another."""
    model = embedder(tmp_path, "mean")
    finish, wrong = model._finish, text(3, 40)
    right, failing = model.begin([text(1, 40)]), model.begin([wrong])
    model._finish = lambda vector: finish(vector) if vector.tobytes() == expected else vector * np.float32(np.nan)
    expected = b""
    with pytest.raises(IpexAssistError, match="NaN or infinity"):
        failing.run()
    with pytest.raises(IpexAssistError, match="NaN or infinity"):
        right.run()
    model._finish = finish
    assert np.isfinite(model.embed([wrong])[0]).all()
    assert model.engine_stats.failed == 2


def test_wrong_texts_are_refused(tmp_path: Path) -> None:
    """An index error in the core, a text cut in silence."""
    model = embedder(tmp_path, "mean")
    for wrong, words in (
        (EncodedText([]), "empty"),
        (EncodedText([1, 320]), "id 320"),
        (text(1, 2049), "2,049 tokens"),
        (EncodedText([1, 2], skip=2), "after its prompt"),
    ):
        with pytest.raises(UsageError, match=words):
            model.begin([text(1, 3), wrong])
    assert not model.jobs


def test_texts_survive_the_way_to_an_engine() -> None:
    """Types or skipped tokens of another text; a job that is too large."""
    texts = [EncodedText([5, 6], 1), EncodedText([7], 0, [1]), text(1, JOB_TOKENS + 1), *[text(2, 1)] * JOB_TEXTS]
    jobs = in_jobs(texts)
    assert [len(job) for job in jobs] == [2, 1, JOB_TEXTS]
    assert [index for job in jobs for index in job] == list(range(len(texts)))
    tokens, inputs = EmbeddingInputs.of(texts[:2])
    assert inputs.texts(tokens) == [EncodedText([5, 6], 1, [0, 0]), texts[1]]
