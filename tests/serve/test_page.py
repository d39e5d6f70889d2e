"""The page at `/` in a real browser, against the real application with scripted texts behind it."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import re
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("fastapi", reason="the extra serve brings it")

from chat_page import ask, chromium
from fastapi import FastAPI
from fastapi.testclient import TestClient
from page_server import FOX, Scripted, served

from ipex_assist.serve.page import FILE, add_page

pytestmark = pytest.mark.one_stack

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HAS_BROWSER = importlib.util.find_spec("playwright") is not None and shutil.which("chromium") is not None
in_browser = pytest.mark.skipif(not HAS_BROWSER, reason="needs playwright and chromium")


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, Scripted]]:
    """One server for the whole module."""
    with served() as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for the whole module."""
    with chromium() as browser:
        yield browser


Opened = Callable[..., "Page"]


@pytest.fixture
def opened(browser: Browser, server: tuple[str, Scripted]) -> Iterator[Opened]:
    """Opens the page in a context of its own; at the end no script has failed and nothing broke the policy."""
    contexts, complaints = [], list[str]()

    def open_page(url: str | None = None, **settings: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **settings})
        context.set_default_timeout(30_000)  # of a busy machine
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(url or server[0])
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [each for each in complaints if "Failed to load resource" not in each] == []


# ---- Without a browser


def client() -> TestClient:
    """An application of nothing but the page."""
    app = FastAPI()
    add_page(app)
    return TestClient(app)


def test_the_policy_lets_run_what_the_file_has_and_nothing_else() -> None:
    """A hash that does not fit would leave a page without its script; 'unsafe-inline' would run a model's."""
    answer = client().get("/")
    policy = answer.headers["content-security-policy"]
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    for kind, count in (("script", 3), ("style", 1)):
        contents = re.findall(rf"<{kind}\b[^>]*>(.*?)</{kind}>", answer.text, re.DOTALL)
        assert len(contents) == count
        assert all(len(content) > 1000 for content in contents), "a library is missing"
        digests = [base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() for content in contents]
        allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
        assert f"{kind}-src {allowed};" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


def test_the_file_needs_nothing_from_elsewhere_and_makes_no_html_of_text() -> None:
    """One file, whole; and none of the ways in which text becomes elements."""
    text = FILE.read_text(encoding="utf-8")
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", text)
    assert "@import" not in text
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser"):
        assert word not in text


