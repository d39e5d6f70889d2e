"""How the tokens after a pass's rows are chosen, as plain numbers: what a model needs to choose them itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

LOGIT_EDIT = np.dtype([("token", "<i4"), ("bias", "<f4"), ("seen", "<i4"), ("generated", "<i4")])
LogitEdits: TypeAlias = "NDArray[Any]"  # (edits,) of LOGIT_EDIT, by ascending tokens


class SamplingRule(NamedTuple):
    """How tokens of a request are chosen, by numbers alone; speculative/choosing/sampling.py says what they mean.

    temperature: 0 takes the likeliest token. top_k: 0 keeps all.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


class RowChoice(NamedTuple):
    """How the token after one row is chosen.

    position: of the output token, part of the noise's key. edits: biases, and tokens that penalties are for. mask:
    (vocab,) which tokens may be chosen; None: all. keep_logits: return the row's logits as well. following: drafted
    tokens, of which penalties count the first `counted` beside `edits`.
    """

    rule: SamplingRule = SamplingRule()
    position: int = 0
    edits: LogitEdits | None = None
    mask: NDArray[np.bool_] | None = None
    keep_logits: bool = False
    following: Sequence[int] = ()
    counted: int = 0

    @property
    def is_rule_alone(self) -> bool:
        """Whether there are neither edits nor a mask, and no logits are asked for."""
        return self.edits is None and self.mask is None and not self.keep_logits


class SampledRows(NamedTuple):
    """A token for each row, and its logits (vocab,) where they were asked for, before edits and masks.

    The token -1 stands for logits with NaN or infinity, and for a row of which no token may be chosen. Logits are valid
    until the model's next pass.
    """

    tokens: list[int]
    logits: list[NDArray[np.float32] | None]
