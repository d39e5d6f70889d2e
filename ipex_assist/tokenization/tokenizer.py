"""Loads the tokenizers of checkpoints, encodes prompts, and finds end-of-text tokens."""

from __future__ import annotations

import contextlib
import functools
import operator
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ipex_assist.checkpoints.base import Checkpoint, read_json
from ipex_assist.checkpoints.gguf import GgufCheckpoint
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.tokenization.chat_template import apply_template, with_lines_around_images
from ipex_assist.tokenization.message_content import encoder_of
from ipex_assist.tokenization.time_limit import run_within

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer
    from transformers import PreTrainedTokenizerBase

# Templates take milliseconds; one that takes this long may never end.
TEMPLATE_SECONDS = 1.0

# Classes that change nothing about tokenizer.json unless one of these fields is set. Reading that file without
# AutoTokenizer saves half a second at start.
_PLAIN_CLASSES = {"PreTrainedTokenizerFast", "TokenizersBackend", "Qwen2Tokenizer", "Qwen2TokenizerFast"}
_CHANGING_FIELDS = ("auto_map", "add_bos_token", "add_eos_token", "add_prefix_space", "split_special_tokens")
# Classes of which transformers 4 read add_bos_token and add_eos_token, and published configurations count on that.
_ADDING_CLASSES = {f"{family}Tokenizer" for family in ("Llama", "CodeLlama", "Gemma", "Cohere")}

_IN_TOKENIZER_NAMES = ("token", "vocab", "merges", "spiece", "sentencepiece", "tekken")
_MOST_SPECIAL_TOKENS = 300  # more vocabulary is not even looked at


def load_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    """Load the checkpoint's tokenizer, without running any code of the checkpoint.

    Raises:
        IpexAssistError: there is none, or it cannot be loaded.
    """
    tokenizer = _load(checkpoint)
    try:  # some damage shows only in use
        tokenizer.decode(list(tokenizer("a 1.\n")["input_ids"]), skip_special_tokens=True)
    except BaseException as error:
        raise _unusable(checkpoint, error) from error
    if _is_empty(tokenizer):
        raise _missing(checkpoint)
    return tokenizer


