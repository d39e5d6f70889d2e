"""Every field that other servers' requests have, and what is done with it here: the table of docs/api.md.

A field is one of our request bodies, which does it or refuses it, or is in NO_EFFECT, which says why nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel

from ipex_assist.serve.protocol.chat import ChatRequest
from ipex_assist.serve.protocol.common import Unsupported
from ipex_assist.serve.protocol.completions import CompletionRequest
from ipex_assist.serve.protocol.embeddings import EmbeddingRequest
from ipex_assist.serve.protocol.messages import MessagesRequest
from ipex_assist.serve.protocol.responses import ResponsesRequest

BODIES: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": MessagesRequest,
    "/v1/embeddings": EmbeddingRequest,
}

_SAMPLING = "temperature top_p n seed stop presence_penalty frequency_penalty logit_bias logprobs stream stream_options"
_VLLM = (
    "top_k min_p repetition_penalty length_penalty ignore_eos min_tokens stop_token_ids include_stop_str_in_output "
    "skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens prompt_logprobs allowed_token_ids "
    "bad_words use_beam_search echo add_special_tokens response_format response_format.schema structured_outputs "
    "structural_tag structured_outputs.structural_tag structured_outputs.whitespace_pattern guided_json "
    "guided_regex guided_choice guided_grammar guided_whitespace_pattern guided_decoding_backend "
    "priority request_id logits_processors "
    "return_token_ids return_tokens_as_token_ids cache_salt kv_transfer_params"
)
_LLAMA_SERVER = (
    "top_k min_p n_predict n_keep n_discard n_probs min_keep id_slot cache_prompt t_max_predict_ms dynatemp_range "
    "dynatemp_exponent typical_p top_n_sigma repeat_penalty repeat_last_n dry_multiplier dry_base dry_allowed_length "
    "dry_penalty_last_n dry_sequence_breakers xtc_probability xtc_threshold mirostat mirostat_tau mirostat_eta "
    "adaptive_target adaptive_decay grammar grammar_lazy grammar_triggers json_schema response_format.schema samplers "
    "lora timings_per_token return_progress post_sampling_probs return_tokens response_fields sse_ping_interval"
)
# By path, the fields of each API; those below others after a dot.
FIELDS: dict[str, dict[str, str]] = {
    "/v1/chat/completions": {
        "OpenAI": f"messages model {_SAMPLING} top_logprobs max_tokens max_completion_tokens tools tool_choice "
        "parallel_tool_calls functions function_call response_format reasoning_effort verbosity modalities audio "
        "prediction web_search_options metadata store service_tier user safety_identifier prompt_cache_key "
        "prompt_cache_retention prompt_cache_options moderation",
        "vLLM": f"{_VLLM} add_generation_prompt continue_final_message documents chat_template chat_template_kwargs "
        "mm_processor_kwargs media_io_kwargs include_reasoning thinking_token_budget",
        "llama-server": f"{_LLAMA_SERVER} chat_template_kwargs reasoning_format thinking_forced_open parse_tool_calls "
        "add_generation_prompt",
        "others": "enable_thinking thinking_budget thinking regex ebnf top_a tfs_z epsilon_cutoff eta_cutoff "
        "mirostat_mode",
    },
    "/v1/completions": {
        "OpenAI": f"prompt model {_SAMPLING} max_tokens best_of echo suffix user",
        "vLLM": f"{_VLLM} prompt_embeds",
        "llama-server": _LLAMA_SERVER,
    },
    "/v1/responses": {
        "OpenAI": "input model instructions previous_response_id conversation prompt include tools tool_choice "
        "parallel_tool_calls max_tool_calls max_output_tokens text text.format text.verbosity reasoning "
        "reasoning.effort reasoning.summary temperature top_p top_logprobs stream stream_options store background "
        "truncation metadata context_management service_tier user safety_identifier prompt_cache_key "
        "prompt_cache_retention prompt_cache_options client_metadata moderation access_programs "
        "background_options image"
    },
    "/v1/messages": {
        "Anthropic": "messages model max_tokens system tools tool_choice temperature top_p top_k stop_sequences stream "
        "thinking thinking.budget_tokens output_config output_config.format output_config.effort output_format "
        "cache_control context_management container mcp_servers metadata service_tier speed inference_geo "
        "thinking.display compaction thread fallbacks fallback_credit_token billing_policy diagnostics"
    },
    "/v1/embeddings": {
        "OpenAI": "input model dimensions encoding_format user",
        "vLLM": "truncate_prompt_tokens prompt_name add_special_tokens normalize embed_dtype endianness priority "
        "request_id",
    },
}

NO_EFFECT = {
    "access_programs": "there are none here",
    "adaptive_decay": "goes with adaptive_target",
    "background_options": "goes with background",
    "billing_policy": "nothing is billed here",
    "cache_control": "every prompt is looked up in the prefix cache",
    "cache_prompt": "every prompt is looked up in the prefix cache",
    "cache_salt": "answers do not depend on the prefix cache",
    "client_metadata": "not stored",
    "context_management": "a conversation that is too long is refused, and the client compacts",
    "diagnostics": "usage says how much of a prompt was cached",
    "dry_allowed_length": "goes with dry_multiplier",
    "dry_base": "goes with dry_multiplier",
    "dry_penalty_last_n": "goes with dry_multiplier",
    "dry_sequence_breakers": "goes with dry_multiplier",
    "dynatemp_exponent": "goes with dynatemp_range",
    "embed_dtype": "goes with encoding_format: bytes",
    "endianness": "goes with encoding_format: bytes",
    "fallback_credit_token": "nothing is billed here",
    "fallbacks": "the server declines nothing for reasons of policy",
    "guided_decoding_backend": "there is one",
    "id_slot": "requests have no slots",
    "image": "goes with images",
    "include_reasoning": "thoughts stand apart from the answer",
    "inference_geo": "everything is computed on this machine",
    "media_io_kwargs": "goes with images",
    "metadata": "not stored",
    "mirostat_eta": "goes with mirostat",
    "mirostat_tau": "goes with mirostat",
    "mm_processor_kwargs": "goes with images",
    "prediction": "a hint for speed: the text is the same",
    "priority": "texts for vectors come in turn",
    "prompt_cache_key": "every prompt is looked up in the prefix cache",
    "prompt_cache_options": "every prompt is looked up in the prefix cache",
    "prompt_cache_retention": "every prompt is looked up in the prefix cache",
    "reasoning.summary": "thoughts are given as they are",
    "request_id": "answers have ids of their own",
    "return_progress": "timings are at the end",
    "safety_identifier": "not stored",
    "speed": "there is one",
    "sse_ping_interval": "a comment comes every ten seconds",
    "store": "chats are not kept",
    "stream_options": "a response's usage is in its last event",
    "text.verbosity": "a hint that models here were not trained on",
    "timings_per_token": "timings are at the end",
    "truncation": "a prompt that is too long is refused, and the client compacts",
    "user": "not stored",
    "verbosity": "a hint that models here were not trained on",
    "xtc_threshold": "goes with xtc_probability",
}


def treatment(path: str, name: str) -> str | None:
    """What is done with a field, in words; None where nobody has said."""
    if (found := _found(BODIES[path], name.split("."))) is not None:
        reason = next((each.reason for each in found.metadata if isinstance(each, Unsupported)), None)
        return "done" if reason is None else f"400: {reason}"
    return f"no effect: {NO_EFFECT[name]}" if name in NO_EFFECT else None


def _found(body: type[BaseModel], names: list[str]) -> Any:
    """The field of a body, or of the bodies in it."""
    for name, field in body.model_fields.items():
        if names[0] in (name, field.alias):
            if len(names) == 1:
                return field
            return next((each for form in _bodies(field.annotation) if (each := _found(form, names[1:]))), None)
    return None


def _bodies(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from _bodies(each)


def table() -> str:
    """All of them in Markdown: a row for the fields that are treated alike, those that are done first."""
    lines = ["| path | fields | what is done |", "|---|---|---|"]
    for path, vendors in FIELDS.items():
        rows: dict[str, list[str]] = {}
        for name in sorted({name for names in vendors.values() for name in names.split()}):
            rows.setdefault(str(treatment(path, name)), []).append(f"`{name}`")
        for what in sorted(rows, key=lambda each: (each != "done", each)):
            lines.append(f"| `{path}` | {', '.join(rows[what])} | {what} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
