"""The vision part of a checkpoint, computed by transformers: an image in, rows of the text model out."""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.vision.families import Family
from ipex_assist.vision.seen import SeenImage

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image


class Tower:
    """The image processor and the vision model of a checkpoint. One image at a time: its rows depend on it alone."""

    def __init__(self, checkpoint: Checkpoint, family: Family, precision: str) -> None:
        """precision: fp32 computes so; every other one in bf16. Raises IpexAssistError where transformers cannot."""
        self._family, self._checkpoint = family, checkpoint
        self._config = _config(checkpoint)
        self._processor = _processor(checkpoint)
        self._model = _vision_model(checkpoint, family, self._config, precision)

    def see(self, image: Image) -> SeenImage:
        """Raises UsageError for an image of a shape that the processor, or the vision model, refuses."""
        import torch

        try:
            given = self._processor(images=[image], return_tensors="pt", **self._family.options(self._config))
            taken = {name: given[name] for name in self._family.given if name in given}
            taken["pixel_values"] = taken["pixel_values"].to(self._model.dtype)
            with torch.inference_mode():
                parts = [part.float() for part in self._parts(taken)]
        except (ValueError, RuntimeError) as error:  # Mistral 3's makes nothing of a single row
            raise UsageError(f"an image of {image.width} × {image.height} pixels is refused: {error}") from None
        if not all(bool(torch.isfinite(part).all()) for part in parts):
            raise IpexAssistError("the vision part computed NaN or infinity: its weights are damaged")
        rows: NDArray[np.float32] = torch.cat(parts, 1).numpy()
        layout = self._family.layout(self._config, given, len(rows))
        axes = _axes(given["image_grid_thw"], self._config) if self._family.on_axes else None
        return SeenImage(np.ascontiguousarray(rows), axes, layout)

    def _parts(self, taken: dict[str, Any]) -> list[torch.Tensor]:
        """What enters the first layer, and what the next ones get: releases of transformers differ in how they say."""
        out, further = self._model.get_image_features(**taken), list[Any]()
        if self._family.projector is not None:
            hidden = getattr(out, "last_hidden_state", out)
            out = getattr(self._model, self._family.projector)(hidden.reshape(-1, hidden.shape[-1]))
        elif (pooled := getattr(out, "pooler_output", None)) is not None:
            out, further = pooled, list(getattr(out, "deepstack_features", None) or ())
        elif isinstance(out, tuple) and isinstance(out[0], tuple):  # 4.57
            out, further = out
        factor = 1.0 if self._family.factor is None else float(getattr(self._config.text_config, self._family.factor))
        return [_flat(out).float() * factor, *(_flat(each) for each in further)]


def _flat(rows: Any) -> torch.Tensor:
    import torch

    whole: torch.Tensor = torch.cat(list(rows)) if isinstance(rows, (tuple, list)) else rows
    return whole.reshape(-1, whole.shape[-1])


def _axes(grid: torch.Tensor, config: Any) -> NDArray[np.int32]:
    """Where rows are in an image of so many patches."""
    merge = int(config.vision_config.spatial_merge_size)
    time, height, width = (int(each) for each in grid[0])
    axes = np.indices((time, height // merge, width // merge), np.int32).reshape(3, -1).T
    return np.ascontiguousarray(axes)


def _processor(checkpoint: Checkpoint) -> Any:
    from transformers import AutoImageProcessor

    loading = AutoImageProcessor.from_pretrained
    # By Pillow: torchvision's resizing gives other pixels. transformers 5 has another name for it.
    kind: dict[str, Any] = {"backend": "pil"} if _is_since_5() else {"use_fast": False}
    try:
        return loading(str(checkpoint.path), local_files_only=True, trust_remote_code=False, **kind)
    except Exception as error:
        raise IpexAssistError(
            f"{checkpoint.source} says nothing of how its images are prepared (preprocessor_config.json): {error}"
        ) from error


def _is_since_5() -> bool:
    from transformers import __version__

    return int(__version__.partition(".")[0]) >= 5


def _config(checkpoint: Checkpoint) -> Any:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(str(checkpoint.path), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise IpexAssistError(f"transformers cannot read the vision_config of {checkpoint.source}: {error}") from error
    if hasattr(config, "quantization_config"):  # which is the text model's
        del config.quantization_config
    return config


def _vision_model(checkpoint: Checkpoint, family: Family, config: Any, precision: str) -> Any:
    """transformers' model with the parts that see alone, and these loaded as it loads them."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    kind = _with_parts(family)
    logging.getLogger("transformers").setLevel(logging.ERROR)  # what is wrong is said here
    disable_progress_bar()
    try:
        model, found = kind.from_pretrained(
            None,
            config=config,
            state_dict=_stored(checkpoint, family.prefixes),
            output_loading_info=True,
            **{"dtype" if _is_since_5() else "torch_dtype": dtype},
        )
    except RuntimeError as error:
        raise IpexAssistError(f"the vision part of {checkpoint.source} cannot be loaded: {error}") from error
    wrong = [str(each) for kind_of in ("missing", "unexpected", "mismatched") for each in found[f"{kind_of}_keys"]]
    if wrong:
        raise IpexAssistError(
            f"{checkpoint.source}: its vision part is another than config.json says ({sorted(wrong)[0]}, …)"
        )
    return model.eval()


def _with_parts(family: Family) -> Any:
    """The class of transformers' model that makes no text model."""
    try:
        module = importlib.import_module(f"transformers.models.{family.module}.modeling_{family.module}")
        whole = getattr(module, family.model)
        kinds = {name: getattr(module, part.kind) if part.kind else None for name, part in family.parts.items()}
    except (ImportError, AttributeError):
        raise IpexAssistError(
            f"images of {family.module} need a transformers that has {family.model}: pip install -U transformers"
        ) from None
    from transformers import AutoModel, PreTrainedModel

    def begin(self: Any, config: Any) -> None:
        PreTrainedModel.__init__(self, config)
        for name, part in family.parts.items():
            configs = [getattr(config, key) for key in part.of] or [config]
            kind = kinds[name]
            if kind is None:
                made = AutoModel.from_config(*configs)
            else:
                made = kind._from_config(*configs) if issubclass(kind, PreTrainedModel) else kind(*configs)
            setattr(self, name, made)
        for name, value in family.fields(config).items():
            setattr(self, name, value)
        self.post_init()

    fields = {"__init__": begin, "__module__": whole.__module__, "can_generate": classmethod(lambda cls: False)}
    return type(whole.__name__, (whole,), fields)


def _stored(checkpoint: Checkpoint, prefixes: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """The tensors whose names begin with one of these, without what stands for the whole model."""
    names = {name: name.removeprefix("model.") for name in checkpoint.names() if name.startswith(prefixes)}
    if not names:
        raise IpexAssistError(f"{checkpoint.source} has no vision part: its tensors are those of the text model alone")
    return {names[name]: tensor for name, tensor in checkpoint.tensors(names)}
