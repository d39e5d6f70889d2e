"""Rows of images among tokens against transformers, in fp32: embeddings, positions on three axes and DeepStack."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import seeing_models
import tiny_models
import torch
from conftest import EXECUTORS, HAS_NATIVE
from seeing_models import END, PLACE, START, Seeing, picture

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.image_rows import ImageRows, PromptImages
from ipex_assist.executors.interface import Rows

TOLERANCE = 1e-4
SMALL, WIDE, TALL = picture(16, 16), picture(40, 9, 1), picture(18, 33, 2)
PROMPTS = {
    "one": ([3, 17, START, PLACE, END, 42, 77, 101], [SMALL]),
    "first": ([START, PLACE, END, 5, 63], [WIDE]),
    "two": ([3, START, PLACE, END, 9, 9, START, PLACE, END, 140, 8, 31], [WIDE, TALL]),
    "beside": ([90, START, PLACE, END, START, PLACE, END, 55, 2], [TALL, TALL]),
}
FOLLOWING = [88, 14, 3, 3, 127]
_folders: list[Any] = []


@functools.cache
def seeing(variant: str) -> Seeing:
    """A tiny model for all tests of this file."""
    folder = tempfile.TemporaryDirectory()
    _folders.append(folder)
    return Seeing.save(Path(folder.name), variant)


@functools.cache
def loaded(variant: str, executor: str) -> Any:
    """It on one of our executors."""
    return tiny_models.model(seeing(variant).folder, executor)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.float(), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("variant", seeing_models.VARIANTS)
def test_logits_equal_transformers(variant: str, executor: str, prompt: str) -> None:
    """All rows of a prompt with images, and of tokens behind them, whose positions are others than without images."""
    model, (tokens, pictures) = loaded(variant, executor), PROMPTS[prompt]
    tokens, images = seeing(variant).prompt(tokens, pictures)
    if images.whole and executor != "native":
        with pytest.raises(IpexAssistError, match="need the native executor"):
            model.new_sequence(512, len(tokens), images=images)
        return
    expected = seeing(variant).logits([*tokens, *FOLLOWING], pictures)
    sequence = model.new_sequence(512, len(tokens), images=images)
    close(model.extend(sequence, tokens, len(tokens)), expected[: len(tokens)])
    steps = torch.cat([model.extend(sequence, [token]) for token in FOLLOWING])
    close(steps, expected[len(tokens) :])


@pytest.mark.skipif(not HAS_NATIVE, reason="chunks are the native core's")
@pytest.mark.parametrize("variant", seeing_models.VARIANTS)
def test_a_rows_bits_do_not_depend_on_chunks_or_company(variant: str) -> None:
    """A border anywhere, in an image too; other prompts, with images and without, in the same passes; a rollback."""
    model = loaded(variant, "native")
    alone = []
    for tokens, pictures in PROMPTS.values():
        tokens, images = seeing(variant).prompt(tokens, pictures)
        whole = model.extend(model.new_sequence(512, len(tokens), images=images), tokens, len(tokens))
        alone.append((tokens, images, whole))
        for size in (1, 2, 5, 7):
            sequence, parts = model.new_sequence(512, len(tokens), images=images), []
            while sequence.length < len(tokens):
                start = sequence.length
                part = tokens[start : start + images.whole_rows(start, min(size, len(tokens) - start))]
                parts.append(model.extend(sequence, part, len(part)))
            assert torch.equal(torch.cat(parts), whole), f"chunks of {size}"
    plain = [3, 17, 150, 9, 42]
    expected = model.extend(model.new_sequence(512, len(plain)), plain, len(plain))
    rows = [Rows(model.new_sequence(512, len(t), images=i), t, len(t)) for t, i, _ in alone]
    rows.insert(1, Rows(model.new_sequence(512, len(plain)), plain, len(plain)))
    together = model.forward(rows)
    wanted = [whole for _, _, whole in alone]
    wanted.insert(1, expected)
    assert torch.equal(together, torch.cat(wanted))
    tokens, images, _ = alone[0]
    sequence = rows[0].sequence
    steps = torch.cat([model.extend(sequence, [token]) for token in FOLLOWING])
    forked = sequence.fork(len(tokens))
    assert torch.equal(model.extend(forked, FOLLOWING, len(FOLLOWING)), steps), "a draft that is verified at once"


def test_positions_behind_images() -> None:
    """Offsets that are forgotten, or counted twice, between images."""
    seen = seeing("qwen3-vl" if "qwen3-vl" in seeing_models.VARIANTS else "qwen2.5-vl")
    _, images = seen.prompt(*PROMPTS["two"])
    first, second = images.images
    whole = images.positions(0, second.end + 3)
    assert len(first.rows) == 5 * 1
    assert first.advance == 5
    assert len(second.rows) > second.advance
    assert [int(row[0]) for row in whole[second.end :]] == [
        second.end + images.shift(second.end) + place for place in range(3)
    ]
    for start in range(len(whole)):
        for count in (1, 3, 40):
            part = images.positions(start, count)
            assert (part[: len(whole) - start] == whole[start : start + count]).all()


def test_keys_tell_images_apart() -> None:
    """Placeholders that are the same for all images would give one image's answer for another."""
    seen = seeing("qwen2.5-vl")
    tokens, images = seen.prompt(*PROMPTS["beside"])
    other, others = seen.prompt(PROMPTS["beside"][0], [TALL, picture(18, 33, 7)])
    again, same = seen.prompt(*PROMPTS["beside"])
    assert tokens == other == again
    keys, theirs = images.keys(tokens), others.keys(tokens)
    assert keys == same.keys(tokens)
    second = images.images[1].first
    assert keys[:second] == theirs[:second]
    assert keys[second] != theirs[second]
    assert all((key < 0) == (token == PLACE) for key, token in zip(keys, tokens, strict=True))
    assert images.keys(tokens[: second - 2]) == keys[: second - 2]


def test_wrong_rows_are_refused() -> None:
    """Rows of another width would be read beyond their end."""
    seen, model = seeing("qwen2.5-vl"), loaded("qwen2.5-vl", EXECUTORS[-1])
    _, images = seen.prompt(*PROMPTS["one"])
    [image] = images.images
    narrow = ImageRows(2, image.rows[:, :32].copy(), b"", image.axes)
    with pytest.raises(IpexAssistError, match="each has 64 numbers"):
        model.new_sequence(64, images=PromptImages([narrow]))
    strided = ImageRows(2, image.rows[:, ::-1], b"", image.axes)
    with pytest.raises(IpexAssistError, match="contiguous"):
        model.new_sequence(64, images=PromptImages([strided]))
    with pytest.raises(IpexAssistError, match="another one up to"):
        PromptImages([image, image])
