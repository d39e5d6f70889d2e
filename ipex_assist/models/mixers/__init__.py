"""Recurrent mixers by the name of their kind: what each is made of, and what they have in common (mixer_kind.py)."""

from __future__ import annotations

from ipex_assist.models.mixers.gated_delta import GATED_DELTA
from ipex_assist.models.mixers.kimi_delta import KIMI_DELTA
from ipex_assist.models.mixers.mamba1 import MAMBA1
from ipex_assist.models.mixers.mamba2 import MAMBA2
from ipex_assist.models.mixers.mixer_kind import MixerKind
from ipex_assist.models.mixers.ngrams import NGRAM_ROWS
from ipex_assist.models.mixers.rg_lru import RG_LRU
from ipex_assist.models.mixers.short_conv import SHORT_CONV

# In the order of their numbers in the core: RecurrentKind in native/packing/spec.h, from 1 on.
MIXERS: dict[str, MixerKind] = {
    "gated_delta": GATED_DELTA,
    "mamba2": MAMBA2,
    "short_conv": SHORT_CONV,
    "kimi_delta": KIMI_DELTA,
    "mamba1": MAMBA1,
    "rg_lru": RG_LRU,
    "ngram_rows": NGRAM_ROWS,
}