def _is_empty(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether it has special tokens only: what transformers makes of a folder without a vocabulary."""
    if len(tokenizer) > _MOST_SPECIAL_TOKENS:
        return False
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        added = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
    else:
        added = {token.content for token in backend.get_added_tokens_decoder().values()}
    return set(tokenizer.get_vocab()) <= added


def _missing(checkpoint: Checkpoint) -> IpexAssistError:
    return IpexAssistError(
        f"{checkpoint.path} has no tokenizer (tokenizer.json, tokenizer.model, or vocab.json and merges.txt): copy it "
        "from the original model"
    )


def _load(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    if isinstance(checkpoint, GgufCheckpoint):
        from ipex_assist.tokenization.gguf_tokenizer import tokenizer_from

        return cast("PreTrainedTokenizerBase", tokenizer_from(checkpoint.header))
    _refuse_outside(checkpoint.path)
    if (plain := _plain_tokenizer(checkpoint.path)) is not None:
        return plain
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(str(checkpoint.path), local_files_only=True, trust_remote_code=False)
        _restore_parts(loaded, checkpoint.path / "tokenizer.json")
        config = read_json(checkpoint.path / "tokenizer_config.json") or {}
        loaded.chat_template = _chat_template(checkpoint.path, config)
        _add_special_tokens(loaded, config)
        _put_around(loaded, config)
        return loaded
    except BaseException as error:  # anything from a missing file to a panic of the tokenizers library
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        tokenizer = _from_tokenizer_json(checkpoint.path)
        if tokenizer is not None:
            return tokenizer
        raise _unusable(checkpoint, error) from error


def _restore_parts(tokenizer: PreTrainedTokenizerBase, file: Path) -> None:
    """Put back the parts of tokenizer.json that a class of transformers replaced by its family's usual ones.

    Classes of transformers 5 keep little but its vocabulary; GPT2Tokenizer, for one, splits every text by GPT-2's rule,
    whatever rule the file has. What is put before and after a text is the file's, unless the configuration says it.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not file.is_file():
        return
    from tokenizers import Tokenizer

    stored = Tokenizer.from_file(str(file))
    for part in ("model", "normalizer", "pre_tokenizer", "decoder"):
        setattr(backend, part, getattr(stored, part))
    backend.post_processor = stored.post_processor


def _put_around(tokenizer: PreTrainedTokenizerBase, config: dict[str, Any]) -> None:
    """Have begin and end put around each text as the configuration says it; one that it leaves open is as of Llama.

    transformers 5 goes by tokenizer.json alone, though DeepSeek's, for one, leaves it to these settings.
    """
    backend: Tokenizer | None = getattr(tokenizer, "backend_tokenizer", None)
    kind = str(config.get("tokenizer_class") or type(tokenizer).__name__).removesuffix("Fast")
    if backend is None or kind not in _ADDING_CLASSES or not {"add_bos_token", "add_eos_token"} & config.keys():
        return
    from tokenizers.processors import TemplateProcessing

    before = tokenizer.bos_token if config.get("add_bos_token", True) else None
    after = tokenizer.eos_token if config.get("add_eos_token", False) else None
    ids = {name: index for name in (before, after) if name and (index := backend.token_to_id(name)) is not None}
    single = [name for name in (before, "$A", after) if name == "$A" or name in ids]
    backend.post_processor = TemplateProcessing(single=single, special_tokens=list(ids.items()))


def _unusable(checkpoint: Checkpoint, error: BaseException) -> BaseException:
    """Return the error to raise for a tokenizer that failed with `error`; an interrupt is returned as it is."""
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        return error
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    found = ", ".join(sorted(p.name for p in folder.iterdir() if any(word in p.name for word in _IN_TOKENIZER_NAMES)))
    if not found and checkpoint.path.is_dir():
        return _missing(checkpoint)
    reason = (str(error).strip().splitlines() or [""])[0]
    return IpexAssistError(
        f"{checkpoint.path}: the tokenizer cannot be loaded ({type(error).__name__}: {reason[:300]}). Tokenizer files "
        f"there: {found or 'none'}. Save it beside the model with tokenizer.save_pretrained()."
    )


def _plain_tokenizer(folder: Path) -> PreTrainedTokenizerBase | None:
    """Load a tokenizer that tokenizer.json describes completely; None if only AutoTokenizer can load it.

    A FastTokenizer if transformers would not change anything about it.
    """
    try:
        config = read_json(folder / "tokenizer_config.json") or {}
    except IpexAssistError:
        return None
    if str(config.get("tokenizer_class")) not in _PLAIN_CLASSES or any(config.get(field) for field in _CHANGING_FIELDS):
        return None
    tokenizer = _fast_tokenizer(folder, config) or _from_tokenizer_json(folder)
    if tokenizer is None:
        return None
    # Tokens that were added after tokenizer.json was written are in the configuration alone.
    added = config.get("added_tokens_decoder", {})
    try:
        known = all(tokenizer.convert_tokens_to_ids(token["content"]) == int(id_) for id_, token in added.items())
        there = tokenizer.backend_tokenizer.get_added_tokens_decoder().values()  # type: ignore[attr-defined]
        known = known and {token.content for token in _further_special_tokens(config)} <= {
            token.content for token in there if token.special
        }
    except (AttributeError, TypeError, ValueError, KeyError):  # the field is not a table of tokens
        return None
    return tokenizer if known else None


def _from_tokenizer_json(folder: Path) -> PreTrainedTokenizerBase | None:
    """Load the tokenizer from tokenizer.json alone; None if that fails too.

    transformers 5 writes class names ("TokenizersBackend") and lists of extra tokens that 4.x cannot read back, though
    tokenizer.json says all that matters; so do models whose tokenizer class is code of their own.
    """
    from transformers import PreTrainedTokenizerFast

    try:
        config = read_json(folder / "tokenizer_config.json") or {}
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer.json"),
            chat_template=_chat_template(folder, config),
            clean_up_tokenization_spaces=bool(config.get("clean_up_tokenization_spaces", False)),
            **_special_tokens(config),
        )
        _add_special_tokens(tokenizer, config)
        _put_around(tokenizer, config)
        return tokenizer
    except BaseException as error:  # the caller reports its own, first failure
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        return None


