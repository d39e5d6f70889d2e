"""Architectures without a spec of ours: transformers' own models and generation, with our methods and statistics.

The promises of our own executors do not all hold here: whether assisted and plain output are equal is up to
transformers, since its passes are not padded. `ipex.optimize` is applied on the ipex executor; families that
optimum-intel patches (falcon, gpt2, …) run through its IPEXModelForCausalLM, which takes no assistant.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ipex_assist.checkpoints import gguf_config
from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.checkpoints.quantized import quantization_of
from ipex_assist.checkpoints.short_name import short_name
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.phases import phase
from ipex_assist.executors.image_rows import PromptImages
from ipex_assist.executors.interface import LogitsError
from ipex_assist.generation.result import Identity
from ipex_assist.generation.seeded_draws import draws_of
from ipex_assist.generation.stats import Loading
from ipex_assist.generation.stream import OwnRounds, RoundStream
from ipex_assist.generation.text_model import TextModel
from ipex_assist.generation.transformers_pair import (
    TransformersDrafting,
    TransformersPair,
    context_length,
    reset_generation_config,
)
from ipex_assist.models import ARCHITECTURES
from ipex_assist.speculative.choosing.grammar import GrammarSpec
from ipex_assist.speculative.choosing.sampling import Sampling
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.speculative.round import Round
from ipex_assist.speculative.schedule import Schedule
from ipex_assist.speculative.sources.draft_source import DraftSource
from ipex_assist.tokenization.tokenizer import eos_token_ids, load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger("ipex_assist")

POLL_S = 0.05  # how often a generation that waits for the models checks whether it was closed
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class TransformersModel(TextModel):
    """A target, and an assistant if there is one, run by transformers' generate.

    Generations run one after the other: each begins when the one before it has ended or was closed. One that is not
    being read still runs to its end, so that a thread may read several streams alternately.
    """

    one_at_a_time = True  # transformers stores draft settings in the models

    def __init__(
        self,
        checkpoint: Checkpoint,
        assistant: Checkpoint | None,
        precision: str,
        assistant_precision: str | None,
        executor: str,
        *,
        universal: bool = False,
        named: bool = True,
    ) -> None:
        """Load both. universal: an assistant with another vocabulary is used by re-encoding its text.

        named: the user asked for this assistant, so that one that cannot be used is an error; else it is left out.
        Raises UsageError for that, and for a precision that only our executors have, IpexAssistError otherwise.
        """
        for wanted in (precision, assistant_precision):
            if wanted is not None and wanted not in DTYPES:
                raise UsageError(
                    f"{checkpoint.architecture} runs through transformers, which has no {wanted} here: use bf16 or fp32"
                )
        log.info("%s runs through transformers' own generation", checkpoint.architecture)
        self.tokenizer = load_tokenizer(checkpoint)
        self.eos = frozenset(eos_token_ids(checkpoint, self.tokenizer))
        self._context_length = context_length(checkpoint.config)
        self._named = named
        pair = None
        if assistant is not None:
            try:
                pair = TransformersPair.of(checkpoint, self.tokenizer, assistant, universal)
            except UsageError as error:
                if named:
                    raise
                log.warning("generating without the default assistant %s: %s", assistant.source, error)
                assistant = None
        assistant_precision = (assistant_precision or precision) if assistant else None
        started = time.perf_counter()
        self.target, kind = _load(checkpoint, DTYPES[precision], executor, alone=assistant is None)
        self.loading = Loading(time.perf_counter() - started)
        reset_generation_config(self.target, self.eos)
        self._generating = threading.Lock()
        self.assistant: PreTrainedModel | None = None
        self._pair_options: dict[str, Any] = {}
        if assistant is not None and pair is not None and assistant_precision is not None:
            started = time.perf_counter()
            self.assistant, _ = _load(assistant, DTYPES[assistant_precision], executor, alone=False)
            self.loading = dataclasses.replace(self.loading, assistant_s=time.perf_counter() - started)
            self._drafting = TransformersDrafting.of(self.assistant)
            reset_generation_config(self.assistant, self.eos)
            self._pair_options = pair.fit(self.assistant)
        self.identity = Identity(
            target=checkpoint.source,
            assistant=assistant.source + (" (universal)" if self._pair_options else "") if assistant else None,
            precision=precision,
            assistant_precision=assistant_precision,
            executor=kind,
        )

    @property
    def context_length(self) -> int | None:
        """The most tokens of a sequence, by the config; None where it does not say."""
        return self._context_length

    @property
    def vocab_size(self) -> int | None:
        """How many token ids the target has an embedding for; None where transformers does not say."""
        try:
            table: Any = self.target.get_input_embeddings()
            return int(table.weight.shape[0])
        except (AttributeError, NotImplementedError):  # optimum-intel's models
            config = self.target.config.get_text_config()
            return int(config.vocab_size) if getattr(config, "vocab_size", None) else None

    def _rounds(
        self,
        tokens: list[int],
        limit: int,
        options: GenerationOptions,
        draft: DraftSource | None,
        schedule: Schedule | None,
        grammar: GrammarSpec | None,
        images: PromptImages | None,
    ) -> tuple[RoundStream, bool]:
        assert images is None, "no reader of images"
        if grammar is not None:
            raise UsageError(
                f"{self.identity.target} runs through transformers, where texts cannot be held to a grammar here: "
                "leave the structured output or the forced tool call out"
            )
        if draft is not None or schedule is not None:
            raise UsageError(
                f"{self.identity.target} runs through transformers, whose drafts and schedules cannot be exchanged"
            )
        if options.logprobs is not None or options.prompt_logprobs is not None:
            raise UsageError(
                f"{self.identity.target} runs through transformers, which gives us no log-probabilities: "
                "leave out logprobs"
            )
        sampling = Sampling.part_of(options, prompt_length=len(tokens))
        told: dict[str, Any] = {"max_new_tokens": limit, "do_sample": sampling.do_sample}
        if options.ignore_eos:
            told["eos_token_id"] = None
        if sampling.changes_logits:
            told["logits_processor"] = [_Penalties(sampling)]
        if sampling.do_sample:
            told |= {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "min_p")}
        plain = _GenerateThread(self.target, tokens, told, sampling, self._generating)
        assistant = self.assistant if options.may_draft else None
        if assistant is None:
            return OwnRounds(plain.rounds()), False
        assisted = _GenerateThread(self.target, tokens, told | self._pair_options, sampling, self._generating)
        assisted.draft_with(assistant, self._drafting.told(options))
        return OwnRounds(self._assisted_rounds(assisted, plain)), True

    def _assisted_rounds(self, assisted: _GenerateThread, plain: _GenerateThread) -> Iterator[Round]:
        """The rounds of `assisted`; where transformers cannot use the assistant after all, `plain` goes on without it.

        Raises UsageError instead where the user asked for this assistant by name.
        """
        written: list[int] = []
        try:
            with contextlib.closing(assisted.rounds()) as rounds:
                for round_ in rounds:
                    written += round_.tokens
                    yield round_
            return
        except GenerateError as error:
            problem = (
                f"transformers cannot generate with {self.identity.target} and the assistant "
                f"{self.identity.assistant} ({error.reason})"
            )
            if self._named:
                raise UsageError(
                    f"{problem}. Go without by --no-assisted, or name another --assistant-model"
                ) from error
        log.warning("%s: going on without it", problem)
        self.assistant = None
        plain.continue_after(written)
        for round_ in plain.rounds():
            yield round_._replace(prompt=round_.prompt and not written)


def _load(checkpoint: Checkpoint, dtype: torch.dtype, executor: str, *, alone: bool) -> tuple[PreTrainedModel, str]:
    """A transformers model, optimised by IPEX where that is the executor, and the name of what runs it."""
    if checkpoint.path.is_file():
        raise IpexAssistError(
            f"{checkpoint.source}: GGUF files are read for {', '.join(sorted(gguf_config.SUPPORTED))} only; "
            f"give the Hugging Face folder of this {checkpoint.architecture}"
        )
    if executor == "ipex" and alone:
        with phase(f"loading {short_name(checkpoint.source)} by optimum-intel"):
            model = _load_optimum(checkpoint, dtype)
        if model is not None:
            return model, "optimum-intel"
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    if quantization_of(checkpoint.config) is None:  # transformers would read integers as floats
        matrices = (name for name, shape in checkpoint.shapes().items() if len(shape) > 1)
        checkpoint.refuse_bare_numbers(name for name in matrices if name.endswith(("weight", "_proj")))
    transformers_logging.disable_progress_bar()  # the phase is shown where progress is asked for
    try:
        with phase(f"loading {short_name(checkpoint.source)} by transformers"):
            model = AutoModelForCausalLM.from_pretrained(checkpoint.path, torch_dtype=dtype, trust_remote_code=False)
    except Exception as error:  # a config can break a transformers model in any way
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise IpexAssistError(
            f"{checkpoint.source}: neither we nor transformers can run {checkpoint.architecture or 'this model'} "
            f"({reason}). Our own decoder has {', '.join(sorted(ARCHITECTURES))}; "
            "transformers' AutoModelForCausalLM is the fallback"
        ) from error
    model = model.eval()
    # IPEX packs convolution weights, but mamba and its hybrids read those weights themselves.
    convolves = any(isinstance(module, torch.nn.Conv1d) for module in model.modules())
    if executor == "ipex" and not convolves:
        import intel_extension_for_pytorch as ipex

        return ipex.optimize(model, dtype=dtype, inplace=True), "transformers+ipex"
    return model, "transformers+torch"


def _load_optimum(checkpoint: Checkpoint, dtype: torch.dtype) -> PreTrainedModel | None:
    """The model as optimum-intel patches it, or None where it cannot."""
    try:
        from optimum.intel import IPEXModelForCausalLM
        from optimum.intel.ipex.modeling_base import _IPEX_SUPPORT_MODEL_TYPES
    except ImportError:
        return None
    if checkpoint.config.get("model_type") not in _IPEX_SUPPORT_MODEL_TYPES:
        return None

    class Uncompiled(IPEXModelForCausalLM):
        """Without torch.compile, which takes a minute at the first token and fails on parts of the paged cache."""

        def can_compile(self) -> bool:
            return False

    try:
        return Uncompiled.from_pretrained(str(checkpoint.path), torch_dtype=dtype)
    except Exception as error:
        log.warning("optimum-intel cannot load %s (%s): using transformers itself", checkpoint.source, error)
        return None


class GenerateError(IpexAssistError):
    """transformers' generate raised."""

    def __init__(self, error: BaseException) -> None:
        self.reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        super().__init__(f"transformers' generate failed: {type(error).__name__}: {error}")


