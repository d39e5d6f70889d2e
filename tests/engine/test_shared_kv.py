"""Models whose later layers read the keys and values of earlier ones: what is kept, found again and drafted for."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import tiny_models
from conftest import HAS_NATIVE
from test_engine import SCHEDULES, Pair, clients_of
from test_recurrent import play_turns

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.engine.chunk_sizes import EngineLimits
from ipex_assist.executors.kv_memory import KvMemory
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.native.model import NativeModel

VARIANTS = tiny_models.known("gemma4", "gemma4-everything")
POSITIONS = 256

pytestmark = [
    pytest.mark.one_stack,
    pytest.mark.skipif(not (HAS_NATIVE and VARIANTS), reason="of the native core, and of today's transformers"),
]


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A target and the same weights in int4, which share a memory."""
    path: Path = tmp_path_factory.mktemp("shared")
    tiny_models.save(path, request.param, max_position_embeddings=2048)
    checkpoint, memory = open_checkpoint(str(path)), KvMemory(1 << 28)
    return Pair(*(load_model(LoadRequest(checkpoint, each, "native", kv_memory=memory)) for each in ("int8", "int4")))


def test_shared_layers_take_no_memory(pair: Pair) -> None:
    """Layers 3 to 5 read those of layers 1 and 2: three layers take blocks, and three are counted."""
    assert isinstance(pair.target, NativeModel)
    attentions = [layer.attention for layer in pair.target.spec.layers]
    assert [each.kv_layer is None for each in attentions] == [True] * 3 + [False] * 3
    own = attentions[:3]
    # In the core a key is padded to 32 values.
    padded = sum(each.kv_heads * (-(-each.head_dim // 32) * 32 + each.head_dim) for each in own)
    assert pair.target.block_bytes == POSITIONS * 2 * padded
    assert pair.target.spec.kv_bytes_per_token(2) == 4 * sum(each.kv_heads * each.head_dim for each in own)


@pytest.mark.parametrize("draft", ["none", "both"])
def test_every_text_is_as_alone(pair: Pair, draft: str) -> None:
    """Requests that come and go, in chunks of prompts that end before the shared layers, and go on in a
    second turn.
    """
    prefix_tokens = accepted = 0
    for seed in range(max(3, SCHEDULES)):
        chance = random.Random(f"{seed} {draft}")
        clients = clients_of(chance, 16, 200)
        engine = pair.engine(draft, EngineLimits(requests=chance.randrange(2, 16), rows=chance.choice((17, 40, 512))))
        play_turns(engine, pair, chance, clients)
        prefix_tokens += engine.stats.prefix_tokens
        accepted += engine.stats.accepted
        engine.close()
    assert prefix_tokens > 0
    assert accepted > 0 or draft == "none"
