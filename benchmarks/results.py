"""Keeps what the benchmarks measured as JSON files, and writes the pages of results and the README's chart from them.

    python benchmarks/kernels.py … | tee out.txt; python benchmarks/results.py keep out.txt [--note TEXT]
    ipex-assist bench --task throughput … --json > out.json; python benchmarks/results.py keep out.json
    python benchmarks/results.py            # write RESULTS.md, its pages, the README's chart and its text
    python benchmarks/results.py --check    # exit 1 where they are not what the files say

A file of results/MACHINE/ is one run: its question (a key of QUESTIONS, "_2" and so on for further tables of it), the
machine, commit and commands, the table's columns and rows, and what must be said before and after it. Of each question
and machine the newest run is shown; `keep` removes those that it replaces. A run with flaws (see FLAWS) is on no page
if a clean one answers the same question; otherwise its date line names them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import charts
import peers_chart
from tabulate import tabulate

HERE = Path(__file__).parent
RESULTS = HERE / "results"
DOCUMENT = HERE / "RESULTS.md"
README = HERE.parent / "README.md"
PEERS_RUN = "with Qwen2.5-Coder 1.5B in 4 bits, drafted by its 0.5B, one prompt on two cores"
BEGIN, END = "<!-- results: peers -->", "<!-- end of results -->"

# The pages, in their order: what a reader asks, and by which runs it is answered. Goals are this project's own.
PAGES = {
    "peers": (
        "How fast is it beside other programs?",
        {
            "peers": "A real pair, one prompt",
            "peers_throughput": "Many prompts at once",
            "stored_peers": "A pair of GGUF files as they are stored, one prompt, beside llama.cpp",
            "stored_peers_throughput": "GGUF files as they are stored, many prompts at once, beside llama.cpp",
            "assisted": "Plain and assisted on the IPEX stack, beside transformers",
            "embeddings": "Embeddings, beside transformers",
            "images": "Images: the vision part and the first token, beside transformers and llama.cpp",
        },
    ),
    "drafts": (
        "What do drafts gain, and what do they cost at most?",
        {
            "planner": "The planner in simulation: gains and losses by length, requests and machine",
            "draft_loss": "A real pair, plain and assisted passes of the same requests taking turns",
            "throughput": "Many requests: tokens/s by how many are in flight",
            "short_answers": "Answers of a few tokens",
            "draft_length": "Draft lengths: adaptive beside each fixed length",
            "draft_length_self": "Drafting without a small sibling",
            "always_wrong": "What an assistant that is always wrong costs",
            "random_heads": "What draft heads of random weights cost",
            "distill_speed": "A draft head trained by `distill` for 36 minutes, beside plain, sibling and lookup",
            "distill_vllm": "The same draft head in vLLM: tokens accepted",
            "router_trace": "Drafts of a mixture of experts: lengths by the cost of experts, by rows, and fixed",
            "suffixes": "Drafts from earlier text: tokens a pass by suffix tree and by lookup",
            "sampling": "Sampled text: noise by position beside rejection sampling",
            "simulated": "OPT-6.7B with OPT-125M, simulated acceptance of 0.8",
        },
    ),
    "passes": (
        "How near do passes come to what memory and cores can do?",
        {
            "forward": "Whole passes of the native core",
            "prompts": "Prompts, and what the cores multiply at most",
            "stored_prompts": "A prompt through a GGUF file as it is stored, beside llama.cpp",
            "prompt_kernels": "Single linear layers of 256 rows: the share of what the cores multiply at most",
            "kernels": "Single linear layers: ours, torch's and IPEX's, beside the memory's speed",
            "blocks": "Single linear layers in GGUF's blocks, beside int4 and the memory's speed",
            "read_share": "Single linear layers of few rows, in turns with reading the same weights",
            "attention": "Attention to a block of keys and values by itself: microseconds, in cache and from memory",
            "instructions": "Instructions of the hot loops for each 64 bytes of weights",
            "tile_ports": "Loops of prompts on AMX: cycles of each port, and the share of the tiles' peak, counted",
            "block_ports": "Steps on GGUF's blocks: cycles of each port, counted",
            "prefetch": "Linears by how far ahead they ask for their weights: nanoseconds for 64 bytes and thread",
            "adapters": "What LoRA adapters add to a pass",
            "barriers": "How often threads wait for each other in a pass: counted, measured, and on paper for many",
            "barriers_published": "The same of published models, counted",
            "company": "Passes with a busy loop on each CPU",
            "versions": "This version beside the one before",
        },
    ),
    "architectures": (
        "How fast are mixtures, recurrent layers and latents?",
        {
            "mixture": "Mixtures of published shapes, random weights",
            "giant_layers": "The first layers of the largest mixtures, random weights",
            "giant_entries": "DeepSeek-V4-Flash at its default length, the first four layers",
            "giant_pools": "Qwen3.8-Flash-Next, the first layers without its n-grams",
            "mixture_prompts": "Prompts of 4,096 tokens: the first token by rows a pass",
            "dense_prompts": "The same of four layers of a dense model: Llama 2 7B",
            "recurrent": "A dense model with recurrent layers, random weights",
            "recurrent_mixture": "A mixture with recurrent layers, random weights: Granite 4 small",
            "shared_kv": "A dense model with shared keys and values, random weights: Gemma 4 E4B",
            "latent": "A mixture with latent attention, random weights: DeepSeek-V2-Lite",
            "latent_flash": "A mixture with latent attention, random weights: GLM-4.7-Flash",
            "sparse": "A layer with sparse attention beside full attention: DeepSeek-V3.2's and V3's shapes",
            "sparse_prompts": "The same: a chunk of a prompt after a long context",
            "residual_streams": "A layer of Hunyuan 4's shapes with four residual streams, and with one",
        },
    ),
    "serving": (
        "What do the engine and the server add, and who waits?",
        {
            "engine": "What the engine adds to its passes, and how long new requests and conversations wait",
            "streams": "How long the core waits between two passes while texts are streamed",
            "between_passes": "Between two passes: plain and drafted, greedy and sampled, by requests",
            "serve_overhead": "What the server adds to the engine",
            "fairness": "Chats beside an agent's long prompts",
            "serve_faults": "The server under load and faults",
        },
    ),
    "sockets": (
        "What would big machines do? Models on paper, not measured",
        {
            "sockets": "One row on one and two big sockets",
            "prompt_sockets": "Prompts on one and two big sockets",
            "pass_rows": "How many rows of a prompt a pass has on big machines, where memory allows it",
            "prompt_shares": "What each thread of big machines gets of a prompt's pass",
            "text_shares": "Attention of a few texts with drafts on big machines: by query tiles, and by blocks",
            "divisions": "Which engines share a machine, by requests, and which CPU they leave to others",
            "multi_socket": "Several instances, measured here",
        },
    ),
    "costs": (
        "What do a start, memory and fewer bits cost?",
        {
            "starting": "Starting",
            "stored_starting": "Starting with a GGUF file as it is stored, beside reading it",
            "load_memory": "Memory of loading",
            "resident": "A mixture that is larger than memory",
            "eval": "Fewer bits: perplexity",
            "formats": "Types of GGUF files: bits, perplexity, distance from bf16 and speed, beside llama.cpp",
        },
    ),
}
QUESTIONS = {question: title for _, questions in PAGES.values() for question, title in questions.items()}
COUNTED = {
    "pass_rows": "Modelled for cores with AMX by their peak on paper, the same on every machine",
    "prompt_shares": "Counted by the core's own partition, the same on every machine",
    "text_shares": "Counted by the core's own partition, the same on every machine",
    "divisions": "Modelled by the costs on paper that the engines are divided by, the same on every machine",
    "instructions": "Counted in the compiled core, the same on every machine",
    "barriers_published": "Counted by the phases of a pass, the same on every machine",
    "tile_ports": "Counted in the compiled core, the same on every machine",
    "block_ports": "Counted in the compiled core, the same on every machine",
    "suffixes": "Counted on recorded texts, the same on every machine",
    "planner": "By a clock that passes move, the same on every machine",
}
# What a run may be marked with, as `flaws`; a commit that ends in -dirty is "uncommitted" by itself.
FLAWS = {"uncommitted": "the code had changes that were not committed", "disturbed": "other work ran on the machine"}
# What the first table compares: a question, and what its runs ask of a program.
IN_SHORT = {"peers": "one prompt", "peers_throughput": "many prompts at once"}
HEAD = """\
# Results

