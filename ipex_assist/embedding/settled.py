"""Options of a model that writes nothing, and what is known of a model before it is loaded. No torch here."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.checkpoints.open import OpenCheckpoints
from ipex_assist.embedding.task import AUTO, EMBED, GENERATE, RERANK, task_of
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.speculative.sources.assistant_name import NONE


def without_assistant(options: LoadOptions) -> LoadOptions:
    """The options of a model that writes nothing. Raises UsageError where a draft source was named."""
    if options.assistant not in (LoadOptions().assistant, NONE):
        raise UsageError(
            f"--assistant-model {options.assistant}: nothing is written here, so that there is nothing to draft: "
            "leave it out"
        )
    return replace(options, assistant=NONE)


def settled(options: LoadOptions, task: str) -> tuple[LoadOptions, str]:
    """The options and the task, as far as the files on this machine say: a model that is not here may be anything."""
    if options.target is None:
        return options, GENERATE if task == AUTO else task
    if task == AUTO:
        try:
            found = OpenCheckpoints().open(options.target, revision=options.revision, offline=True)
            task = task_of(found)
        except IpexAssistError:
            return options, AUTO
    return (without_assistant(options) if task in (EMBED, RERANK) else options), task
