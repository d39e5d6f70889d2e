"""Linear layers by themselves: ours, torch's and IPEX's, beside the speed at which the cores read memory.

    ipex-launch -- python benchmarks/kernels.py [--shapes 4096x4096,…] [--rows 1,5,8,16,256] [--rivals torch,ipex]

Every layer has several copies of its weights, together over 1 GB, used in turn, so that each call reads them from
memory. GB/s counts the weights as they are packed, with their scales. Contenders take turns; figures are medians.
Shapes are input × output columns. Precisions are bf16, int8, fp8 (asked for) and int4, that in groups of 64 inputs or,
as int4/128, of others; and types of GGUF's blocks, such as Q4_K.

"in cache" is what instructions alone take: of a layer of as many inputs and so few columns that its weights stay in the
cores' second-level caches, less one of fewer still, which takes the same call; by column, times the columns. No kernel
can be faster than the longer of that and reading; "% of limit" is that longer one ÷ what the layer took. "% of peak",
of more than 64 rows, is of what the cores multiply with nothing to read. There oneDNN's int8 stands beside ours, with
rows that are quantized already and one scale each for rows and columns: less work than ours, which has a scale for each
row and 128 columns.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from array import array
from collections.abc import Callable
from typing import Any

import measure
import torch
from gguf import GGMLQuantizationType

from ipex_assist.executors.native.loading import planned_pool
from ipex_assist.models.layers import uniform_decoder
from ipex_assist.models.rope_spec import Rope
from ipex_assist.native.library import instruction_set, peak, read_bandwidth
from ipex_assist.native.model import PackedModel
from ipex_assist.quantization.precision import BLOCK_FORMAT, BLOCK_TYPES, INT4_GROUP

# 4096×4096 stands for the output projection, 4096×11008 and back for Llama-2-7B's MLP, 4096×16384 for OPT-6.7B's.
SHAPES = ("4096x4096", "4096x11008", "11008x4096", "4096x16384", "16384x4096")
PRECISIONS = ("bf16", "int8", "int4")
BLOCKS = {GGMLQuantizationType(kind).name: kind for kind in BLOCK_TYPES if kind < 200} | {"NF4": 200, "FP4": 201}
BLOCKS |= {"INT2_32": 202, "INT2_128": 203, "INT3_32": 204, "INT3_128": 205}
WORKING_SET = 1 << 30
# Passes over more rows than this are long, and spread little; of rivals only these have kernels for them.
FEW = 64
MANY = {("torch", "bf16"), ("ipex", "bf16"), ("onednn", "int8")}
REPEATS_OF_MANY = 2
CACHED_BYTES, CACHED_CALLS = 400_000, 60  # of a layer in a core's cache, and how often it is called at least

Run = Callable[[torch.Tensor], Any]


def random_weight(columns: int, width: int) -> torch.Tensor:
    """Return a random matrix (columns, width) in bf16, cheaply made."""
    return (torch.randint(-128, 128, (columns, width), dtype=torch.int16) / 4000).bfloat16()


def native_model(width: int, columns: int, precision: str, copies: int) -> PackedModel:
    """A model whose layers' up_proj are the copies."""
    spec = uniform_decoder(
        model_type="llama",
        vocab_size=16,
        hidden_size=width,
        intermediate_size=columns,
        num_hidden_layers=copies,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=16,
        ropes=(Rope(),),
        gated=False,
    )
    names = [f"layers.{copy}.up_proj.weight" for copy in range(copies)]
    name, group = split(precision)
    if name in BLOCKS:
        model = PackedModel(spec, "stored", planned_pool(), formats=dict.fromkeys(names, BLOCK_FORMAT + BLOCKS[name]))
        pack_blocks(model, names, name, columns, width)
        return model
    model = PackedModel(spec, name, planned_pool(), group)
    model.allocate()
    weight = random_weight(columns, width)
    for each in names:
        model.pack(each, weight)
    return model


