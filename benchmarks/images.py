"""Pages that a model reads: seconds of its vision part and until the first token, beside transformers and llama.cpp.

    python benchmarks/images.py [--layers 8] [--size 992x1408] [--repeats 3] [--llama-cpp ENVIRONMENT]

The model has Qwen3-VL-2B's shapes and random weights, and as many layers in its vision part as in its text (--layers).
Each page is another one, which all get in turns, in bf16 and with as many threads: our server and llama.cpp's over
HTTP, transformers in this process. tower: from a file's content to the rows of the text model (llama.cpp's, by its log,
leaves out reading the file). first token: from the request to the answer of one token.

gap: milliseconds of the longest time between two tokens of a text that our server streams, while nothing else runs,
while a page is read beside it, and while a text of as many tokens is.

--llama-cpp: the environment that peers.py has made of it (--envs there); without it llama.cpp is left out.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import io
import itertools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import measure
import torch
from own_server import OwnServer
from peers_known import LLAMA_CPP_TREE
from peers_recipes import clean_environment, last_lines
from PIL import Image, ImageDraw

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.commands.shared.demo_model import demo_model_path
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.generation.pictured import image_reader
from ipex_assist.models import architecture_of, find
from ipex_assist.tokenization.tokenizer import load_tokenizer
from ipex_assist.vision.reader import ImageReader

TEXT: dict[str, Any] = {
    **{"hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 16, "num_key_value_heads": 8},
    **{"head_dim": 128, "rms_norm_eps": 1e-6, "max_position_embeddings": 32_768, "tie_word_embeddings": True},
    "rope_parameters": {
        **{"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
    },
}
VISION: dict[str, Any] = {
    **{"hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "out_hidden_size": 2048, "patch_size": 16},
    **{"spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 2304},
}
PROCESSOR = {
    **{"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 16, "merge_size": 2, "temporal_patch_size": 2},
    **{"size": {"shortest_edge": 65_536, "longest_edge": 16_777_216}},
    **{"image_mean": [0.5] * 3, "image_std": [0.5] * 3},
}
PLACES = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FRAME = 20  # tokens around the text of a message, about
QUESTION = "What does this page say?"
STREAMED = 16_000  # tokens at most of the text that is streamed
CONTEXT = 8192
SMALL = (256, 256)  # of the first page, which is not counted
START_SECONDS = 120.0
_STAMP = r"^(\d+)\.(\d+)\.(\d+)\.(\d+) I "  # minutes, seconds, milliseconds, microseconds
_ENCODED = re.compile(rf"{_STAMP}.*encoding mtmd batch.*\n{_STAMP}decoding image batch 1/", re.MULTILINE)


def model_in(folder: Path, layers: int) -> Any:
    """transformers' model of the shapes with random weights, whose files are in `folder`, now if they were not."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    if (folder / "config.json").exists():
        return AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.bfloat16).eval()
    tokenizer = load_tokenizer(open_checkpoint(str(demo_model_path())))
    tokenizer.add_special_tokens({"additional_special_tokens": list(PLACES)})
    start, place, end, video = tokenizer.convert_tokens_to_ids(list(PLACES))
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    text = {**TEXT, **ends, "num_hidden_layers": layers, "vocab_size": -(-len(tokenizer) // 64) * 64}
    vision = {**VISION, "depth": layers, "deepstack_visual_indexes": [layers // 4, layers // 2, 3 * layers // 4]}
    ids = {"image_token_id": place, "video_token_id": video, "vision_start_token_id": start, "vision_end_token_id": end}
    config = AutoConfig.for_model("qwen3_vl", text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return model


def page(width: int, height: int, number: int) -> bytes:
    """A PNG file of lines of text, another one for each number."""
    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    for line in range(height // 24 - 2):
        draw.text((40, 24 * (line + 1)), f"{number}.{line}: " + f"{number * 7919 + line * 104_729:010d} " * 12, "black")
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


class Transformers:
    """Its model in this process."""

    def __init__(self, folder: Path, model: Any) -> None:
        from transformers import AutoImageProcessor, AutoTokenizer

        self._model, self._tokenizer = model, AutoTokenizer.from_pretrained(folder)
        self._processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
        self._model.generation_config = type(model.generation_config)(pad_token_id=0, do_sample=False)

    def tower(self, content: bytes) -> float:
        """Seconds until the rows are there."""
        started = time.perf_counter()
        with torch.inference_mode():
            self._model.model.get_image_features(**self._pixels(content))
        return time.perf_counter() - started

    def first_token(self, content: bytes) -> tuple[float, int]:
        """Seconds until one token is there, and the tokens of the prompt."""
        started = time.perf_counter()
        pixels = self._pixels(content)
        parts = [{"type": "image"}, {"type": "text", "text": QUESTION}]
        text = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": parts}], add_generation_prompt=True, tokenize=False
        )
        rows = int(pixels["image_grid_thw"].prod()) // PROCESSOR["merge_size"] ** 2  # type: ignore[operator]
        ids = self._tokenizer(text.replace(PLACES[1], PLACES[1] * rows), return_tensors="pt")["input_ids"]
        place = self._model.config.image_token_id
        with torch.inference_mode():
            self._model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                mm_token_type_ids=(ids == place).int(),
                max_new_tokens=1,
                **pixels,
            )
        return time.perf_counter() - started, ids.shape[1]

    def _pixels(self, content: bytes) -> dict[str, Any]:
        image = Image.open(io.BytesIO(content)).convert("RGB")
        given = dict(self._processor(images=[image], return_tensors="pt"))
        return {**given, "pixel_values": given["pixel_values"].to(torch.bfloat16)}


def question(content: bytes) -> list[dict[str, Any]]:
    """The messages of a question about a page."""
    url = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}]
    return [{"role": "user", "content": parts}]


def ask(address: tuple[str, int], messages: Any, **more: Any) -> http.client.HTTPResponse:
    """The answer of /v1/chat/completions as it begins. Raises IpexAssistError for a refusal."""
    connection = http.client.HTTPConnection(*address, timeout=600)
    body = json.dumps({"messages": messages, "temperature": 0, **more})
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise IpexAssistError(f"the server answers {answer.status}: {answer.read(2000).decode(errors='replace')}")
    return answer


def first_token(address: tuple[str, int], content: bytes) -> tuple[float, int]:
    """Seconds until one token is there, and the tokens of the prompt."""
    started = time.perf_counter()
    answer = json.loads(ask(address, question(content), max_tokens=1).read())
    return time.perf_counter() - started, int(answer["usage"]["prompt_tokens"])


class LlamaCpp:
    """Its server of files made from the folder; use as a context."""

    def __init__(self, environment: Path, folder: Path, threads: int) -> None:
        """Makes the files. Raises IpexAssistError where its converter fails."""
        self._programs, self._folder, self._threads = environment / "build/bin", folder, threads
        convert = Path(LLAMA_CPP_TREE.format(folder=environment)) / "convert_hf_to_gguf.py"
        self._files = {"-m": folder / "text.gguf", "--mmproj": folder / "mmproj.gguf"}
        for flag, file in self._files.items():
            if file.exists():
                continue
            argv = [environment / "bin/python", convert, folder, "--outtype", "bf16", "--outfile", file]
            argv += ["--mmproj"] if flag == "--mmproj" else []
            done = subprocess.run(argv, capture_output=True, text=True, env=clean_environment(), check=False)
            if done.returncode:
                raise IpexAssistError(f"llama.cpp's converter ended with {done.returncode}: {last_lines(done.stderr)}")

    def __enter__(self) -> LlamaCpp:
        self._said = (self._folder / "llama-server.log").open("w+")
        files = [str(each) for pair in self._files.items() for each in pair]
        threads = ["-t", str(self._threads), "-tb", str(self._threads)]
        argv = [str(self._programs / "llama-server"), *files, *threads, "-c", str(CONTEXT), "-np", "1", "--jinja"]
        argv += ["--host", "127.0.0.1", "--port", "0", "--no-webui", "-lv", "4"]
        self._process = subprocess.Popen(argv, stdout=self._said, stderr=subprocess.STDOUT)
        end = time.monotonic() + START_SECONDS
        while (found := re.search(r"listening on http://([\d.]+):(\d+)", self._words())) is None:
            if self._process.poll() is not None or time.monotonic() > end:
                self.__exit__()
                raise IpexAssistError(f"llama-server does not start: {last_lines(self._words())}")
            time.sleep(0.1)
        self.address = found[1], int(found[2])
        return self

    def _words(self) -> str:
        return (self._folder / "llama-server.log").read_text(errors="replace")

    def tower(self) -> float:
        """Seconds of the latest page, between two lines of the server's log; NaN where it has no such lines."""
        found = _ENCODED.findall(self._words())
        if not found:
            return math.nan
        begun, ended = (
            60 * int(minutes) + int(seconds) + int(milli) / 1e3 + int(micro) / 1e6
            for minutes, seconds, milli, micro in (found[-1][:4], found[-1][4:])
        )
        return ended - begun

    def __exit__(self, *ignored: object) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def reader_of(folder: Path) -> Iterator[ImageReader]:
    """What reads images for our engine."""
    checkpoint = open_checkpoint(str(folder), offline=True)
    architecture = find(architecture_of(checkpoint.config))
    assert architecture is not None
    made = image_reader(checkpoint, architecture.spec(checkpoint.config), "bf16", load_tokenizer(checkpoint))
    assert made is not None
    yield made
    made.close()


class Gaps:
    """A text that is streamed in a thread, and the times of its tokens."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._answer = ask(
            address, [{"role": "user", "content": "Begin."}], max_tokens=STREAMED, ignore_eos=True, stream=True
        )
        self._times: list[float] = []
        self._ends = False
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        for line in self._answer:
            if line.startswith(b"data: {"):
                self._times.append(time.perf_counter())
            if self._ends:
                break
        self._answer.close()

    def during(self, work: Callable[[], Any]) -> float:
        """The longest time between two tokens while `work` is done, in milliseconds."""
        begun = len(self._times)
        work()
        found = self._times[max(0, begun - 1) :]
        assert len(found) > 2, "the text has ended"
        return 1e3 * max(after - before for before, after in itertools.pairwise(found))

    def end(self) -> None:
        """Go away in the middle."""
        self._ends = True
        self._thread.join()


def gaps(address: tuple[str, int], contents: Sequence[bytes], tokens: int) -> dict[str, list[float]]:
    """Milliseconds of the longest gaps alone, beside a page and beside a text of as many tokens, by page."""
    found: dict[str, list[float]] = {"alone": [], "beside a page": [], "beside a text": []}
    for number, content in enumerate(contents):
        text = f"{number} " + "a " * (tokens - FRAME)
        gap = Gaps(address)
        time.sleep(1)
        found["alone"].append(gap.during(lambda: time.sleep(2)))
        found["beside a page"].append(gap.during(lambda each=content: first_token(address, each)))
        asked = [{"role": "user", "content": text}]
        found["beside a text"].append(gap.during(lambda each=asked: ask(address, each, max_tokens=1).read()))
        print({name: round(each[-1]) for name, each in found.items()}, file=sys.stderr, flush=True)
        gap.end()
    return found


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8, help="of the vision part's 24 and of the text's 28")
    parser.add_argument("--size", default="992x1408", metavar="WIDTHxHEIGHT", help="of a page, in pixels")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--llama-cpp", type=Path, metavar="ENVIRONMENT")
    parser.add_argument("--folder", type=Path, help="where the model is, or is made (default: one that goes away)")
    parser.add_argument(
        "--make-only", action="store_true", help="make the model and llama.cpp's files, measure nothing"
    )
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> int:
    """Measure, print tables and JSON."""
    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    width, height = map(int, args.size.split("x"))
    pages = [page(width, height, number) for number in range(2 * args.repeats)]
    with ExitStack() as stack:
        folder = args.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        theirs = Transformers(folder, model_in(folder, args.layers))
        llama = LlamaCpp(args.llama_cpp, folder, threads) if args.llama_cpp else None
        if args.make_only:
            return 0
        reader = stack.enter_context(reader_of(folder))
        told = ["--precision", "bf16", "--executor", "native", "--no-assisted", "--no-cache-packed", "--offline"]
        server = stack.enter_context(OwnServer(["-m", str(folder), *told, "--kv-memory", "1G"]))
        if llama:
            stack.enter_context(llama)
        small = page(*SMALL, 0)
        samples, tokens = _in_turns([small, *pages[: args.repeats]], server.address, reader, theirs, llama)
        found = gaps(server.address, pages[args.repeats :], tokens["ours"])
    gap = {name: f"{min(each):.0f} to {max(each):.0f}" for name, each in found.items()}
    rows = [
        {
            "program": name,
            "prompt tokens": tokens[name],
            "tower s": f"{min(each['tower']):.2f} to {max(each['tower']):.2f}",
            "first token s": f"{min(each['first']):.2f} to {max(each['first']):.2f}",
            **{f"gap {beside}": each if name == "ours" else "" for beside, each in gap.items()},
        }
        for name, each in samples.items()
    ]
    measure.report(rows, {"layers": args.layers, "size": args.size, "results": samples, "gaps_ms": found})
    return 0


def _in_turns(
    pages: Sequence[bytes],
    address: tuple[str, int],
    reader: ImageReader,
    theirs: Transformers,
    llama: LlamaCpp | None,
) -> tuple[dict[str, dict[str, list[float]]], dict[str, int]]:
    """Seconds of each program by page, and tokens of a prompt; the first page is not counted."""
    samples: dict[str, dict[str, list[float]]] = {}
    tokens: dict[str, int] = {}

    def note(name: str, tower: float, first: tuple[float, int]) -> None:
        tokens[name] = first[1]
        found = samples.setdefault(name, {"tower": [], "first": []})
        print(f"{name}: tower {tower:.2f} s, first token {first[0]:.2f} s", file=sys.stderr, flush=True)
        found["tower"].append(tower)
        found["first"].append(first[0])

    for content in pages:
        started = time.perf_counter()
        reader.see([content])
        tower = time.perf_counter() - started
        note("ours", tower, first_token(address, content))
        note("transformers", theirs.tower(content), theirs.first_token(content))
        if llama:
            first = first_token(llama.address, content)
            note("llama.cpp", llama.tower(), first)
    return {name: {what: each[1:] for what, each in found.items()} for name, found in samples.items()}, tokens


if __name__ == "__main__":
    raise SystemExit(measure.exit_code(lambda: run(parse()), print))