Written by `benchmarks/results.py` from the files in [results/](results); change those, not this page or those it leads
to. **Every figure is from a small virtual machine of two cores and 24 GB**, unless its page says that it is counted or
modelled; nothing here was measured on two sockets. Each table says on which machine, at which commit and by which
command it was measured. Ratios are within one run; machines that are shared with others give spreads that single
figures hide. Speed is tokens after the first ÷ seconds after the first. Of each question the newest run is shown, one
with AMX and one without; runs marked **uncommitted** (the code had changes that were not committed) or **disturbed**
(other work ran on the machine) are here only if no clean run answers the same question.
"""

Run = dict[str, Any]


def load(folder: Path = RESULTS) -> list[Run]:
    """Return all runs, oldest first; those without a time of their own come before the others."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*/*.json"))]
    for run in runs:
        missing = {"question", "machine", "commit", "commands", "columns", "rows"} - run.keys()
        if missing or base(run["question"]) not in QUESTIONS:
            raise SystemExit(f"results.py: {run.get('question')}: no such question, or without {', '.join(missing)}")
        run["flaws"] = flaws_of(run)
    return sorted(runs, key=lambda run: run.get("time", ""))


def flaws_of(run: Run) -> list[str]:
    """The run's flaws in the order of FLAWS, with what its commit says."""
    found = {*run.get("flaws", ()), *(["uncommitted"] if run["commit"].endswith("-dirty") else [])}
    if unknown := found - FLAWS.keys():
        raise SystemExit(f"results.py: {run['question']}: {', '.join(unknown)}: no such flaw")
    return [flaw for flaw in FLAWS if flaw in found]


