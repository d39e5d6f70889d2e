"""Answers of /v1/models, /version, /health and /ready."""

from __future__ import annotations

from typing import Any, Literal

from ipex_assist.serve.protocol.common import ResponseBody


class ModelCard(ResponseBody):
    """One model. max_model_len: tokens of prompt and answer together, by vLLM's name. default_max_tokens: of a chat's
    answer without max_tokens, if the prompt leaves as many. draft_head: mtp, eagle3, dflash or shared_kv, where the
    assistant is a draft head. parent: of an adapter, the model that it is one of; its root is the adapter's folder.
    sampling: defaults of sampling fields by the model's files, where they have any. loaded: whether it is in memory;
    what is not known before is null. size: bytes of memory that it takes, or would take, in a server of many models."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "ipex-assist"
    root: str
    parent: str | None = None
    loaded: bool = True
    size: int | None = None
    assistant: str | None = None
    draft_head: str | None = None
    precision: str | None = None
    executor: str | None = None
    max_model_len: int | None = None
    default_max_tokens: int | None = None
    sampling: dict[str, Any] | None = None


class ModelList(ResponseBody):
    """All names under which models are served."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class Version(ResponseBody):
    """Of ipex-assist."""

    version: str


class Health(ResponseBody):
    """Whether the server lives, is loading, is ready, or is about to end."""

    status: Literal["ok", "loading", "ready", "draining"]
