"""Packaging of ipex-assist: where the folders hang and what they need; pyproject.toml says what it is."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1 leaves it to the package wheel
    from wheel.bdist_wheel import bdist_wheel

here = Path(__file__).parent
about: dict[str, str] = {}
exec((here / "ipex_assist" / "version.py").read_text(), about)


def native_build() -> ModuleType:
    """ipex_assist/native/build.py, which cannot be imported by its name yet."""
    spec = importlib.util.spec_from_file_location("native_build", here / "ipex_assist" / "native" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


class BuildNative(build_ext):
    """The native core is a plain shared library; without a compiler the package works without it."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def build_extension(self, ext: Extension) -> None:
        native = native_build()
        library = Path(self.get_ext_fullpath(ext.name))
        try:
            native.build(library)
        except native.BuildError as error:
            library.unlink(missing_ok=True)  # in a checkout: an older one, of other sources
            print(f"ipex-assist is installed without its native core: {error}", file=sys.stderr)


class PlatformWheel(bdist_wheel):
    """One wheel for every Python: the core is loaded by ctypes, and holds the kernels of every instruction set."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


def page() -> str:
    """README.md for a package index: without pictures and links into the checkout, which lead nowhere there."""
    text = (here / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"^!\[.*?\]\(.*?\)\n", "", text, flags=re.MULTILINE)
    return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]*\)", r"\1", text)


setup(
    version=about["__version__"],
    long_description=page(),
    long_description_content_type="text/markdown",
    # env/ and launch/ lie at the top, where a newcomer sees them; links of these names lead to them from ipex_assist/,
    # so that a checkout, an installation and an editable one are the same package.
    packages=find_packages(include=["ipex_assist", "ipex_assist.*"]),
    package_data={
        "ipex_assist": ["py.typed", "data/*"],
        "ipex_assist.launch": ["templates/*"],
        "ipex_assist.native": ["**/*.cpp", "**/*.h"],
        "ipex_assist.serve": ["page/*", "page/vendor/*"],
    },
    ext_modules=[
        Extension(
            "ipex_assist.native._core",
            sources=sorted(str(path.relative_to(here)) for path in (here / "ipex_assist" / "native").glob("**/*.cpp")),
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildNative, "bdist_wheel": PlatformWheel},
    install_requires=[
        "torch>=2.8",
        "transformers>=4.55",
        "safetensors>=0.4.3",
        "tokenizers>=0.20",
        "huggingface-hub>=0.30",
        "jinja2>=3.1",
        "gguf>=0.17",
        "numpy>=1.26",
        "msgspec>=0.18",
        "psutil>=5.9",
        "py-cpuinfo>=9.0",
        "tqdm>=4.66",
        "tabulate>=0.9",
        "shtab>=1.7",
        "intel-openmp>=2024.0; platform_machine == 'x86_64' and sys_platform == 'linux'",
    ],
    extras_require={
        # IPEX follows torch's release numbers and ends at 2.8; these four versions work together.
        "ipex": [
            "torch==2.8.*",
            "intel-extension-for-pytorch==2.8.*",
            "optimum-intel[ipex]==1.27.*",
            "transformers==4.55.4",
        ],
        "otel": ["opentelemetry-sdk>=1.27", "opentelemetry-exporter-otlp-proto-http>=1.27"],
        # Where other versions are installed than it takes, the command makes an environment of its own.
        "distill": ["speculators==0.9.*; python_version >= '3.11'"],
        "plot": ["matplotlib>=3.8"],
        "quantize": ["auto-round>=0.5"],
        "ray": ["ray[serve]>=2.30"],
        "vision": ["pillow>=10"],
        "serve": [
            "fastapi>=0.115",
            "pydantic>=2.10",
            "uvicorn>=0.30,<0.60",
            "prometheus-client>=0.20",
            "llguidance>=1.9",
            "rich>=13",
        ],
        "dev": [
            "pytest>=8",
            "pytest-xdist>=3.6",
            "hypothesis>=6.100",
            "scipy>=1.11",
            "matplotlib>=3.8",
            "ruff==0.17.5",
            "clang-format==23.1.5",
            "mypy==2.4.1",
            "import-linter>=2.1",
            "pre-commit>=4",
            "httpx>=0.27",
            "playwright>=1.45",
            "pyte>=0.8.2",
            "pillow>=10",
            "openai>=1.60",
            "anthropic>=1",
            "schemathesis>=4",
            "opentelemetry-sdk>=1.27",
            "opentelemetry-exporter-otlp-proto-http>=1.27",
            "cryptography>=42",
        ],
    },
)
