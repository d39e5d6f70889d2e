"""The server's chat page in a browser: asked something, and photographed."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ipex_assist.env.errors import IpexAssistError, UsageError

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

SIZE = {"width": 1200, "height": 660}
SCALE = 1.5  # pixels of the picture for each of the page's
ANSWER_SECONDS = 120


@contextmanager
def chromium() -> Iterator[Browser]:
    """The system's Chromium, without a window. Raises UsageError where there is none."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    if program is None:
        raise UsageError("the page's picture needs Chromium, which is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def ask(page: Page, text: str) -> Locator:
    """Send a message and wait for its whole answer."""
    answers = page.locator(".message.assistant")
    number = answers.count()
    page.get_by_role("textbox", name="Message").fill(text)
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Send").wait_for()
    answer = answers.nth(number)
    answer.locator(".sum").wait_for()
    return answer


def photograph(url: str, messages: Sequence[str], path: Path) -> list[str]:
    """Hold a conversation on the page at url and save a picture of it, a PNG of at most 256 colours.

    The answers, which are returned, are the likeliest ones. Raises IpexAssistError where the page does not give them.
    """
    from PIL import Image
    from playwright.sync_api import Error

    with chromium() as browser:
        page = browser.new_page(viewport=SIZE, device_scale_factor=SCALE, color_scheme="light")  # type: ignore[arg-type]
        page.set_default_timeout(1000 * ANSWER_SECONDS)
        try:
            page.goto(url)
            page.get_by_role("button", name="Options").click()
            page.get_by_label("Temperature").fill("0")
            page.get_by_role("button", name="Done").click()
            page.get_by_label("mark drafted text").check()
            answers = [ask(page, message).locator(".body").inner_text() for message in messages]
            page.mouse.move(0, 0)  # where nothing is shown for pointing at it
            taken = Image.open(io.BytesIO(page.screenshot(animations="disabled")))
        except Error as error:
            raise IpexAssistError(f"the page at {url} gave no picture: {error}") from None
    taken.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    return answers
