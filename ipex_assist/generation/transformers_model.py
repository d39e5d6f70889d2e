"""Architectures we have no spec for: transformers' own models and generation, with our methods and statistics.

What is promised elsewhere does not hold here in full: whether assisted and plain output are equal is up to
transformers, and rows are not padded. `ipex.optimize` is applied on the ipex executor; families that optimum-intel
patches (falcon, gpt2, …) run through its IPEXModelForCausalLM when there is no assistant, which it refuses.
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
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.executors.interface import LogitsError
from ipex_assist.generation.own_draws import draws_of
from ipex_assist.generation.result import Identity
from ipex_assist.generation.stats import Loading
from ipex_assist.generation.stream import OwnRounds, RoundStream
from ipex_assist.generation.text_model import TextModel
from ipex_assist.generation.transformers_pair import OwnDrafting, TransformersPair, context_length, neutralise
from ipex_assist.models import ARCHITECTURES
from ipex_assist.speculative.draft_source import DraftSource
from ipex_assist.speculative.grammar import GrammarSpec
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.speculative.round import Round
from ipex_assist.speculative.sampling import Sampling
from ipex_assist.speculative.schedule import Schedule
from ipex_assist.tokenization.tokenizer import eos_token_ids, load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger("ipex_assist")

LOOK_S = 0.05  # how often a text that waits for its turn looks whether it was given up
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class TransformersModel(TextModel):
    """A target and, where there is one, its assistant, run by transformers' generate.

    Texts take turns: one begins when the one before it has ended or was closed. One that nobody reads goes on to its
    end all the same, so that streams may be read alternately in one thread.
    """

    one_at_a_time = True  # transformers keeps options of drafting in the models

    def __init__(
        self,
        checkpoint: Checkpoint,
        assistant: Checkpoint | None,
        precision: str,
        assistant_precision: str | None,
        executor: str,
        *,
        progress: bool = False,
        universal: bool = False,
        named: bool = True,
    ) -> None:
        """Load both. universal: an assistant with another vocabulary is used through its text.

        named: somebody asked for this assistant, so that one that cannot be used is an error; else it is left out.
        Raises UsageError for that, and for a precision only our own executors have, IpexAssistError otherwise.
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
        self.target, kind = _load(checkpoint, DTYPES[precision], executor, alone=assistant is None, progress=progress)
        self.loading = Loading(time.perf_counter() - started)
        neutralise(self.target, self.eos)
        self._turn = threading.Lock()
        self.assistant: PreTrainedModel | None = None
        self._pair_options: dict[str, Any] = {}
        if assistant is not None and pair is not None and assistant_precision is not None:
            started = time.perf_counter()
            self.assistant, _ = _load(assistant, DTYPES[assistant_precision], executor, alone=False, progress=progress)
            self.loading = dataclasses.replace(self.loading, assistant_s=time.perf_counter() - started)
            self._drafting = OwnDrafting.of(self.assistant)
            neutralise(self.assistant, self.eos)
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
        """Tokens a sequence can hold, by the config; None where it does not say."""
        return self._context_length

    @property
    def vocab_size(self) -> int | None:
        """Token ids the target has an embedding for; None where transformers does not say."""
        try:
            table: Any = self.target.get_input_embeddings()
            return int(table.weight.shape[0])
        except (AttributeError, NotImplementedError):  # as optimum-intel's models
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
    ) -> tuple[RoundStream, bool]:
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
        plain = _Worker(self.target, tokens, told, sampling, self._turn)
        assistant = self.assistant if options.may_draft else None
        if assistant is None:
            return OwnRounds(plain.rounds()), False
        assisted = _Worker(self.target, tokens, told | self._pair_options, sampling, self._turn)
        assisted.draft_with(assistant, self._drafting.told(options))
        return OwnRounds(self._assisted_rounds(assisted, plain)), True

    def _assisted_rounds(self, assisted: _Worker, plain: _Worker) -> Iterator[Round]:
        """An assistant that transformers cannot use after all shows when it is used: then as `named` says."""
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
        plain.go_on_after(written)
        for round_ in plain.rounds():
            yield dataclasses.replace(round_, prompt=round_.prompt and not written)