def _check_logits(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """A logits processor that changes nothing, and raises LogitsError for NaN and infinity."""
    if not bool(torch.isfinite(scores.max())):  # the maximum is NaN where any score is
        raise LogitsError("the model", ids.shape[-1])
    return scores


class _Penalties:
    """Our logit biases and penalties as a transformers logits processor, for a batch of one."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """scores: (1, vocab), after the text `ids`, (1, tokens)."""
        return self.sampling.apply_penalties(scores, ids[0].tolist())


@dataclass(frozen=True)
class _Pass:
    """One pass of the target, with counters as of its end: when it is read, the generating thread is already ahead."""

    tokens: list[int]
    drafted: int  # tokens drafted since the start
    ended: float  # perf_counter seconds


class _GenerateThread:
    """transformers' generate in a thread; what it streams becomes rounds."""

    def __init__(
        self, target: Any, prompt: list[int], options: dict[str, Any], sampling: Sampling, lock: threading.Lock
    ) -> None:
        """lock: held while transformers generates, since it stores settings in the models."""
        self.target, self.prompt, self.options, self.sampling, self.lock = target, prompt, options, sampling, lock
        self.assistant: PreTrainedModel | None = None
        self.drafting: TransformersDrafting | None = None
        self.began = 0.0  # perf_counter seconds
        self.items: queue.Queue[_Pass | BaseException | None] = queue.Queue()
        self.stopped = threading.Event()
        self.draft_passes = 0

    def draft_with(self, assistant: PreTrainedModel, drafting: TransformersDrafting) -> None:
        """Draft with this assistant, by these settings."""
        self.assistant, self.drafting = assistant, drafting

    # transformers calls put and end: it streams the prompt first, then the tokens of each pass of the target.

    def put(self, value: torch.Tensor) -> None:
        """Receive the tokens of one pass."""
        self.items.put(_Pass(value.reshape(-1).tolist(), self.draft_passes, time.perf_counter()))

    def end(self) -> None:
        """Ignore the end of the stream: `_run` reports it, after errors as well."""

    def continue_after(self, tokens: list[int]) -> None:
        """Begin after these tokens, which were generated already."""
        self.prompt = self.prompt + tokens
        self.options = self.options | {"max_new_tokens": self.options["max_new_tokens"] - len(tokens)}

    def _run(self) -> None:
        """Wait for the lock and generate; passes, errors and the end go into the queue that `rounds` reads."""
        try:
            while not self.lock.acquire(timeout=POLL_S):
                if self.stopped.is_set():
                    self.items.put(None)
                    return
            try:
                self.began = time.perf_counter()
                with self._drafts_counted(), draws_of(self.sampling), torch.inference_mode():
                    self._generate()
            finally:
                self.lock.release()
            self.items.put(None)
        except BaseException as error:
            self.items.put(error)

    def _generate(self) -> None:
        from transformers import LogitsProcessorList, StoppingCriteriaList

        ids = torch.tensor([self.prompt])
        options = dict(self.options)
        self.target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            streamer=self,
            stopping_criteria=StoppingCriteriaList([self._should_stop]),
            logits_processor=LogitsProcessorList([_check_logits, *options.pop("logits_processor", [])]),
            **options,
            **({"assistant_model": self.assistant} if self.assistant is not None else {}),
        )

    @contextlib.contextmanager
    def _drafts_counted(self) -> Iterator[None]:
        """Count the assistant's passes inside the `with`: each drafts one token."""
        if self.assistant is None or self.drafting is None:
            yield
            return
        # The model keeps these settings, so every generation sets its own.
        self.drafting.set(self.assistant)
        hook = self.assistant.register_forward_hook(lambda *_: self._count_draft())
        try:
            yield
        finally:
            hook.remove()

    def _count_draft(self) -> None:
        self.draft_passes += 1

    def _should_stop(self, ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return torch.full((ids.shape[0],), self.stopped.is_set(), dtype=torch.bool)

    def rounds(self) -> Generator[Round, None, None]:
        """Yield one round for each pass of the target; closing the iterator ends the thread at its next token.

        Raises GenerateError where transformers failed.
        """
        thread = threading.Thread(target=self._run, name="generate", daemon=True)
        thread.start()
        try:
            prompt_seen, first, drafted_before, started = False, True, 0, 0.0
            while (item := self.items.get()) is not None:
                if isinstance(item, LogitsError):
                    raise item
                if isinstance(item, BaseException):
                    raise GenerateError(item) from item
                if not prompt_seen:
                    prompt_seen, started = True, self.began
                    continue
                yield Round(
                    item.tokens,
                    drafted=item.drafted - drafted_before,
                    accepted=len(item.tokens) - 1,
                    target_s=item.ended - started,
                    prompt=first,
                )
                first, started, drafted_before = False, item.ended, item.drafted
        finally:
            self.stopped.set()
            thread.join()