def base(question: str) -> str:
    """The question of a further table, such as "peers" of "peers_2"."""
    return re.sub(r"_\d+$", "", question)


def table(run: Run) -> str:
    """The run's rows as a markdown table."""
    return tabulate(run["rows"], headers=run["columns"], tablefmt="pipe", disable_numparse=True)


def section(run: Run) -> str:
    """Return one run as text: how it was made, its table, and its notes."""
    commands = "\n".join(f"    {command}" for command in run["commands"])
    marks = "".join(f", **{flaw}**" for flaw in run.get("flaws", ()))
    made = f"Commit {run['commit']}{marks}" + (f", {run['time'][:10]}" if run.get("time") else "") + "."
    parts = [made, commands, run.get("before", ""), table(run), run.get("notes", "")]
    return "\n\n".join(part for part in parts if part)


def units(machine: str) -> str:
    """What it multiplies with: tiles, or vectors alone. A newer run with the same units answers the same question."""
    return "AMX" if "AMX" in machine.replace("no AMX", "") else "vectors" if "," in machine else machine


def current(runs: list[Run]) -> list[Run]:
    """The newest run of each question (and further table) on machines with the same units, clean if any is."""
    newest: dict[tuple[str, str], Run] = {}
    for run in runs:
        key = (run["question"], units(run["machine"]))
        if key not in newest or bool(run.get("flaws")) <= bool(newest[key].get("flaws")):
            newest[key] = run
    return sorted(newest.values(), key=lambda run: run.get("time", ""))


def page(title: str, questions: dict[str, str], runs: list[Run]) -> str:
    """One page: a chapter for each question that has runs, a table for each machine; empty where there are none."""
    parts = []
    for question, heading in questions.items():
        answers = [run for run in runs if base(run["question"]) == question]
        if answers:
            parts.append(f"## {heading}\n")
        for machine in dict.fromkeys(run["machine"] for run in reversed(answers)):
            parts.append(f"### {machine}\n")
            parts += [section(run) + "\n" for run in answers if run["machine"] == machine]
    return "\n".join([f"# {title}\n", "Back to [all results](../RESULTS.md).\n", *parts]) if parts else ""