def native(width: int, columns: int, precision: str, copies: int | None = None) -> tuple[Run, int, int]:
    """A call that runs all copies once, how many there are (WORKING_SET's where None), and bytes of one."""
    copies = copies or -(-WORKING_SET // packed_bytes(width, columns, precision))
    model = native_model(width, columns, precision, copies)
    return lambda x: model.linears("up", x), copies, packed_bytes(width, columns, precision)


def pack_blocks(model: PackedModel, names: list[str], kind: str, columns: int, width: int) -> None:
    """Fill the weights with blocks whose scales are numbers, and none below 2^-126, which is slow to multiply."""
    model.allocate()
    row_bytes = packed_bytes(width, 1, kind)
    powers = 0x40 if kind == "MXFP4" else 0
    with tempfile.TemporaryFile() as file:
        file.write(random.randbytes(row_bytes * columns).translate(bytes(i & 0x3B | powers for i in range(256))))
        file.flush()
        for name in names:
            model.pack_blocks(name, file.fileno(), array("q", range(0, row_bytes * columns, row_bytes)), width)


def split(precision: str) -> tuple[str, int]:
    """Return the precision's name and the inputs of an int4 group."""
    name, _, group = precision.partition("/")
    return name, int(group or INT4_GROUP)


def in_cache(width: int, columns: int, precision: str, all_rows: list[int], threads: int) -> dict[int, float]:
    """Return the seconds that a layer of `columns` columns would take by its instructions alone, by rows.

    Empty where two blocks a thread are more than the caches hold.
    """
    most = max(2, CACHED_BYTES * threads // packed_bytes(width, 16, precision)) // threads * threads * 16
    least = 16 * threads
    if most <= least:
        return {}
    large, small = native(width, most, precision, 1)[0], native(width, least, precision, 1)[0]
    found = {}
    for rows in all_rows:
        if rows > FEW:
            continue
        x = torch.randn(rows, width)
        seconds: dict[Run, list[float]] = {large: [], small: []}
        for _ in range(CACHED_CALLS):
            for run, samples in seconds.items():
                samples.append(timed(run, x, 1))
        each = [measure.summary(samples)["median"] for samples in seconds.values()]
        found[rows] = max(0.0, each[0] - each[1]) * columns / (most - least)
    return found


def packed_bytes(width: int, columns: int, precision: str) -> int:
    """Return the bytes of one matrix in our layout."""
    precision, group = split(precision)
    if precision in BLOCKS:
        return int(width * columns * BLOCK_TYPES[BLOCKS[precision]])
    each = {"bf16": 2.0, "int8": 1.0, "int4": 0.5 + 4 / group, "mxfp4": 0.5 + 1 / 32, "fp8": 1 + 4 / 2048}[precision]
    return int(width * columns * each) + (columns * 4 if precision in ("int8", "fp8") else 0)


def rival(name: str, width: int, columns: int, precision: str) -> tuple[Run, int, int] | None:
    """torch's or IPEX's kernel for the precision, likewise; None where there is none."""
    if "/" in precision:
        return None
    size = packed_bytes(width, columns, precision)
    copies = -(-WORKING_SET // size)
    makers = {
        ("torch", "bf16"): _torch_bf16,
        ("torch", "int8"): _torch_int8,
        ("torch", "int4"): _torch_int4,
        ("onednn", "int8"): _onednn_int8,
        ("ipex", "bf16"): _ipex_bf16,
        ("ipex", "int8"): _ipex_woq,
        ("ipex", "int4"): _ipex_woq,
    }
    try:
        weight = random_weight(columns, width)
        layers = [makers[name, precision](weight, precision) for _ in range(copies)]
        layers[0](torch.zeros(1, width, dtype=torch.bfloat16))
    except (ImportError, RuntimeError, AttributeError) as error:
        print(f"{name} {precision}: {type(error).__name__}: {str(error).splitlines()[0]}")
        return None

    def run(x: torch.Tensor) -> Any:
        x = x.bfloat16()
        for layer in layers:
            out = layer(x)
        return out

    return run, copies, size


def _torch_bf16(weight: torch.Tensor, precision: str) -> Run:
    # oneDNN with the weight in oneDNN's own layout, as torch.compile uses it.
    from ipex_assist.executors.torch.kernels import TorchKernels

    return TorchKernels(torch.bfloat16).linear(weight, None)


def _torch_int8(weight: torch.Tensor, precision: str) -> Run:
    # What the values are makes no difference to the time.
    values, scales = (
        torch.ones(weight.shape, dtype=torch.int8),
        torch.full(weight.shape[:1], 1e-3, dtype=torch.bfloat16),
    )
    return lambda x: torch._weight_int8pack_mm(x, values, scales)


def _onednn_int8(weight: torch.Tensor, precision: str) -> Run:
    columns, width = weight.shape
    packed = torch.ops.onednn.qlinear_prepack(torch.ones(columns, width, dtype=torch.int8), None)
    scales, zeros = torch.full((columns,), 1e-3), torch.zeros(columns, dtype=torch.int64)
    last = (None, 1.0, 0, torch.float32, "none", [], "")  # no bias, and floats without a scale of their own

    def run(x: torch.Tensor) -> torch.Tensor:
        rows = torch.full(x.shape, 100, dtype=torch.uint8)
        return torch.ops.onednn.qlinear_pointwise(rows, 0.01, 0, packed, scales, zeros, *last)

    return run


def _torch_int4(weight: torch.Tensor, precision: str) -> Run:
    columns, width = weight.shape
    packed = torch.full((columns, width // 2), 0x37, dtype=torch.uint8)  # the layout of _convert_weight_to_int4pack
    scales = torch.full((width // INT4_GROUP, columns, 2), 1e-3, dtype=torch.bfloat16)
    return lambda x: torch._weight_int4pack_mm_for_cpu(x, packed, INT4_GROUP, scales)


def _ipex_bf16(weight: torch.Tensor, precision: str) -> Run:
    from ipex_assist.executors.torch.ipex_kernels import IpexKernels

    return IpexKernels(torch.bfloat16).linear(weight, None)


def _ipex_woq(weight: torch.Tensor, precision: str) -> Run:
    from ipex_assist.executors.torch.ipex_kernels import WeightOnlyKernels

    return WeightOnlyKernels(precision).linear(weight, None)


def timed(run: Run, x: torch.Tensor, copies: int) -> float:
    """Return the seconds of one layer."""
    started = time.perf_counter()
    run(x)
    return (time.perf_counter() - started) / copies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--rows", default="1,2,4,5,8,16,32,256")
    parser.add_argument("--rivals", default="torch", help="torch, ipex, or both; empty for none")
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    rivals = [name for name in args.rivals.split(",") if name]
    rivals += ["onednn"] if "torch" in rivals else []
    all_rows = [int(rows) for rows in args.rows.split(",")]
    pool = planned_pool()
    torch.set_num_threads(pool.threads)

    table: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    with torch.inference_mode():
        for shape in args.shapes.split(","):
            width, columns = (int(size) for size in shape.split("x"))
            for precision in args.precisions.split(","):
                contenders = {"native": native(width, columns, precision)}
                contenders |= {
                    name: found for name in rivals if (found := rival(name, width, columns, precision)) is not None
                }
                samples: dict[tuple[str, int], list[float]] = {}
                bandwidths: list[float] = []
                peaks = [peak(pool, "int8" if precision in BLOCKS else split(precision)[0]) for _ in range(2)]
                for repeat in range(args.repeats + 1):
                    bandwidths.append(read_bandwidth(pool, repeats=2))
                    for rows in all_rows:
                        if rows > FEW and repeat > REPEATS_OF_MANY:
                            continue
                        x = torch.randn(rows, width)
                        for name, (run, copies, _) in contenders.items():
                            if name != "native" and (rows > FEW) != ((name, precision) in MANY) and precision != "bf16":
                                continue  # others take minutes for many rows
                            seconds = timed(run, x, copies)
                            if repeat:
                                samples.setdefault((name, rows), []).append(seconds)
                bandwidth = measure.summary(bandwidths)["median"]
                cached = in_cache(width, columns, precision, all_rows, pool.threads)
                for (name, rows), seconds_of in sorted(samples.items()):
                    figures = measure.summary([1000 * s for s in seconds_of])
                    first = [1000 * s for s in samples.get((name, all_rows[0]), [])]
                    speed = contenders[name][2] / figures["median"] / 1e6
                    rate = rows * width * columns / figures["median"] / 1e6
                    ours = 1000 * cached[rows] if name == "native" and rows in cached else None
                    limit = None if ours is None else max(ours, contenders[name][2] / bandwidth / 1e6)
                    results.append(
                        {
                            "shape": shape,
                            "precision": precision,
                            "contender": name,
                            "rows": rows,
                            "ms": figures,
                            "GB_per_s": speed,
                            "read_GB_per_s": bandwidth,
                            "in_cache_ms": ours,
                            "peaks": peaks,
                        }
                    )
                    table.append(
                        {
                            "shape": shape,
                            "precision": precision,
                            "contender": name,
                            "rows": rows,
                            "ms": f"{figures['median']:.3f}",
                            "spread": f"{figures['min']:.3f} to {figures['max']:.3f}",
                            "GB/s": f"{speed:.1f}",
                            "% of read": f"{100 * speed / bandwidth:.0f}",
                            "in cache, ms": "" if ours is None else f"{ours:.3f}",
                            "% of limit": "" if limit is None else f"{100 * limit / figures['median']:.0f}",
                            "÷ first rows": f"{figures['median'] / measure.summary(first)['median']:.2f}"
                            if first
                            else "",
                            "GMAC/s": f"{rate:.0f}",
                            "% of peak": f"{1e11 * rate / max(peaks):.0f}" if rows > FEW else "",
                        }
                    )
                print(measure.table(table[-len(samples) :]), flush=True)
    measure.report(table, {"instruction_set": instruction_set(), "threads": pool.threads, "results": results})


if __name__ == "__main__":
    main()