def test_a_browser_that_has_the_page_is_told_so() -> None:
    """By its ETag; the headers of the answer are the same."""
    first = client().get("/")
    again = client().get("/", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["content-security-policy"] == first.headers["content-security-policy"]


# ---- In a browser


@in_browser
def test_an_answer_has_its_draft_marked_and_measured(opened: Opened, server: tuple[str, Scripted]) -> None:
    """Where marks are asked for, exactly the drafted tokens, by colour and by a line; what a token is, on hovering;
    figures beside it; all of it again after the page was loaded again."""
    page = opened()
    answer = ask(page, "fox")
    mark = answer.get_by_text(" quick", exact=True)
    assert mark.evaluate("node => getComputedStyle(node).textDecorationLine") == "none"
    page.get_by_label("mark drafted text").check()
    for _ in range(2):
        drafted = answer.locator(".body .d")
        wanted = [text for texts in FOX for text in texts[:-1]]
        shown = "".join(drafted.all_text_contents())
        assert shown == "".join(wanted).replace("```", "").replace("- **", "").replace("python\n", "").replace("**", "")
        assert answer.locator("pre code").text_content() == "def add(a, b):\n    return a + b\n"
        assert answer.locator("li").all_text_contents() == ["one and two", "three"]
        assert answer.locator("strong").text_content() == "one"
        own, mark = (
            answer.get_by_text(text, exact=True).first.evaluate(
                "node => [getComputedStyle(node).color, getComputedStyle(node).textDecorationLine]"
            )
            for text in (" fox", " quick")
        )
        assert (own[1], mark[1]) == ("none", "underline")
        assert own[0] != mark[0]
        # Beneath the blanks at a line's beginning a mark would look like underscores.
        blank = answer.locator(".body .d").filter(has_text=re.compile(r"^\s+$")).first
        assert blank.evaluate("node => getComputedStyle(node).textDecorationLine") == "none"
        figures = page.get_by_role("complementary")
        assert "1.75×" in figures.inner_text()
        shares = ", ".join(f"position {n}: {share}\u202f%" for n, share in enumerate((80, 50, 10), 1))
        assert figures.get_by_role("img", name=shares).count() == 1
        page.reload()
        answer = page.locator(".message.assistant")
    answer.get_by_text(" brown", exact=True).hover()
    assert page.locator("#tip").inner_text() == "token 3 of 25, drafted: 2nd of its draft, pass 2"
    answer.get_by_text(" jumps", exact=True).hover()
    assert page.locator("#tip").inner_text() == "token 5 of 25, the target's own, pass 3"


@in_browser
def test_a_thought_is_folded_above_the_answer(
    opened: Opened, server: tuple[str, Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is text whatever it has, opens by a click, is there again after the page was loaded again, and is no part of
    the answer that is copied, exported or sent back."""
    monkeypatch.setattr(
        server[1].tokenizer, "chat_template", f"{server[1].tokenizer.chat_template}{{# <think> </think> #}}"
    )
    page = opened()
    answer = ask(page, "ponder")
    for _ in range(2):
        thought = answer.locator("details.thought")
        assert thought.get_by_text("Thought", exact=True).is_visible()
        assert not thought.locator("div").is_visible()
        thought.locator("summary").click()
        assert thought.locator("div").inner_text() == "Is it <b>red</b>?"
        assert answer.locator(".body").inner_text().strip() == "It is red."
        page.reload()
        answer = page.locator(".message.assistant")
    ask(page, "fox")
    assert "It is red." in server[1].said()
    assert "Is it" not in server[1].said()


@in_browser
def test_code_is_coloured_and_stays_the_text_of_its_tokens(opened: Opened) -> None:
    """Ranges of the right words, while the nodes of the code are those of its tokens; again after a reload."""
    page = opened()
    ask(page, "fox")
    script = "name => [...CSS.highlights.get(name)].map(String)"
    for _ in range(2):
        page.locator(".message.assistant .sum").wait_for()
        assert page.evaluate(script, "code-keyword") == ["def", "return"]
        assert page.evaluate(script, "code-name") == ["add"]
        assert page.evaluate(script, "code-comment") == []
        page.reload()
    page.get_by_role("button", name="New chat").click()
    assert page.evaluate(script, "code-keyword") == []


@in_browser
def test_formulas(opened: Opened) -> None:
    """All four forms become MathML, in a line and on lines of their own; prices, code and what is none stay text."""
    page = opened()
    answer = ask(page, "formulas")
    sources = answer.locator("math annotation").all_text_contents()
    assert [each.strip() for each in sources[:4]] == ["e^{i\\pi} + 1 = 0", "\\frac{1}{2}", "x^2", "y"]
    assert answer.locator(".math.display").count() == 2
    assert answer.locator("mfrac").count() == 1
    text = answer.locator(".body").inner_text()
    for shown in ("which costs $5 or $10.", "$\\nonsense{$", "$b$", "$c$ d."):
        assert shown in text
    assert answer.locator("a, math [href]").count() == 0


@in_browser
@pytest.mark.parametrize(("label", "name"), [("Markdown", "fox.md"), ("JSON", "fox.json")])
def test_a_conversation_is_exported(label: str, name: str, opened: Opened, server: tuple[str, Scripted]) -> None:
    """As a file whose content is what was said; JSON is what the API takes, so it gives the same prompt again."""
    page, backend = opened(), server[1]
    ask(page, "fox")
    page.get_by_role("button", name="Options").click()
    page.get_by_label("System prompt").fill("be brief")
    page.get_by_role("button", name="Done").click()
    page.get_by_role("button", name="Options").click()
    with page.expect_download() as download:
        page.get_by_role("button", name=label).click()
    assert download.value.suggested_filename == name
    text = download.value.path().read_text(encoding="utf-8")
    answer = "".join(piece for texts in FOX for piece in texts)
    if label == "Markdown":
        assert text == f"# fox\n\n## System\n\nbe brief\n\n## User\n\nfox\n\n## Assistant\n\n{answer.strip()}\n"
        return
    body = json.loads(text)
    said = [("system", "be brief"), ("user", "fox"), ("assistant", answer)]
    assert [(each["role"], each["content"]) for each in body["messages"]] == said
    body["messages"].append({"role": "user", "content": "fox"})
    answered = page.request.post(f"{server[0]}v1/chat/completions", data=body)
    assert answered.ok, answered.text()
    assert "be brief" in backend.said()


@in_browser
def test_models_and_adapters_are_chosen(opened: Opened) -> None:
    """Where the server has several: requests name the chosen one, which the page remembers; a single one is a name."""
    page = opened()
    page.get_by_text("tiny-chat, drafted by tiny-draft").wait_for()
    assert not page.get_by_label("Model").is_visible()
    listed = [{"id": "big", "assistant": "org/small"}, {"id": "legal", "parent": "big"}]
    asked: list[str] = []

    def answer(route: Any) -> None:
        asked.append(route.request.post_data_json["model"])
        route.fulfill(body='data: {"choices": [{"delta": {"content": "Yes."}, "finish_reason": "stop"}]}\n\n')

    page.route("**/v1/models", lambda route: route.fulfill(json={"data": listed}))
    page.route("**/v1/chat/completions", answer)
    page.reload()
    choice = page.get_by_label("Model")
    choice.wait_for()
    assert choice.locator("option").all_inner_texts() == ["big", "legal (adapter of big)"]
    ask(page, "fox")
    choice.select_option("legal")
    ask(page, "fox")
    page.reload()
    ask(page, "fox")
    assert asked == ["big", "legal", "legal"]


@in_browser
def test_stop_retry_edit_and_options(opened: Opened, server: tuple[str, Scripted]) -> None:
    """Stopping cancels at the server and keeps what came; the next request has what the page shows, and no more."""
    page, backend = opened(), server[1]
    backend.cancelled.clear()
    page.get_by_role("textbox", name="Message").fill("endless")
    page.get_by_role("button", name="Send").click()
    page.get_by_text("more").first.wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped.").wait_for()
    assert backend.cancelled.wait(30)
    assert "more and" in page.locator(".message.assistant .body").inner_text()
    page.get_by_role("button", name="Options").click()
    page.get_by_label("System prompt").fill("be brief")
    for name, value in (("Temperature", "0.5"), ("Max tokens", "5"), ("Seed", "7")):
        page.get_by_label(name).fill(value)
    page.get_by_label("Use drafts").uncheck()
    page.get_by_role("button", name="Done").click()
    page.get_by_role("button", name="Edit this message").click()
    page.get_by_role("textbox", name="Edit the message").fill("fox")
    page.keyboard.press("Enter")
    page.locator(".sum").wait_for()
    options = backend.requests[-1].options
    assert (options.temperature, options.seed, options.max_new_tokens, options.assisted) == (0.5, 7, 5, False)
    assert "be brief" in backend.said()
    assert "endless" not in backend.said()
    count = len(backend.requests)
    page.get_by_role("button", name="Answer again").click()
    page.locator(".sum").wait_for()
    assert len(backend.requests) == count + 1
    assert backend.requests[-1].tokens == backend.requests[-2].tokens
    assert page.locator(".message").count() == 2


@in_browser
def test_what_a_model_writes_is_text(opened: Opened) -> None:
    """Markup, scripts and links of odd schemes are shown as they are written; a link leads where it says, elsewhere."""
    page = opened()
    answer = ask(page, "evil")
    links = answer.locator("a").evaluate_all("all => all.map(a => [a.href, a.rel, a.target])")
    rel = "noopener noreferrer nofollow"
    assert links == [["https://example.org/path", rel, "_blank"], ["https://example.com/x", rel, "_blank"]]
    text = answer.locator(".body").inner_text()
    for shown in ("<script>window.bad = 1</script>", "[click](javascript:window.bad=1)", "<b>bold"):
        assert shown in text
    assert answer.locator("script, img, b, iframe").count() == 0
    ask(page, '<img src=x onerror="window.bad = 1"> evil')
    page.reload()
    page.locator(".message.assistant .sum").first.wait_for()
    assert page.evaluate("window.bad") is None
    assert page.locator("img").count() == 0


@in_browser
def test_with_the_keyboard_alone(opened: Opened) -> None:
    """Everything is reached by Tab; tokens by arrows, and said; Esc stops; the other tab by an arrow."""
    page = opened()
    keys = page.keyboard
    focused = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"
    assert page.evaluate(focused) == "Message"
    keys.type("fox")
    keys.press("Enter")
    page.locator(".sum").wait_for()
    said = page.locator("#say")
    assert "The quick brown fox jumps over the lazy dog." in said.inner_text()
    assert "End of the answer. 25 tokens" in said.inner_text()
    reached = []
    for _ in range(12):
        keys.press("Shift+Tab")
        reached.append(page.evaluate(focused))
        if reached[-1].startswith("Text of the answer"):
            break
    assert {"Copy this text", "Answer again", "Copy this code"} <= set(reached)
    for _ in range(3):
        keys.press("ArrowRight")
    assert said.locator("p").last.inner_text() == "brown: token 3 of 25, drafted: 2nd of its draft, pass 2"
    assert page.locator(".k.at").text_content() == "brown"
    keys.press("Escape")
    page.get_by_role("textbox", name="Message").focus()
    keys.press("ArrowUp")
    assert page.evaluate(focused) == "Edit the message"
    keys.press("Escape")
    keys.type("endless")
    keys.press("Enter")
    page.get_by_text(" more").first.wait_for()
    keys.press("Escape")
    page.get_by_text("Stopped.").wait_for()
    page.get_by_role("tab", name="Chat").focus()
    keys.press("ArrowRight")
    assert page.get_by_role("tab", name="Server").get_attribute("aria-selected") == "true"
    assert page.evaluate(focused) == "Server"


CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const linear = (c) => c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const found = rgb(getComputedStyle(node).backgroundColor);
      if (found[3] === 255) return found;
    }
    return [255, 255, 255, 255];
  };
  const weak = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!own || !node.checkVisibility({opacityProperty: true}) || node.closest(".only-read, :disabled, svg")) continue;
    const [a, b] = [light(rgb(getComputedStyle(node).color)), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) weak.push([node.className, node.textContent.slice(0, 20), ratio]);
  }
  return weak;
}"""


@in_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_readable_in_both_schemes(scheme: str, opened: Opened) -> None:
    """All text has the contrast that WCAG's level AA asks for, on both tabs, and dark is dark."""
    page = opened(color_scheme=scheme)
    ask(page, "fox")
    assert page.evaluate(CONTRAST) == []
    red = int(re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[0])
    assert (red < 60) == (scheme == "dark")
    page.get_by_role("tab", name="Server").click()
    page.locator(".tile").first.wait_for()
    assert page.evaluate(CONTRAST) == []


@in_browser
def test_on_a_phone(opened: Opened) -> None:
    """Nothing is wider than the screen, the message can be typed, conversations and figures are behind a button."""
    page = opened(viewport={"width": 360, "height": 700}, has_touch=True, is_mobile=True)
    answer = ask(page, "fox")
    assert page.evaluate("document.scrollingElement.scrollWidth") == 360
    box = page.get_by_role("textbox", name="Message").bounding_box()
    assert box is not None
    assert box["width"] > 150
    assert not page.get_by_text("Tokens per pass").is_visible()
    page.locator("#figures-more").tap()
    assert page.get_by_text("Tokens per pass").is_visible()
    answer.get_by_text(" brown", exact=True).tap()
    assert "2nd of its draft" in page.locator("#tip").inner_text()
    assert not page.get_by_role("button", name="New chat").is_visible()
    page.get_by_role("button", name="Conversations").tap()
    page.get_by_role("button", name="New chat").tap()
    assert page.get_by_text("Ask something.").is_visible()
    page.get_by_role("tab", name="Server").tap()
    page.locator(".tile").first.wait_for()
    assert page.evaluate("document.scrollingElement.scrollWidth") == 360


@in_browser
@pytest.mark.parametrize("size", [(360, 700), (820, 1180), (1280, 800)])
def test_code_formulas_and_models_fit_on_the_screen(size: tuple[int, int], opened: Opened) -> None:
    """A long name of a model or a wide formula scrolls or is cut by itself; the page does not."""
    page = opened(viewport={"width": size[0], "height": size[1]})
    listed = [{"id": "a-very-long-name-of-a-model-" * 5, "assistant": "org/small"}, {"id": "legal", "parent": "big"}]
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": listed}))
    page.reload()
    page.get_by_label("Model").wait_for()
    page.unroute("**/v1/models")
    page.get_by_label("Model").select_option("legal")
    wide = {"choices": [{"delta": {"content": "$$" + "x + " * 200 + "y$$\n\n```py\n" + "f(x); " * 200 + "\n```\n"}}]}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=f"data: {json.dumps(wide)}\n\n"))
    answer = ask(page, "fox")
    answer.locator("math").wait_for()
    for name in ("New chat", "Options"):
        assert size[0] < 800 or page.get_by_role("button", name=name).is_visible()
    assert page.evaluate("document.scrollingElement.scrollWidth") == size[0]


@in_browser
def test_the_server_tab_reads_the_metrics(opened: Opened) -> None:
    """By the names that /metrics really has: a figure whose name is wrong would be missing."""
    page = opened()
    ask(page, "fox")
    page.get_by_role("tab", name="Server").click()
    page.locator(".tile").first.wait_for()
    tiles = dict(
        zip(page.locator(".tile dt").all_inner_texts(), page.locator(".tile dd").all_inner_texts(), strict=True)
    )
    assert (tiles["Running"], tiles["Waiting"], tiles["KV cache in use"]) == ("2", "3", "25\u202f%")
    assert (tiles["Engines"], tiles["Prefix cache hits"]) == ("2 of 2", "75\u202f%")
    assert {"Acceptance rate", "Tokens per draft", "Time to first token", "Time per token", "Requests"} <= set(tiles)
    assert page.get_by_role("img", name="Accepted by position in the draft").is_visible()


@in_browser
def test_a_server_that_wants_a_key_is_given_one(opened: Opened) -> None:
    """The page asks for it once, keeps it for this tab, and says when it is wrong."""
    with served(api_key=("sesame",)) as (url, backend):
        page = opened(url)
        page.get_by_label("API key").fill("wrong")
        page.keyboard.press("Enter")
        page.get_by_label("API key").fill("sesame")
        page.keyboard.press("Enter")
        page.get_by_text("tiny-chat").first.wait_for()
        ask(page, "fox")
        page.reload()
        page.get_by_text("tiny-chat").first.wait_for()
        assert not page.get_by_role("dialog").is_visible()
        assert len(backend.requests) == 1
        assert page.evaluate("JSON.stringify(localStorage)").find("sesame") < 0


@in_browser
def test_behind_the_prefix_of_a_proxy(opened: Opened) -> None:
    """Addresses are relative to the page's own."""
    with served(root_path="/llm") as (url, _):
        page = opened(f"{url}llm/")
        page.get_by_text("tiny-chat").first.wait_for()
        ask(page, "fox")


@in_browser
def test_what_goes_wrong_is_said(opened: Opened) -> None:
    """A server that is gone, one that is full, and a stream that breaks off; the next try has the same message."""
    page = opened()
    full = {"error": {"message": "the queue is full, with 16 requests"}}
    begun, ended = {"choices": [{"delta": {"content": "The qu"}}]}, {"error": {"message": "the engine died"}}
    answers: list[dict[str, Any]] = [
        {"status": 429, "json": full, "headers": {"Retry-After": "7"}},
        {"body": "".join(f"data: {json.dumps(each)}\n\n" for each in (begun, ended))},
        {"status": 503, "body": "<h1>Bad gateway</h1>"},
    ]
    page.route("**/v1/chat/completions", lambda route: route.fulfill(**answers.pop(0)) if answers else route.abort())
    page.get_by_role("textbox", name="Message").fill("fox")
    page.keyboard.press("Enter")
    for said in (
        "the queue is full, with 16 requests (there may be room in 7 s)",
        "the engine died",
        "<h1>Bad gateway</h1>",
        "The server does not answer. Is it running?",
    ):
        page.locator(".note.wrong", has_text=said).wait_for()
        page.get_by_role("button", name="Answer again").click()
    page.unroute("**/v1/chat/completions")
    page.get_by_role("button", name="Answer again").click()
    page.locator(".sum").wait_for()
    assert page.locator(".note.wrong").count() == 0


PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
# A file that is pasted, or dropped: (which, base64).
GIVE = """([kind, data]) => {
  const bytes = Uint8Array.from(atob(data), (each) => each.charCodeAt(0)), transfer = new DataTransfer();
  transfer.items.add(new File([bytes], "one.png", { type: "image/png" }));
  transfer.items.add(new File(["text"], "notes.txt", { type: "text/plain" }));
  const told = { bubbles: true, cancelable: true };
  const event = kind === "paste" ? new ClipboardEvent("paste", { clipboardData: transfer, ...told })
    : new DragEvent("drop", { dataTransfer: transfer, ...told });
  document.getElementById("input").dispatchEvent(event);
}"""


@in_browser
@pytest.mark.parametrize("size", [(360, 700), (820, 1180), (1280, 800)])
def test_images_are_pasted_dropped_and_chosen(size: tuple[int, int], opened: Opened) -> None:
    """Seen before they are sent and after, taken away by a click, and sent again with what follows."""
    page = opened(viewport={"width": size[0], "height": size[1]})
    bodies: list[Any] = []
    made = {"choices": [{"delta": {"content": "a dot"}}]}

    def answer(route: Any) -> None:
        bodies.append(route.request.post_data_json)
        route.fulfill(body=f"data: {json.dumps(made)}\n\ndata: [DONE]\n\n")

    page.route("**/v1/chat/completions", answer)
    data = base64.b64encode(PIXEL).decode()
    page.evaluate(GIVE, ["paste", data])
    page.locator("#images img").wait_for()
    page.evaluate(GIVE, ["drop", data])
    page.set_input_files("#files", {"name": "two.png", "mimeType": "image/png", "buffer": PIXEL})
    page.locator("#images img").nth(2).wait_for()
    page.get_by_role("button", name="Remove image 2").click()
    assert page.locator("#images img").count() == 2, "three were given, and no text file"
    assert page.evaluate("document.scrollingElement.scrollWidth") == size[0]
    page.get_by_label("Message", exact=True).fill("What is it?")
    page.get_by_role("button", name="Send").click()
    page.get_by_role("article", name="Answer").get_by_text("a dot").wait_for()
    shown = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    asked = [shown, shown, {"type": "text", "text": "What is it?"}]
    assert bodies[0]["messages"][-1]["content"] == asked
    assert page.locator("#images").is_hidden()
    assert page.locator(".message.user img").count() == 2
    page.reload()
    page.locator(".message.user img").nth(1).wait_for()
    page.get_by_label("Message", exact=True).fill("And now?")
    page.get_by_role("button", name="Send").click()
    page.get_by_role("article", name="Answer").nth(1).get_by_text("a dot").wait_for()
    assert [each["content"] for each in bodies[1]["messages"]] == [asked, "a dot", "And now?"]
    assert page.evaluate("document.scrollingElement.scrollWidth") == size[0]