def documents(runs: list[Run]) -> dict[Path, str]:
    """RESULTS.md, which has the summary and leads to the pages, and each page with its text."""
    shown = current(runs)
    pages, lines = {}, []
    for name, (title, questions) in PAGES.items():
        path = DOCUMENT.parent / "results" / f"{name}.md"
        if text := page(title, questions, shown):
            pages[path] = text
            headings = [heading for key, heading in questions.items() if any(base(r["question"]) == key for r in shown)]
            lines.append(f"- [{title}](results/{name}.md) {'; '.join(headings)}.")
    index = "## Pages\n\n" + "\n".join(lines) + "\n"
    return {DOCUMENT: "\n".join([HEAD, summary([run for run in shown if not run.get("flaws")]), index]), **pages}


def summary(runs: list[Run]) -> str:
    """One table for each machine: our speed beside the best other program's, from the newest runs that have both."""
    parts = ["## In short\n"]
    for machine in dict.fromkeys(run["machine"] for run in reversed(runs)):
        rows: list[list[str]] = []
        for question, prompts in IN_SHORT.items():
            here = [run for run in runs if run["machine"] == machine and base(run["question"]) == question]
            best: dict[str, peers_chart.Comparison] = {}
            # Of runs with equal bits the newest of the question itself wins, then those of its further tables.
            for run in sorted(here, key=lambda run: run["question"], reverse=True):
                best |= peers_chart.comparisons(peers_chart.bars_of(run))
            rows += [[prompts, bits, *found.cells()] for bits, found in sorted(best.items(), key=bits_in)]
        if rows:
            columns = ["", "target's weights", "ipex-assist, tokens/s", "best other program", "×"]
            parts.append(f"{machine}:\n")
            parts.append(tabulate(rows, headers=columns, tablefmt="pipe", disable_numparse=True) + "\n")
    return "\n".join(parts)


def bits_in(item: tuple[str, Any]) -> int:
    """The number in "4 bits"."""
    return int(item[0].split()[0])


def newest(runs: list[Run], question: str) -> Run:
    """The newest run of a question, without flaws."""
    return [run for run in runs if run["question"] == question and not run.get("flaws")][-1]


def with_peers(readme: str, run: Run) -> str:
    """The README with a comparison's headline and chart between its marks."""
    before, rest = readme.split(BEGIN, 1)
    text = f"{peers_chart.headline(peers_chart.bars_of(run))}\n{PEERS_RUN}\n({run['machine']}):"
    picture = f"![Tokens a second beside other programs](benchmarks/{charts.CHARTS['peers'][0]})"
    return f"{before}{BEGIN}\n{text}\n\n{picture}\n{END}{rest.split(END, 1)[1]}"


def machine_of(facts: Run) -> tuple[str, str]:
    """A machine's name and its folder, from what a benchmark says of it."""
    isa = facts["isa"]
    units = [name for flag, name in (("amx_bf16", "AMX"), ("avx512_bf16", "AVX-512 BF16"), ("avx512_vnni", "VNNI"))
             if flag in isa]  # fmt: skip
    name = f"{re.sub(r'[(](R|TM)[)]', '', facts['cpu'])}, {facts['cpus']} CPUs, {', '.join(units) or 'no AVX-512'}"
    vendor = "amd" if "AMD" in facts["cpu"] else "xeon"
    return name, f"{vendor}-{units[0].lower().replace(' ', '-') if units else 'avx2'}-{facts['cpus']}c"


def of_bench(report: Run) -> Run:
    """What `ipex-assist bench --task throughput --json` printed, in the form in which benchmarks print."""
    features = report["environment"]["isa"]
    cpus = sum(int(last or first) - int(first) + 1 for first, _, last in
               (part.partition("-") for part in report["environment"]["cpus"].split(",")))  # fmt: skip
    facts = {
        "cpu": features["model"],
        "cpus": cpus,
        "isa": [name for name, has in features.items() if has is True],
        "commit": report["commit"],
    }
    rows = [_load_cells(row) for row in report["rows"]]
    time = report["started"]
    return {"benchmark": report["task"], "machine": facts, "time": time, "commands": [report["command"]], "table": rows}