def _chat_template(folder: Path, config: dict[str, Any]) -> Any:
    """The template, or several by name: of files, as transformers has them, or of the configuration.

    Models that read images have it in chat_template.json, where the configuration has none.
    """
    named = config.get("chat_template")
    if not named:
        with contextlib.suppress(IpexAssistError):  # as good as none
            named = (read_json(folder / "chat_template.json") or {}).get("chat_template")
    if isinstance(named, list):
        named = {str(each.get("name", "default")): each.get("template") for each in named if isinstance(each, dict)}
    templates = named if isinstance(named, dict) else {"default": named}
    templates = {name: template for name, template in templates.items() if isinstance(template, str) and template}
    files = {"default": folder / "chat_template.jinja"}
    templates = {} if files["default"].is_file() else templates
    files |= {file.stem: file for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    templates |= {name: file.read_text(encoding="utf-8") for name, file in files.items() if file.is_file()}
    templates = {name: with_lines_around_images(str(template)) for name, template in templates.items()}
    return templates.get("default") if templates.keys() <= {"default"} else templates


def _special_tokens(config: dict[str, Any]) -> dict[str, Any]:
    """Special tokens by name; files of transformers 4 have objects, {"content": "</s>", …}."""
    special = {key: config.get(key) for key in ("bos_token", "eos_token", "unk_token", "pad_token")}
    return {k: v["content"] if isinstance(v, dict) else v for k, v in special.items() if v is not None}


def _further_special_tokens(config: dict[str, Any]) -> list[AddedToken]:
    """Those beside bos, eos and the like: lists of texts or objects, in transformers 5 also by a name each.

    transformers reads objects of its own kind alone ({"__type": "AddedToken", …}), and raises TypeError for others.
    """
    from tokenizers import AddedToken

    values = [config.get(key) for key in ("additional_special_tokens", "extra_special_tokens")]
    lists = [list(value.values()) if isinstance(value, dict) else value for value in values]
    listed = [each for value in lists if isinstance(value, list) for each in value]
    tokens: list[dict[str, Any]] = [
        {"content": each, "normalized": False} if isinstance(each, str) else each for each in listed
    ]
    return [AddedToken(**({k: v for k, v in each.items() if k != "__type"} | {"special": True})) for each in tokens]


def _add_special_tokens(tokenizer: PreTrainedTokenizerBase, config: dict[str, Any]) -> None:
    """Add those that the configuration alone lists, or that are no special ones yet."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        there = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
        missing = [token for token in _further_special_tokens(config) if token.content not in there]
        tokenizer.add_tokens(missing, special_tokens=True)


def _fast_tokenizer(folder: Path, config: dict[str, Any]) -> PreTrainedTokenizerBase | None:
    """Load the tokenizer without transformers; None if transformers would change anything about tokenizer.json."""
    from tokenizers import Tokenizer

    from ipex_assist.tokenization.fast_tokenizer import FastTokenizer

    try:
        special, backend = _special_tokens(config), Tokenizer.from_file(str(folder / "tokenizer.json"))
        added = {token.content for token in backend.get_added_tokens_decoder().values()}
        pieces = b"" if backend.pre_tokenizer is None else backend.pre_tokenizer.__getstate__()
        changed = (
            not added.issuperset(special.values())
            or config.get("clean_up_tokenization_spaces", False)
            or backend.truncation is not None
            or backend.padding is not None
            or b'"add_prefix_space":true' in pieces  # which transformers 4 overrides
        )
        template = _chat_template(folder, config)
    except BaseException as error:  # reported by transformers in the fallback
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        return None
    if changed:
        return None
    fast = FastTokenizer(backend, special, template, functools.partial(_from_tokenizer_json, folder))
    return cast("PreTrainedTokenizerBase", fast)


def _refuse_outside(folder: Path) -> None:
    """Raise if tokenizer_config.json names files in other folders, which transformers would read."""
    try:
        config = read_json(folder / "tokenizer_config.json") or {}
    except IpexAssistError:
        return  # reported when it is needed
    for key, name in config.items():
        # Many published files name paths of the machine they were made on, which do not exist here.
        if key.endswith("_file") and isinstance(name, str) and _exists_outside(folder, name):
            raise IpexAssistError(
                f"{folder / 'tokenizer_config.json'} has {name[:80]!r} as its {key}, which is not in its own folder. "
                "Nothing else is read. Take that line out."
            )


def _exists_outside(folder: Path, name: str) -> bool:
    try:
        if (
            os.sep not in name and (folder / name).is_file()
        ):  # a relative name means this one, whatever the working directory
            return False
        return Path(name).exists() and Path(name).absolute().parent != folder.absolute()
    except (OSError, ValueError):
        return False


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase, prompt: str, chat: bool, *, allow_special_tokens: bool = False
) -> list[int]:
    """Encode a prompt: plain text with the tokenizer's special tokens, or one user message in its chat template.

    allow_special_tokens: as for `encode_messages`; plain text may always contain them.

    Raises:
        UsageError: the prompt is not valid Unicode, or there is no chat template, or it refuses the prompt.
    """
    check_text(prompt)
    if not chat:
        return encode(tokenizer, prompt)
    return encode_messages(tokenizer, [{"role": "user", "content": prompt}], allow_special_tokens=allow_special_tokens)


def encode_messages(
    tokenizer: PreTrainedTokenizerBase,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None = None,
    *,
    allow_special_tokens: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """Encode a conversation by the tokenizer's chat template, with the generation prompt.

    tools: functions that the model may call, in OpenAI's form. allow_special_tokens: names of special tokens in
    messages and tools become these tokens, which can end a message and begin another; else they are plain text.
    variables: further ones of the template, such as enable_thinking.

    Raises:
        UsageError: there is no chat template, or it refuses the conversation or exceeds its time limit.
    """
    if not tokenizer.chat_template:
        raise UsageError("this model has no chat template (a base model?): give it a prompt instead of messages")
    render = functools.partial(_rendered, tokenizer, variables)
    text = render(messages, tools or None)
    if not allow_special_tokens:
        with _tokenizer_errors():
            encoder = encoder_of(tokenizer)
            ids = None if encoder is None else encoder.encode(messages, tools or None, text, render)
        if ids is not None:
            return ids
    # The template writes all special tokens itself; a second BOS makes small models answer nonsense.
    return encode(tokenizer, text, add_special_tokens=False)


def _rendered(
    tokenizer: PreTrainedTokenizerBase,
    variables: Mapping[str, Any] | None,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
) -> str:
    try:
        text = run_within(TEMPLATE_SECONDS, lambda: apply_template(tokenizer, messages, tools, variables))
    except Exception as error:  # jinja2's errors, and those that templates raise
        raise UsageError(f"the model's chat template refuses this prompt: {error}") from error
    check_text(text)
    return text


def encode(tokenizer: PreTrainedTokenizerBase, text: str, **options: bool) -> list[int]:
    """Encode a text. options: of the tokenizer, e.g. add_special_tokens. Raises IpexAssistError if it fails."""
    with _tokenizer_errors():
        encoded = tokenizer(text, **options)
    return list(encoded["input_ids"])


@contextlib.contextmanager
def _tokenizer_errors() -> Iterator[None]:
    """Raise IpexAssistError for what the tokenizers library raises: it panics on damaged files."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit, IpexAssistError)):
            raise
        reason = (str(error).strip().splitlines() or [""])[0]
        raise IpexAssistError(
            f"the tokenizer cannot encode this text ({type(error).__name__}: {reason[:300]}). Download the model again"
        ) from error


def check_text(prompt: str) -> None:
    """Raise UsageError if a prompt holds surrogates: bytes that were not UTF-8, or half of a surrogate pair."""
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the prompt is not UTF-8 text: its character {error.start + 1:,} is a byte of another encoding, or half "
            "of a surrogate pair"
        ) from None