def _load(
    checkpoint: Checkpoint, dtype: torch.dtype, executor: str, *, alone: bool, progress: bool
) -> tuple[PreTrainedModel, str]:
    """A model of transformers, optimised where IPEX is the executor, and what runs it."""
    if checkpoint.path.is_file():
        raise IpexAssistError(
            f"{checkpoint.source}: GGUF files are read for {', '.join(sorted(gguf_config.SUPPORTED))} only; "
            f"give the Hugging Face folder of this {checkpoint.architecture}"
        )
    if executor == "ipex" and alone:
        model = _load_optimum(checkpoint, dtype)
        if model is not None:
            return model, "optimum-intel"
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    if not progress:
        transformers_logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(checkpoint.path, torch_dtype=dtype, trust_remote_code=False)
    except Exception as error:  # whatever a config breaks in a model of transformers
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise IpexAssistError(
            f"{checkpoint.source}: neither we nor transformers can run {checkpoint.architecture or 'this model'} "
            f"({reason}). Our own decoder has {', '.join(sorted(ARCHITECTURES))}; "
            "transformers' AutoModelForCausalLM is the fallback"
        ) from error
    model = model.eval()
    # IPEX packs the weights of convolutions, which mamba and its hybrids read by hand.
    convolves = any(isinstance(module, torch.nn.Conv1d) for module in model.modules())
    if executor == "ipex" and not convolves:
        import intel_extension_for_pytorch as ipex

        return ipex.optimize(model, dtype=dtype, inplace=True), "transformers+ipex"
    return model, "transformers+torch"


def _load_optimum(checkpoint: Checkpoint, dtype: torch.dtype) -> PreTrainedModel | None:
    """The model as optimum-intel patches it, or None where it does not."""
    try:
        from optimum.intel import IPEXModelForCausalLM
        from optimum.intel.ipex.modeling_base import _IPEX_SUPPORT_MODEL_TYPES
    except ImportError:
        return None
    if checkpoint.config.get("model_type") not in _IPEX_SUPPORT_MODEL_TYPES:
        return None

    class Uncompiled(IPEXModelForCausalLM):
        """torch.compile costs a minute at the first token, and fails on some of the paged cache's code."""

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
    """A logits processor that lets everything through but what no token can be chosen by."""
    if not bool(torch.isfinite(scores.max())):  # NaN where any of them is
        raise LogitsError("the model", ids.shape[-1])
    return scores


class _Penalties:
    """Our biases and penalties as one of transformers' logits processors, for a batch of one."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """scores: (1, vocab), after the text `ids`, (1, tokens)."""
        return self.sampling.apply_penalties(scores, ids[0].tolist())


@dataclass(frozen=True)
class _Pass:
    """One pass of the target, and how things stood when it ended: by the time it is read, the thread is further on."""

    tokens: list[int]
    drafted: int  # tokens of the assistant since the start
    ended: float  # seconds of perf_counter


class _Worker:
    """transformers' generate in a thread; what it streams becomes rounds."""

    def __init__(
        self, target: Any, prompt: list[int], options: dict[str, Any], sampling: Sampling, turn: threading.Lock
    ) -> None:
        """turn: held while transformers generates, since it keeps options in the models."""
        self.target, self.prompt, self.options, self.sampling, self.turn = target, prompt, options, sampling, turn
        self.assistant: PreTrainedModel | None = None
        self.drafting: OwnDrafting | None = None
        self.began = 0.0  # seconds of perf_counter
        self.items: queue.Queue[_Pass | BaseException | None] = queue.Queue()
        self.stopped = threading.Event()
        self.draft_passes = 0

    def draft_with(self, assistant: PreTrainedModel, drafting: OwnDrafting) -> None:
        """Let this assistant draft, by these options of transformers."""
        self.assistant, self.drafting = assistant, drafting

    # transformers calls these two: it streams the prompt first, then the tokens of each pass of the target.

    def put(self, value: torch.Tensor) -> None:
        """Take the tokens of one pass."""
        self.items.put(_Pass(value.reshape(-1).tolist(), self.draft_passes, time.perf_counter()))

    def end(self) -> None:
        """Ignore the streamer's end: `_generate` announces it itself, after errors too."""

    def go_on_after(self, tokens: list[int]) -> None:
        """Take these for written already."""
        self.prompt = self.prompt + tokens
        self.options = self.options | {"max_new_tokens": self.options["max_new_tokens"] - len(tokens)}

    def _run(self) -> None:
        """Wait for the turn and generate; all that happens, and the end, goes to whoever reads the rounds."""
        try:
            while not self.turn.acquire(timeout=LOOK_S):
                if self.stopped.is_set():
                    self.items.put(None)
                    return
            try:
                self.began = time.perf_counter()
                with self._drafts_counted(), draws_of(self.sampling), torch.inference_mode():
                    self._generate()
            finally:
                self.turn.release()
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
        """Every pass of the assistant yields one drafted token."""
        if self.assistant is None or self.drafting is None:
            yield
            return
        # The model keeps these options: one generation's number must not become the next one's default.
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
        """Yield a round a pass of the target; closing the iterator ends the thread at its next token.

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
