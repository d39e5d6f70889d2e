"""The vision part of a checkpoint, computed by transformers: an image in, rows of the text model out."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
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
        self._processor = _processor(checkpoint)
        config = _config(checkpoint)
        self._merge = int(config.vision_config.spatial_merge_size)
        self._model = _vision_model(checkpoint, family, config, precision)

    def see(self, image: Image) -> SeenImage:
        """Raises UsageError for an image of a shape that the processor refuses."""
        import torch

        try:
            given = self._processor(images=[image], return_tensors="pt")
        except ValueError as error:
            raise UsageError(f"an image of {image.width} × {image.height} pixels is refused: {error}") from None
        pixels, grid = given["pixel_values"].to(self._model.dtype), given["image_grid_thw"]
        with torch.inference_mode():
            out = self._model(pixels, grid_thw=grid)
        parts = [part.float() for part in _rows(out)]
        if not all(bool(torch.isfinite(part).all()) for part in parts):
            raise IpexAssistError("the vision part computed NaN or infinity: its weights are damaged")
        time, height, width = (int(each) for each in grid[0])
        axes = np.indices((time, height // self._merge, width // self._merge), np.int32).reshape(3, -1).T
        rows: NDArray[np.float32] = torch.cat(parts, 1).numpy()
        return SeenImage(np.ascontiguousarray(rows), np.ascontiguousarray(axes))


def _rows(out: Any) -> list[torch.Tensor]:
    """What enters the first layer, and what the next ones get: releases of transformers differ in how they give it."""
    if isinstance(out, tuple):  # 4.57
        return [out[0], *out[1]]
    if (pooled := getattr(out, "pooler_output", None)) is not None:
        return [pooled, *(getattr(out, "deepstack_features", None) or ())]
    return [out]


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
        return AutoConfig.from_pretrained(str(checkpoint.path), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise IpexAssistError(f"transformers cannot read the vision_config of {checkpoint.source}: {error}") from error


def _vision_model(checkpoint: Checkpoint, family: Family, config: Any, precision: str) -> Any:
    import torch

    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    name = f"transformers.models.{family.module}.modeling_{family.module}"
    try:
        kind = getattr(importlib.import_module(name), family.tower)
    except (ImportError, AttributeError):
        raise IpexAssistError(
            f"images of {family.module} need a transformers that has {family.tower}: pip install -U transformers"
        ) from None
    model = kind._from_config(config.vision_config, **{"dtype" if _is_since_5() else "torch_dtype": dtype}).eval()
    state = _stored(checkpoint, family.prefixes, dtype)
    missing = model.load_state_dict(state, strict=False)
    if missing.missing_keys or missing.unexpected_keys:
        lacking = sorted((*missing.missing_keys, *missing.unexpected_keys))
        raise IpexAssistError(
            f"{checkpoint.source}: its vision part is another than config.json says ({lacking[0]}, …)"
        )
    return model


def _stored(checkpoint: Checkpoint, prefixes: tuple[str, ...], dtype: torch.dtype) -> Mapping[str, torch.Tensor]:
    """The tensors whose names begin with one of these, by what follows."""
    names = {}
    for name in checkpoint.names():
        for prefix in prefixes:
            if name.startswith(prefix):
                names[name] = name.removeprefix(prefix)
    if not names:
        raise IpexAssistError(f"{checkpoint.source} has no vision part: its tensors are those of the text model alone")
    return {names[name]: tensor.to(dtype) for name, tensor in checkpoint.tensors(names)}
