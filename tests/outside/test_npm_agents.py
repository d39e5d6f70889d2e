"""Coding agents from npm correct a file by way of a server: Claude Code, Codex, opencode and Qwen Code.

    bash tests/run plain -m full tests/outside/test_npm_agents.py
    CODING_MODEL=FOLDER CODING_ASSISTANT=FOLDER bash tests/run plain -m full tests/outside/test_npm_agents.py -k real -s

They are installed into a folder of the user's cache (NPM_AGENTS names another), in versions that were tried, where npm
is at hand. The model is scripted: what is shown is that the agent and the server understand each other, in each form of
calls, with thoughts before them; or it is CODING_MODEL, which may fail at the task, but must get no error. The agents
are told by their documented settings to speak to this server alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fake_backend
import httpx
import pytest
from fake_backend import FakeBackend, serving
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # what the benchmarks share

from own_server import OwnServer

from ipex_assist.serve.backend import GenerationRequest
from ipex_assist.speculative.round import Round

PACKAGES = (
    "@anthropic-ai/claude-code@2.1.197",
    "@openai/codex@0.171.0",
    "opencode-ai@1.18.33",
    "@qwen-code/qwen-code@0.15.10",
)
# Not by XDG_CACHE_HOME, which is a folder of this run alone: half a gigabyte is installed once.
FOLDER = Path(os.environ.get("NPM_AGENTS") or Path.home() / ".cache" / "ipex-assist-npm-agents")
MODEL = os.environ.get("CODING_MODEL")
WRONG, RIGHT = "def mean(n):\n    return sum(n) / (len(n) + 1)\n", "def mean(n):\n    return sum(n) / len(n)\n"
OLD, NEW = "(len(n) + 1)", "len(n)"
TASK = "Correct mean in mean.py: divide by len(n)."

pytestmark = [
    pytest.mark.outside,
    pytest.mark.full,
    pytest.mark.one_stack,
    pytest.mark.skipif(shutil.which("npm") is None, reason="npm, which installs the agents, is not at hand"),
]

Calls = list[tuple[str, dict[str, str]]]


def _turns(calls: str, result: str) -> str:
    """A template with tools, thoughts and calls in a form of a model family."""
    return (
        "{% for m in messages if m.role == 'system' %}<|im_start|>system\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if tools %}# Tools\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}"
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('one system') }}"
        "{% elif m.role == 'tool' %}<|im_start|>user\n" + result + "<|im_end|>\n{% elif m.role != 'system' %}"
        "<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}"
        "<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
        "{{ m.content }}{% for c in m.tool_calls or [] %}{% set f = c.function %}" + calls + "{% endfor %}<|im_end|>\n"
        "{% endif %}{% endfor %}<|im_start|>assistant\n"
    )


HERMES = _turns(
    '\n<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}\n</tool_call>',
    "<tool_response>\n{{ m.content }}\n</tool_response>",
)
QWEN_XML = _turns(
    "\n<tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments.items() %}<parameter={{ k }}>\n"
    "{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>",
    "<tool_response>\n{{ m.content }}\n</tool_response>",
)
GLM = _turns(
    "\n<tool_call>{{ f.name }}\n{% for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key>\n<arg_value>"
    "{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}</tool_call>",
    "<tool_response>\n{{ m.content }}\n</tool_response>",
)
MISTRAL = _turns(
    '[TOOL_CALLS][{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}]',
    "<tool_response>{{ m.content }}</tool_response>",
)


def _hermes(name: str, arguments: dict[str, str]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _qwen_xml(name: str, arguments: dict[str, str]) -> str:
    given = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{given}</function>\n</tool_call>"


def _glm(name: str, arguments: dict[str, str]) -> str:
    given = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items())
    return f"<tool_call>{name}\n{given}</tool_call>"


def _mistral(name: str, arguments: dict[str, str]) -> str:
    return f"[TOOL_CALLS][{json.dumps({'name': name, 'arguments': arguments})}]"


DIALECTS = {
    "hermes": (HERMES, _hermes),
    "qwen-xml": (QWEN_XML, _qwen_xml),
    "glm": (GLM, _glm),
    "mistral": (MISTRAL, _mistral),
}


class ScriptedModel(FakeBackend):
    """Thinks, and calls the tools of a script one after the other, as many as have results already; then it is done."""

    def __init__(self, script: Calls, write: Callable[[str, dict[str, str]], str]) -> None:
        super().__init__(context_length=200_000)
        self._script, self._write, self._lock = script, write, threading.Lock()

    def _rounds(self, request: GenerationRequest) -> Iterator[Round]:
        prompt = fake_backend.tokenizer().decode(request.tokens)
        done = prompt.count("<tool_response>")
        with self._lock:  # until the first tokens are made of it
            if "# Tools" not in prompt or done >= len(self._script):
                self.reply = "Done."
            else:
                name, arguments = self._script[done]
                self.reply = f"<think>\nI call {name}.\n</think>\n\n{self._write(name, arguments)}"
            return super()._rounds(request)


@dataclass(frozen=True)
class Run:
    """An agent's script, its command, its variables, and its files by their names in the home folder."""

    script: Calls
    command: list[str]
    variables: dict[str, str]
    files: dict[str, str]