def checked_ids(
    tokens: Iterable[Any], vocab_size: int | None, tokenizer: PreTrainedTokenizerBase, model: str
) -> list[int]:
    """Return token ids as integers, checked against the model: a tokenizer may have tokens without an embedding row.

    Raises:
        UsageError: one is not an integer, negative, or not below vocab_size (None: unknown).
    """
    ids: list[int] = []
    for token in tokens:
        try:
            ids.append(operator.index(token))
        except TypeError:
            raise UsageError(f"a prompt is a text or a list of token ids, and {token!r} is no whole number") from None
    for place, token in enumerate(ids):
        if token < 0 or (vocab_size is not None and token >= vocab_size):
            name = tokenizer.convert_ids_to_tokens(token) if 0 <= token < len(tokenizer) else None
            raise UsageError(
                f"token {place + 1} of the prompt has the id {token}{f' ({name})' if name else ''}, and {model} knows "
                f"ids from 0 to {'…' if vocab_size is None else vocab_size - 1}: leave it out of the prompt, or use "
                "the tokenizer that belongs to this model"
            )
    return ids


def special_names(tokenizer: Any, texts: Iterable[str]) -> dict[int, str]:
    """Names, by id, of the special tokens that are in one of these texts."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    added = getattr(tokenizer, "added_tokens_decoder", {}) if backend is None else backend.get_added_tokens_decoder()
    special = {index: token.content for index, token in added.items() if token.special and token.content}
    return {index: name for index, name in special.items() if any(name in text for text in texts)}


def eos_token_ids(checkpoint: Checkpoint, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return all end-of-text token ids: of generation_config.json, of config.json, and the tokenizer's own."""
    ids: set[int] = set()
    text = checkpoint.config.get("text_config")  # of models that take images, too
    for config in (checkpoint.generation_config, checkpoint.config, text if isinstance(text, dict) else {}):
        value = config.get("eos_token_id")
        found = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(index) is int for index in found):
            raise IpexAssistError(
                f"{checkpoint.source}: eos_token_id is {str(value)[:60]!r}; it must be a token's number, or a list of "
                "such. Mend its generation_config.json or config.json"
            )
        ids |= set(found)
    if tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    return ids
