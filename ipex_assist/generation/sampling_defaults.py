"""The sampling options that a model's files recommend: generation_config.json, or general.sampling in GGUF."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from ipex_assist.checkpoints.base import Checkpoint, read_json
from ipex_assist.env.errors import UsageError
from ipex_assist.env.options import options_of
from ipex_assist.speculative.options import MODEL_DEFAULTS, SamplingOptions
from ipex_assist.speculative.sources.assistant_name import AUTO, NONE

log = logging.getLogger("ipex_assist")

FILE = "generation_config.json"
# What transformers would do besides, and the values with which it does nothing.
_NOT_DONE: dict[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "penalty_alpha": (0.0,),
    "encoder_repetition_penalty": (1.0,),
    "no_repeat_ngram_size": (0,),
    "bad_words_ids": ([],),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "sequence_bias": ([], {}),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
}


def sampling_defaults(checkpoint: Checkpoint, asked: str) -> dict[str, Any]:
    """The options by their names in SamplingOptions; those that the files leave open are absent.

    asked: "auto": of the checkpoint itself; "none": of nobody; else a folder with a generation_config.json.
    Raises UsageError where that has none. A value that cannot be is left out with a warning.
    """
    if asked.lower() == NONE:
        return {}
    config, source = checkpoint.generation_config, checkpoint.source
    if asked.lower() != AUTO:
        folder, source = Path(asked).expanduser(), asked
        read = read_json(folder / FILE)
        if read is None:
            raise UsageError(f"--generation-config {asked}: there is no {FILE}; give auto, none, or a folder with one")
        config = read
    table, found = options_of(SamplingOptions), {}
    for name in MODEL_DEFAULTS:
        if (value := config.get(name)) is None:
            continue
        try:
            found[name] = table[name].kind.take(value)
        except ValueError as error:
            log.warning("%s: %s %s in its %s %s: left out", source, name, str(value)[:60], FILE, error)
    if found:
        shown = ", ".join(f"{name} {value}" for name, value in found.items())
        log.info("sampling defaults of %s: %s (--generation-config none leaves them out)", source, shown)
    if ignored := [name for name, idle in _NOT_DONE.items() if config.get(name) not in (None, *idle)]:
        log.info("%s: nothing here does what its %s asks for with %s", source, FILE, ", ".join(ignored))
    return found