def _load_cells(row: Run) -> dict[str, str]:
    speeds = [sum(each["new_tokens"] for each in turn["requests"]) / turn["total_s"] for turn in row["samples"]]
    memory = row["memory_gb_per_s"]
    first, token = row["ttft_s"], row["token_s"]
    drafted = row["contender"]["draft"] is not None
    ratios = sorted(row["speedup"])
    return {
        "target": row["precision"],
        "draft": row["assistant_precision"] if drafted else "–",
        "in flight": str(row["concurrency"]),
        "tokens/s": f"{row['tokens_per_s']:.1f}",
        "spread": f"{min(speeds):.1f} to {max(speeds):.1f}",
        "÷ plain": f"{row['speedup_median']:.2f}" if ratios else "",
        "in the turns": f"{ratios[0]:.2f} to {ratios[-1]:.2f}" if ratios else "",
        "first token s, p50 / p99": f"{first['p50']:.2f} / {first['p99']:.2f}",
        "ms/token, p50 / p99": f"{1000 * token['p50']:.1f} / {1000 * token['p99']:.1f}" if token["p50"] else "",
        "tokens/pass": f"{row['tokens_per_pass']:.2f}",
        "accepted": f"{row['acceptance_rate']:.0%}" if row["acceptance_rate"] is not None else "",
        "read GB/s before": f"{memory[0]:.0f} to {memory[1]:.0f}" if memory else "",
    }


def keep(output: str, question: str | None, note: str, disturbed: bool = False) -> Path:
    """Store the run whose printed output this is: its last line is JSON (measure.report, or bench --json)."""
    result = json.loads(output.strip().splitlines()[-1])
    if "environment" in result:
        result = of_bench(result)
    facts, rows = result["machine"], result["table"]
    question = question or result["benchmark"]
    name, folder = (COUNTED[question], "counted") if question in COUNTED else machine_of(facts)
    run = {
        "question": question,
        "machine": name,
        "commit": facts["commit"],
        "time": result["time"],
        "commands": result.get("commands") or [f"python {facts['command']}"],
        "columns": list(rows[0]),
        "rows": [[str(value) for value in row.values()] for row in rows],
        "notes": note,
    }
    if disturbed:
        run["flaws"] = ["disturbed"]
    path = RESULTS / folder / f"{run['question']}-{run['commit']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not run.get("flaws") and not run["commit"].endswith("-dirty"):
        for older in path.parent.glob(f"{run['question']}-*.json"):
            if json.loads(older.read_text(encoding="utf-8"))["machine"] == name:
                older.unlink()
    path.write_text(json.dumps(run, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def main(argv: list[str] | None = None) -> int:
    """Keep a run, write the pages, or check that they are up to date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("action", nargs="?", choices=("write", "keep"), default="write")
    parser.add_argument("output", nargs="?", help="keep: a file with what a benchmark printed")
    parser.add_argument("--question", help="keep: the question it answers, where that is not the benchmark's name")
    parser.add_argument("--note", default="", help="keep: what must be said after the table")
    parser.add_argument("--disturbed", action="store_true", help="keep: other work ran on the machine")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 where a page is out of date")
    args = parser.parse_args(argv)
    if args.action == "keep":
        if not args.output:
            parser.error("keep needs the file with the benchmark's output")
        print(keep(Path(args.output).read_text(encoding="utf-8"), args.question, args.note, args.disturbed))
    runs = load()
    peers = newest(runs, "peers")
    pages = {**documents(runs), README: with_peers(README.read_text(encoding="utf-8"), peers)}
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    drawn = {HERE / name: (newest(runs, question), chart) for question, (name, chart) in charts.CHARTS.items()}
    stale += [path for path, (run, _) in drawn.items() if not charts.is_current(path, run)]
    if args.check:
        for path in stale:
            print(f"{path.name} is not what the results say: run python benchmarks/results.py", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        if path in drawn:
            charts.draw(path, *drawn[path])
        else:
            path.write_text(pages[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
