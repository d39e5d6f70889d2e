"""How hidden states become a vector, by the files that sentence-transformers writes beside a model. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipex_assist.embedding.task import modules, small_json
from ipex_assist.env.errors import IpexAssistError, UsageError

# sentence-transformers' names of pooling modes, those of older files first.
_SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
POOLINGS = tuple(_SWITCHES.values())
NORMALIZE = "normalize"
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU")
# Models whose cards say that shorter vectors are vectors, too, while their configs do not: by names in lower case.
_SHORTENED = ("qwen3-embedding", "embeddinggemma")


@dataclass(frozen=True)
class DenseStep:
    """A linear of a vector, and an activation after it. folder: with its weights and config."""

    folder: Path
    in_size: int
    out_size: int
    bias: bool
    activation: str


Step = DenseStep | str  # a string is NORMALIZE


@dataclass(frozen=True)
class Recipe:
    """From hidden states to a vector.

    poolings: of POOLINGS; their vectors side by side. include_prompt: whether a prompt's own tokens count. steps: of
    the pooled vector, in order. prompts: by name, what precedes a text. max_tokens: of a text, by these files; None
    where they do not say. lower_case: texts are lowered first. shortened: whether the first numbers of a vector are a
    vector, too, which training has to see to; `lengths`: of which sizes, empty for any. said: whether there were such
    files at all.
    """

    poolings: tuple[str, ...] = ("lasttoken",)
    include_prompt: bool = True
    steps: tuple[Step, ...] = (NORMALIZE,)
    prompts: Mapping[str, str] | None = None
    default_prompt: str | None = None
    max_tokens: int | None = None
    lower_case: bool = False
    shortened: bool = False
    lengths: tuple[int, ...] = ()
    said: bool = False


def recipe_of(folder: Path, config: Mapping[str, Any], *, decoder: bool, source: str) -> Recipe:
    """Read the files in `folder`. Without any, a decoder's vector is its last token's, and an encoder's the mean.

    Raises:
        UsageError: they ask for something that we do not compute; the message says what.
        IpexAssistError: a file is damaged.
    """
    poolings: tuple[str, ...] = ("lasttoken",) if decoder else ("mean",)
    include, said = True, False
    found: list[Step] = []
    listed = modules(folder) if folder.is_dir() else []
    for module in listed or _without_list(folder):
        kind, place = str(module.get("type", "")).rpartition(".")[2], folder / _inside(module.get("path", ""), folder)
        said = True
        if kind == "Pooling":
            poolings, include = _pooling(place)
        elif kind == "Dense":
            found.append(_dense(place))
        elif kind == "Normalize":
            _only_of_sentences(small_json(place / "config.json"), place)
            found.append(NORMALIZE)
        elif kind not in ("Transformer", "Dropout"):
            raise UsageError(
                f"{folder}/modules.json has a module {kind or '?'}, which is not computed here: of "
                "sentence-transformers' modules there are Transformer, Pooling, Dense and Normalize"
            )
    if not said and decoder:
        found = [NORMALIZE]
    own, bert = _own(folder), _transformer(folder)
    lengths = tuple(size for size in config.get("matryoshka_dimensions") or () if isinstance(size, int))
    named = any(name in Path(source).name.lower() for name in _SHORTENED)
    limit = bert.get("max_seq_length")
    return Recipe(
        poolings=poolings,
        include_prompt=include,
        steps=tuple(found),
        prompts=_prompts(own),
        default_prompt=own.get("default_prompt_name") if isinstance(own.get("default_prompt_name"), str) else None,
        max_tokens=limit if isinstance(limit, int) and limit > 0 else None,
        lower_case=bert.get("do_lower_case") is True,
        shortened=bool(lengths) or config.get("is_matryoshka") is True or named,
        lengths=lengths,
        said=said,
    )


def _own(folder: Path) -> dict[str, Any]:
    return small_json(folder / "config_sentence_transformers.json") if folder.is_dir() else {}


def _transformer(folder: Path) -> dict[str, Any]:
    """The config of the module that holds the model; its file has another name for each of BERT's relatives."""
    if not folder.is_dir():
        return {}
    found = sorted(folder.glob("sentence_*_config.json"))
    return small_json(found[0]) if found else {}


def _prompts(own: Mapping[str, Any]) -> dict[str, str]:
    prompts = own.get("prompts")
    return {str(k): v for k, v in prompts.items() if isinstance(v, str)} if isinstance(prompts, dict) else {}


def _without_list(folder: Path) -> list[dict[str, Any]]:
    """A folder with the modules' folders, whose list was lost."""
    kinds = {"1_Pooling": "Pooling", "2_Dense": "Dense", "2_Normalize": "Normalize", "3_Normalize": "Normalize"}
    return [{"type": kind, "path": place} for place, kind in kinds.items() if (folder / place).is_dir()]


def _inside(path: object, folder: Path) -> str:
    """A module's folder, which lies in the model's own: the file is somebody else's."""
    name = path if isinstance(path, str) else "?"
    if name.startswith("/") or ".." in Path(name).parts:
        raise IpexAssistError(f"{folder}/modules.json names {name[:80]!r}, outside of its folder. Download it again.")
    return name


def _pooling(place: Path) -> tuple[tuple[str, ...], bool]:
    config = small_json(place / "config.json")
    named = config.get("pooling_mode")
    if named is None:
        modes = tuple(mode for switch, mode in _SWITCHES.items() if config.get(switch) is True) or ("mean",)
    else:
        modes = tuple(str(each) for each in named) if isinstance(named, list) else (str(named),)
    if unknown := [mode for mode in modes if mode not in POOLINGS]:
        raise UsageError(f"{place}/config.json pools by {unknown[0]!r}; there are {', '.join(POOLINGS)}")
    return modes, config.get("include_prompt") is not False


def _dense(place: Path) -> DenseStep:
    config = small_json(place / "config.json")
    _only_of_sentences(config, place)
    if config.get("use_residual"):
        raise UsageError(f"{place}/config.json adds the vector to a Dense module's (use_residual), which is not done")
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    name = activation.rpartition(".")[2]
    if not activation.startswith("torch.") or name not in ACTIVATIONS:
        raise UsageError(f"{place}/config.json has the activation {activation}; there are {', '.join(ACTIVATIONS)}")
    sizes = config.get("in_features"), config.get("out_features")
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise IpexAssistError(f"{place}/config.json lacks in_features and out_features. Download it again.")
    return DenseStep(place, sizes[0], sizes[1], config.get("bias") is not False, name)  # type: ignore[arg-type]


def _only_of_sentences(config: Mapping[str, Any], place: Path) -> None:
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, "sentence_embedding"):
            raise UsageError(f"{place}/config.json has {key} {config[key]!r}; only sentence_embedding is computed")
