"""The native executor: a Model on the C++ core, one call a pass. It imports torch only to return logits."""

from __future__ import annotations

import ctypes
import threading
from collections import abc
from typing import TYPE_CHECKING

from ipex_assist.deferred_imports import torch_module
from ipex_assist.executors.adapters import AdapterChoice, AdapterMatrices
from ipex_assist.executors.image_rows import PromptImages, check_images
from ipex_assist.executors.interface import (
    DraftInput,
    HiddenRows,
    LogitsError,
    Meanwhile,
    Rows,
    RunSteps,
    Sequence,
    TokenLogprob,
    Tokens,
    truncate_or_clear,
)
from ipex_assist.executors.kv_memory import KvMemory
from ipex_assist.executors.native import drafting
from ipex_assist.executors.native.choices import CoreChoices, KeptLogits
from ipex_assist.executors.native.hidden import TappedRows
from ipex_assist.executors.native.kept_steps import KeptSteps
from ipex_assist.executors.native.passes import NativePasses
from ipex_assist.executors.native.prefixes import NativePrefixMemory
from ipex_assist.executors.native.segments import TokenSegment, cut_into_passes, lengthen
from ipex_assist.executors.native.sequence import NativeSequence
from ipex_assist.executors.recurrent_states import RecurrentState
from ipex_assist.executors.rope import Floats
from ipex_assist.executors.row_choice import RowChoice, SampledRows
from ipex_assist.native.adapter import PackedAdapter
from ipex_assist.native.batch_structures import TopTokens
from ipex_assist.native.model import PackedModel

if TYPE_CHECKING:
    import torch


