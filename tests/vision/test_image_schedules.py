"""Random companies of texts with images and without: each text is what it is alone, to the token."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import seeing_models
from conftest import HAS_NATIVE
from seeing_models import END, PLACE, START, Seeing, picture
from tiny_tokenizers import tiny_tokenizer

from ipex_assist.api import load
from ipex_assist.generation.pictured import PicturedPrompt

pytestmark = pytest.mark.skipif(not HAS_NATIVE, reason="texts share passes on the native core alone")
VARIANTS = [each for each in ("qwen3-vl", "gemma3-seeing", "mistral3") if each in seeing_models.VARIANTS]
QUICK, ALL = 12, 110  # schedules of each
LONGEST = 24
EVENTS = 40


def prompts(seeing: Seeing) -> list[PicturedPrompt]:
    """Texts and images that begin alike, longer than a block of the cache, and short ones."""
    rng = random.Random(1)
    long = [rng.randrange(3, 150) for _ in range(230)]
    pages = [picture(rng.randrange(9, 40), rng.randrange(9, 40), seed) for seed in range(4)]
    made = []
    for number in range(12):
        own = [rng.randrange(3, 150) for _ in range(rng.randrange(4, 60))]
        begun = long if number % 3 else long[: rng.randrange(1, 90)]
        shown = rng.sample(pages, rng.choice((0, 1, 1, 2)))
        tokens = [*begun, *(each for _ in shown for each in (START, PLACE, END)), *own]
        made.append(PicturedPrompt(*seeing.prompt(tokens, shown)))
    return made


class Company:
    """A model with room for a few texts, and what each prompt gives alone."""

    def __init__(self, model: Any, asked: list[PicturedPrompt]) -> None:
        self.model, self.asked = model, asked
        self.alone = [self._run([self._begin(each, LONGEST, assisted=False)])[0] for each in asked]

    def _begin(self, prompt: PicturedPrompt, count: int, **more: Any) -> Any:
        return self.model.stream(prompt, max_new_tokens=count, ignore_eos=True, **more)

    def _run(self, running: list[Any]) -> list[list[int]]:
        for each in running:
            for _ in each:
                pass
        return [list(each.result().tokens) for each in running]

    def play(self, seed: int) -> None:
        """Begin, step, pause, go on and give up by chance; then let all end."""
        rng = random.Random(seed)
        begun: list[tuple[int, int, Any]] = []
        paused: set[int] = set()
        given_up: set[int] = set()
        for _ in range(EVENTS):
            place = rng.randrange(len(begun)) if begun else -1
            event = rng.random()
            if place < 0 or event < 0.15:
                which, count = rng.randrange(len(self.asked)), rng.randrange(1, LONGEST + 1)
                more = {"assisted": rng.random() < 0.6}
                begun.append((which, count, self._begin(self.asked[which], count, **more)))
            elif event < 0.22 and place not in given_up:
                begun[place][2].interrupt()
                given_up.add(place)
            elif event < 0.32 and place not in given_up:
                (begun[place][2].resume if place in paused else begun[place][2].pause)()
                paused ^= {place}
            else:
                self.model.step()
                for place, (_, _, each) in enumerate(begun):
                    if place not in paused | given_up and each.in_hand() and rng.random() < 0.7:
                        next(each, None)
        for place in paused - given_up:
            begun[place][2].resume()
        for place, (which, count, each) in enumerate(begun):
            found = list(each.result().tokens) if place in given_up else self._run([each])[0]
            wanted = self.alone[which][:count]
            assert found == (wanted[: len(found)] if place in given_up else wanted), f"prompt {which} of seed {seed}"


@pytest.fixture(scope="module", params=VARIANTS)
def company(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Company]:
    seeing = Seeing.save(tmp_path_factory.mktemp("model"), request.param)
    tiny_tokenizer().save_pretrained(seeing.folder)
    with load(seeing.folder, "lookup", precision="fp32", executor="native", kv_memory="2M") as model:
        yield Company(model, prompts(seeing))
        assert model.engine_stats is not None
        assert model.engine_stats.preempted, "there was memory for all"


@pytest.mark.parametrize("part", range(QUICK))
def test_a_few(company: Company, part: int) -> None:
    """What finds nearly every mistake."""
    company.play(part)


@pytest.mark.full
def test_many(company: Company) -> None:
    """More than 300 with all families together."""
    for seed in range(QUICK, ALL):
        company.play(seed)
