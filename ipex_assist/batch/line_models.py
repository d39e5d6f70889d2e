"""What the `model` of a line may say: the model that runs, by any of its names, or one of its adapters."""

from __future__ import annotations

from dataclasses import dataclass

from ipex_assist.batch.options import LineError
from ipex_assist.checkpoints.short_name import short_name
from ipex_assist.generation.load_options import LoadOptions

NO_ADAPTER = "none"  # as the option `lora` says it


@dataclass(frozen=True)
class LineModels:
    """names: of the model itself, the one for people first. adapters: the names that --lora gave."""

    names: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()

    @classmethod
    def of(cls, load: LoadOptions) -> LineModels:
        """Of the model of a run, whose target is known."""
        assert load.target is not None
        return cls(tuple(dict.fromkeys((short_name(load.target), load.target))), tuple(load.adapters))

    def lora(self, model: str) -> str | None:
        """The option `lora` of a text whose line names `model`; None where there is nothing to choose.

        The model's own name comes first, as on a server. Raises LineError for a name of neither.
        """
        if model in self.names:
            return NO_ADAPTER if self.adapters else None
        if model in self.adapters:
            return model
        raise LineError(f"there is no model {model!r} here; there is {', '.join((*self.names[:1], *self.adapters))}")