class NativeModel(NativePasses):
    """A Model (see executors/interface.py) on the C++ core. Logits are fp32."""

    def __init__(self, packed: PackedModel, kv_memory: KvMemory | None = None, kv_precision: str | None = None) -> None:
        """kv_memory: shared with the models that this one runs beside. kv_precision: None is that of attention."""
        super().__init__(packed, kv_memory, kv_precision)
        self.adapters: dict[str, PackedAdapter] = {}
        self._kept = threading.local()  # logits that a thread asked for

    @property
    def experts_read(self) -> int:
        """Distinct experts that the last call's passes read, summed over layers; shared experts do not count."""
        return self.packed.experts_read if self.spec.experts else 0

    def add_adapter(self, name: str, matrices: abc.Iterable[AdapterMatrices]) -> None:
        """Have an adapter by this name, for `new_sequence`; sequences that have an earlier one keep it."""
        made = PackedAdapter(self.packed)
        for each in matrices:
            made.pack(each.name, each.a, each.b, each.scale)
        self.adapters[name] = made

    def prefix_memory(self) -> NativePrefixMemory:
        """The bytes of blocks and states, for a store of prefixes. Raises IpexAssistError as `blocks` does."""
        self.blocks  # noqa: B018  # makes the memory
        assert self.memory is not None
        return NativePrefixMemory(self.packed, self.memory, self.states_memory, self.kv_precision)

    def new_sequence(
        self,
        capacity: int,
        prompt_length: int | None = None,
        blocks: abc.Sequence[int] = (),
        state: RecurrentState | None = None,
        adapter: AdapterChoice | None = None,
        images: PromptImages | None = None,
    ) -> NativeSequence:
        """A sequence that may hold up to `capacity` tokens. Raises IpexAssistError where there is no memory.

        state: with `blocks`, the state after the tokens that they hold, which is copied. adapter: one of `adapters`.
        """
        if self.rotary is not None:
            self.rotary.reach(capacity + self.spare)
        made = NativeSequence(self, self.blocks, capacity, prompt_length, blocks, self.states, state, self.spare)
        if adapter is not None:
            made.adapter = self.adapters[adapter.name], adapter.scale
        if images is not None:
            check_images(self.spec, images, self.pass_rows)
            made.images = images
        return made

    def forward(
        self, rows: abc.Sequence[Rows], vocabulary: int | None = None, hidden: HiddenRows | None = None
    ) -> torch.Tensor:
        """Append tokens to each sequence; returns logits (sum of `last`, vocab) in the order of `rows`.

        hidden: gets hidden states of all rows. A draft head's logits are of the tokens that it tells apart.
        """
        segments = self.segments(rows)
        taps = TappedRows.of(hidden, self.spec, segments)
        logits = torch_module().empty(sum(each.last for each in rows), self.width)
        first = 0
        for group in cut_into_passes(segments, self.pass_rows):
            count = sum(segment.last for segment in group)
            self.append(group, logits[first : first + count].data_ptr(), vocabulary, taps)
            first += count
        return logits[:, : self.columns(vocabulary)]

    def choose(self, rows: abc.Sequence[Rows], top: int = 0, vocabulary: int | None = None) -> list[TokenLogprob]:
        """`forward`, and the likeliest token of each row of logits, found in the core."""
        choices: list[TokenLogprob] = []
        for group in cut_into_passes(self.segments(rows), self.pass_rows):
            choices += self._choose(group, top, vocabulary)
        return choices

    def sample(
        self,
        rows: abc.Sequence[Rows],
        choices: abc.Sequence[RowChoice],
        hidden: HiddenRows | None = None,
        meanwhile: Meanwhile | None = None,
    ) -> SampledRows:
        """`forward`, and a token for each row of logits, chosen in the core; see executors/row_choice.py.

        meanwhile: called while the core works; before that where several passes do, or one gives no token.
        """
        if not hasattr(self._kept, "logits"):
            self._kept.logits, self._kept.steps = KeptLogits(), KeptSteps()
        steps: KeptSteps = self._kept.steps
        same = self._rotary_of_steps().fields, self.pass_threads
        if hidden is None and (batch := steps.again(rows, self.reserve, same)) is not None:
            assert len(choices) == len(rows), "a choice for each row of logits"
            chosen = CoreChoices(choices, self.spec.lm_head_rows, self._kept.logits)
            self.run("ia_sample", batch, *chosen.addresses(0), after=lambda _: steps.lengthen(), meanwhile=meanwhile)
            return chosen.found()
        segments = self.segments(rows)
        taps = TappedRows.of(hidden, self.spec, segments)
        assert len(choices) == sum([each.last for each in segments]), "a choice for each row of logits"
        chosen = CoreChoices(choices, self.spec.lm_head_rows, self._kept.logits)
        first, groups = 0, list(cut_into_passes(segments, self.pass_rows))
        if meanwhile is not None and (len(groups) > 1 or not choices):
            while meanwhile():
                pass
            meanwhile = None
        for group in groups:
            if count := sum([segment.last for segment in group]):
                batch, living = self.batch(group, None)
                if taps is not None:
                    taps.next_pass(batch)
                kept = steps.keep(group if taps is None and len(groups) == 1 else (), batch, living, same)
                after = (lambda _: steps.lengthen()) if kept else lengthen
                given = chosen.addresses(first)
                self.run("ia_sample", batch, *given, appended=group, after=after, meanwhile=meanwhile)
            else:
                self.append(group, taps=taps)
            first += count
        return chosen.found()

    def prepare_steps(self, choices: abc.Sequence[RowChoice]) -> RunSteps | None:
        """While `sample` runs a pass of steps: what runs the step after it; see executors/interface.py."""
        steps: KeptSteps = self._kept.steps
        if (step := steps.prepare(self.reserve)) is None:
            return None
        chosen = CoreChoices(choices, self.spec.lm_head_rows, self._kept.logits)
        chosen.count_own_tokens(steps.token_address)

        def run(tokens: Tokens, meanwhile: Meanwhile) -> SampledRows | None:
            batch = steps.after(step, tokens, (self._rotary_of_steps().fields, self.pass_threads))
            if batch is None:
                return None
            self.run("ia_sample", batch, *chosen.addresses(0), after=lambda _: steps.lengthen(), meanwhile=meanwhile)
            return chosen.found()

        return run

    def draft(
        self,
        sequence: Sequence,
        tokens: Tokens,
        count: int,
        vocabulary: int | None = None,
        min_confidence: float = 0.0,
        hidden: Floats | None = None,
        shared_kv: Sequence | None = None,
    ) -> tuple[list[int], list[float]]:
        """Append `tokens`, then decode up to `count` tokens greedily in one call; returns them and their probabilities.

        Only the first `vocabulary` token ids are candidates. Ends after a token whose probability is below
        `min_confidence`. The last token is not in the KV cache. hidden, shared_kv: of a draft head, as in DraftInput.
        Raises LogitsError for logits with NaN or infinity.
        """
        before = sequence.length
        request = DraftInput(sequence, tokens, count, min_confidence, hidden, shared_kv)
        [(drafted, probabilities)] = self.draft_many([request], vocabulary)
        if drafted[-1] < 0:
            truncate_or_clear(sequence, before)
            raise LogitsError("the model", before + len(tokens) + len(drafted) - 1)
        return drafted, probabilities

    def draft_many(
        self, requests: abc.Sequence[DraftInput], vocabulary: int | None = None
    ) -> list[tuple[list[int], list[float]]]:
        """`draft` for several sequences, whose rows share passes; see executors/interface.py."""
        return drafting.draft_many(self, requests, vocabulary)

    def _choose(self, segments: abc.Sequence[TokenSegment], top: int, vocabulary: int | None) -> list[TokenLogprob]:
        batch, _keep = self.batch(segments, vocabulary)
        rows = batch.logit_row_count
        tokens, top_tokens = (ctypes.c_int32 * rows)(), (ctypes.c_int32 * (rows * top))()
        logs, log_sums = (ctypes.c_float * rows)(), (ctypes.c_float * rows)()
        top_logs = (ctypes.c_float * (rows * top))()
        found = TopTokens(top, tokens, logs, log_sums, top_tokens, top_logs)
        self.run("ia_top_tokens", batch, ctypes.byref(found), appended=segments)
        ranked = [
            list(zip(top_tokens[at : at + top], top_logs[at : at + top], strict=True))
            for at in range(0, rows * top, top or 1)
        ] or [[] for _ in range(rows)]
        return [TokenLogprob(*each) for each in zip(tokens, logs, ranked, strict=True)]