def claude(url: str, path: str) -> Run:
    quiet = ("DISABLE_TELEMETRY", "DISABLE_AUTOUPDATER", "DISABLE_ERROR_REPORTING")
    return Run(
        [("Read", {"file_path": path}), ("Edit", {"file_path": path, "old_string": OLD, "new_string": NEW})],
        ["claude", "-p", TASK, "--allowedTools", "Edit,Read", "--permission-mode", "acceptEdits"],
        {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": "none", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
        | dict.fromkeys(quiet, "1"),
        {},
    )


def codex(url: str, path: str) -> Run:
    config = (
        f'model = "tiny"\nmodel_provider = "local"\ncheck_for_update_on_startup = false\n'
        f'[model_providers.local]\nname = "local"\nbase_url = "{url}/v1"\nwire_api = "responses"\n'
        "[analytics]\nenabled = false\n"
    )
    return Run(
        [("exec_command", {"cmd": f"sed -i 's/{OLD}/{NEW}/' mean.py"})],
        ["codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK],
        {},
        {".codex/config.toml": config},
    )


def opencode(url: str, path: str) -> Run:
    options = {"baseURL": f"{url}/v1", "apiKey": "none"}
    local = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "local",
        "options": options,
        "models": {"tiny": {"name": "tiny"}},
    }
    config = {
        "autoupdate": False,
        "share": "disabled",
        "provider": {"local": local},
        "model": "local/tiny",
        "permission": {"edit": "allow", "bash": "allow"},
    }
    off = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")
    return Run(
        [("read", {"filePath": path}), ("edit", {"filePath": path, "oldString": OLD, "newString": NEW})],
        ["opencode", "run", TASK],
        {"OPENCODE_CONFIG_CONTENT": json.dumps(config)} | {f"OPENCODE_DISABLE_{each}": "1" for each in off},
        {},
    )


def qwen(url: str, path: str) -> Run:
    settings = {
        "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "security": {"auth": {"selectedType": "openai"}},
    }
    return Run(
        [("read_file", {"file_path": path}), ("edit", {"file_path": path, "old_string": OLD, "new_string": NEW})],
        ["qwen", "-p", TASK, "--approval-mode", "yolo"],
        {
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": "none",
            "OPENAI_MODEL": "tiny",
            "QWEN_TELEMETRY_ENABLED": "0",
        },
        {".qwen/settings.json": json.dumps(settings)},
    )


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of the agents' commands."""
    stamp = FOLDER / "installed"
    if not stamp.is_file() or stamp.read_text() != " ".join(PACKAGES):
        FOLDER.mkdir(parents=True, exist_ok=True)
        install = ["npm", "install", "--no-fund", "--no-audit", "--prefix", str(FOLDER), *PACKAGES]
        done = subprocess.run(install, capture_output=True, text=True, timeout=900)
        if done.returncode:
            pytest.skip(f"npm does not install the agents: {done.stderr[-300:]}")
        package = FOLDER / "node_modules" / "opencode-ai"  # some versions of npm run no scripts of packages
        subprocess.run(["node", "postinstall.mjs"], cwd=package, capture_output=True, check=False, timeout=300)
        stamp.write_text(" ".join(PACKAGES))
    return FOLDER / "node_modules" / ".bin"


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str, int]]]:
    """Method, path and status of all that servers answer."""
    found: list[tuple[str, str, int]] = []
    create = fake_backend.create_app

    def recording(*arguments: Any) -> Any:
        app = create(*arguments)

        async def wrapped(scope: Any, receive: Any, send: Any) -> None:
            async def sent(message: Any) -> None:
                if message["type"] == "http.response.start":
                    found.append((scope["method"], scope["path"], message["status"]))
                await send(message)

            await app(scope, receive, sent if scope["type"] == "http" else send)

        return wrapped

    monkeypatch.setattr(fake_backend, "create_app", recording)
    yield found


