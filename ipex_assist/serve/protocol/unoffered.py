"""Fields of other servers that would change an answer and are not offered: refused, unless they ask for nothing."""

from __future__ import annotations

from typing import Annotated, Any

from ipex_assist.serve.protocol.common import RequestBody, Unsupported


class UnofferedFields(RequestBody):
    """Of requests for texts: vLLM's, SGLang's, llama-server's and text-generation-webui's."""

    grammar: Annotated[
        Any, Unsupported("llama-server's grammars are not read: use structured_outputs.grammar, of Lark", "")
    ] = None
    grammar_lazy: Annotated[Any, Unsupported("as grammar is not", False)] = None
    grammar_triggers: Annotated[Any, Unsupported("as grammar is not", [])] = None
    structural_tag: Annotated[Any, Unsupported("use tools, or structured_outputs")] = None
    regex: Annotated[Any, Unsupported("use structured_outputs.regex")] = None
    ebnf: Annotated[Any, Unsupported("use structured_outputs.grammar, of Lark")] = None
    guided_whitespace_pattern: Annotated[Any, Unsupported("spaces in JSON are not chosen by a pattern")] = None
    min_tokens: Annotated[Any, Unsupported("a text may end at any token: use ignore_eos", 0)] = None
    n_predict: Annotated[Any, Unsupported("use max_tokens", -1)] = None
    n_keep: Annotated[Any, Unsupported("prompts are not shifted", 0, -1)] = None
    n_discard: Annotated[Any, Unsupported("prompts are not shifted", 0)] = None
    stop_token_ids: Annotated[Any, Unsupported("use stop", [])] = None
    include_stop_str_in_output: Annotated[Any, Unsupported("a text ends before its stop text", False)] = None
    skip_special_tokens: Annotated[Any, Unsupported("texts are without special tokens", True)] = None
    spaces_between_special_tokens: Annotated[Any, Unsupported("texts are without special tokens", True, False)] = None
    allowed_token_ids: Annotated[Any, Unsupported("use logit_bias or structured_outputs", [])] = None
    bad_words: Annotated[Any, Unsupported("use logit_bias", [])] = None
    logits_processors: Annotated[Any, Unsupported("a server runs no code of its clients", [])] = None
    use_beam_search: Annotated[Any, Unsupported("texts are sampled", False)] = None
    length_penalty: Annotated[Any, Unsupported("texts are sampled, not searched for", 1, 1.0, 0, 0.0)] = None
    truncate_prompt_tokens: Annotated[Any, Unsupported("a prompt that is too long is refused")] = None
    prompt_logprobs: Annotated[Any, Unsupported("use echo and logprobs of /v1/completions", 0, False)] = None
    return_token_ids: Annotated[Any, Unsupported("use /tokenize", False)] = None
    return_tokens_as_token_ids: Annotated[Any, Unsupported("tokens are given as text", False)] = None
    return_tokens: Annotated[Any, Unsupported("use /tokenize", False)] = None
    prompt_embeds: Annotated[Any, Unsupported("prompts are texts or token ids")] = None
    repeat_penalty: Annotated[Any, Unsupported("use repetition_penalty", 1, 1.0)] = None
    repeat_last_n: Annotated[Any, Unsupported("repetition_penalty looks at the whole text", 0, 64)] = None
    dynatemp_range: Annotated[Any, Unsupported("the temperature is one number", 0, 0.0)] = None
    typical_p: Annotated[Any, Unsupported("there are top_p, top_k and min_p", 1, 1.0)] = None
    top_n_sigma: Annotated[Any, Unsupported("there are top_p, top_k and min_p", -1, -1.0, 0, 0.0)] = None
    top_a: Annotated[Any, Unsupported("there are top_p, top_k and min_p", 0, 0.0)] = None
    tfs_z: Annotated[Any, Unsupported("there are top_p, top_k and min_p", 1, 1.0)] = None
    epsilon_cutoff: Annotated[Any, Unsupported("there are top_p, top_k and min_p", 0, 0.0)] = None
    eta_cutoff: Annotated[Any, Unsupported("there are top_p, top_k and min_p", 0, 0.0)] = None
    xtc_probability: Annotated[Any, Unsupported("there are top_p, top_k and min_p", 0, 0.0)] = None
    dry_multiplier: Annotated[
        Any, Unsupported("there are repetition_penalty, frequency_penalty and presence_penalty", 0, 0.0)
    ] = None
    mirostat: Annotated[Any, Unsupported("there are top_p, top_k and min_p", 0)] = None
    mirostat_mode: Annotated[Any, Unsupported("there are top_p, top_k and min_p", 0)] = None
    adaptive_target: Annotated[Any, Unsupported("there are top_p, top_k and min_p", -1, -1.0)] = None
    samplers: Annotated[Any, Unsupported("filters have an order of their own: top_k, top_p, min_p", [])] = None
    min_keep: Annotated[Any, Unsupported("filters keep one token at least", 0, 1)] = None
    n_probs: Annotated[Any, Unsupported("use logprobs", 0)] = None
    post_sampling_probs: Annotated[Any, Unsupported("logprobs are the model's own", False)] = None
    t_max_predict_ms: Annotated[Any, Unsupported("use max_tokens", 0, -1)] = None
    response_fields: Annotated[Any, Unsupported("answers have all fields", [])] = None
    kv_transfer_params: Annotated[Any, Unsupported("keys and values stay on this server")] = None


class UnofferedChatFields(RequestBody):
    """Of chats besides."""

    echo: Annotated[Any, Unsupported("use /v1/completions, or continue_final_message", False)] = None
    moderation: Annotated[Any, Unsupported("nothing is moderated here")] = None
    web_search_options: Annotated[Any, Unsupported("nothing is searched for here: give the model a tool")] = None
    documents: Annotated[Any, Unsupported("put documents into messages", [])] = None
    chat_template: Annotated[Any, Unsupported("the model's own template is used")] = None
    add_special_tokens: Annotated[Any, Unsupported("the chat template writes all special tokens", False)] = None
    reasoning_format: Annotated[Any, Unsupported("thoughts are in reasoning_content", "auto", "deepseek", "none")] = (
        None
    )
    thinking_forced_open: Annotated[Any, Unsupported("the chat template says whether a thought is open", False)] = None
    parse_tool_calls: Annotated[Any, Unsupported("calls are read wherever there are tools", True)] = None