def work(programs: Path, folder: Path, run: Run) -> tuple[subprocess.CompletedProcess[str], str]:
    """Let an agent work, in folders of its own; how it ended, and the file afterwards."""
    for name, content in run.files.items():
        (folder / "home" / name).parent.mkdir(parents=True)
        (folder / "home" / name).write_text(content)
    own = {name: os.environ[name] for name in ("PATH", "LANG", "TERM") if name in os.environ}
    done = subprocess.run(
        [str(programs / run.command[0]), *run.command[1:]],
        cwd=folder / "work",
        env={**own, "HOME": str(folder / "home"), "CI": "1", "NO_COLOR": "1", **run.variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300 if MODEL is None else 3000,
    )
    return done, (folder / "work" / "mean.py").read_text()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file that is to be corrected, in a folder beside the agent's home."""
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "mean.py").write_text(WRONG)
    return tmp_path / "work" / "mean.py"


AGENTS = pytest.mark.parametrize("agent", [claude, codex, opencode, qwen], ids=lambda each: each.__name__)


@pytest.mark.parametrize("dialect", DIALECTS)
@AGENTS
def test_a_small_edit(
    programs: Path, path: Path, monkeypatch: pytest.MonkeyPatch, agent: Callable[[str, str], Run], dialect: str
) -> None:
    """The file is right afterwards, and nothing that the agent asked was refused."""
    template, write = DIALECTS[dialect]
    monkeypatch.setattr(fake_backend.tokenizer(), "chat_template", template)
    model = ScriptedModel([], write)
    with recorded(monkeypatch) as statuses, serving(model) as client:
        run = agent(str(client.base_url), str(path))
        model._script = run.script
        done, text = work(programs, path.parents[1], run)
    said = f"{done.stdout}\n{done.stderr}\n{statuses}"
    assert done.returncode == 0, said
    assert text == RIGHT, said
    assert statuses, said
    assert not [each for each in statuses if each[2] >= 400], said


def passing_on(url: str) -> Starlette:
    """An application whose requests the server at `url` answers."""
    client = httpx.AsyncClient(base_url=url, timeout=None, trust_env=False)

    async def answer(request: Request) -> StreamingResponse:
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        asked = client.build_request(request.method, path, headers=request.headers.raw, content=await request.body())
        found = await client.send(asked, stream=True)
        end = BackgroundTask(found.aclose)
        return StreamingResponse(found.aiter_raw(), found.status_code, dict(found.headers), background=end)

    return Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST", "HEAD"])])


@pytest.mark.skipif(MODEL is None, reason="CODING_MODEL names no model that can write code")
@AGENTS
def test_with_a_real_model(
    programs: Path, path: Path, monkeypatch: pytest.MonkeyPatch, agent: Callable[[str, str], Run]
) -> None:
    """A model may fail at the task, which is printed; nothing that the agent asks is refused."""
    words = ["-m", str(MODEL), "--assistant-model", os.environ.get("CODING_ASSISTANT", "lookup"), "--offline"]
    with OwnServer([*words, "--precision", "int8", "--served-model-name", "tiny"]) as server:
        monkeypatch.setattr(fake_backend, "create_app", lambda *_: passing_on("http://{}:{}".format(*server.address)))
        with recorded(monkeypatch) as statuses, serving(None) as client:
            done, text = work(programs, path.parents[1], agent(str(client.base_url), str(path)))
    said = f"{done.stdout}\n{done.stderr}\n{statuses}"
    print(
        f"{agent.__name__}: {'done' if text == RIGHT else 'not done'} in {len(statuses)} requests: {done.stdout}{text}"
    )
    assert [each for each in statuses if each[0] == "POST"], said
    assert not [each for each in statuses if each[2] >= 400], said
    assert done.returncode == 0, said
