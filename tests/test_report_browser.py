"""The page as people meet it: in a browser, on desk and phone, dark and light, by mouse and by keyboard."""

import os
import shutil

import pytest
import report_studies as studies

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None and not os.environ.get("CI"), reason="no chromium: apt-get install chromium"),
]

# Every element with text of its own whose contrast with what lies behind it is under WCAG 2.2 AA.
LOW_CONTRAST = """() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = (rgb) => rgb.slice(0, 3).map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = numbers(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll("body *")]
    .filter((element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()))
    .filter((element) => !["SCRIPT", "STYLE", "title", "style"].includes(element.tagName) && element.getClientRects().length)
    .map((element) => {
      const style = getComputedStyle(element);
      const [one, other] = [numbers(element.closest("svg") ? style.fill : style.color), behind(element)].map(luminance).sort((a, b) => b - a);
      return [element.tagName, element.textContent.slice(0, 30), (one + 0.05) / (other + 0.05)];
    })
    .filter(([, , ratio]) => ratio < 4.5);
}"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A page with everything on it: answers, a null, an invalid cell, a diagnostic one, and one that is missing."""
    root = studies.write(tmp_path_factory.mktemp("page"), studies.matrix())
    studies.write(root, ["h100_vllm_code_mtp"], studies.invalidate)
    studies.write(root, ["h100_vllm_generic_mtp"], studies.diagnostic, concurrency=(1, 4))
    fresh = {"state": "fresh", "in_matrix": True, "differences": []}
    studies.build(root, {name: fresh for name in studies.matrix(("cpu", "h100"))})
    return (root / "report/index.html").as_uri()


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@pytest.fixture
def opened(browser, address):
    """opened(width, scheme): the page, which fails the test for any message on the console and any request but its own."""
    pages, wrong = [], []

    def open_(width: int, scheme: str):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: wrong.append(request.url) if request.url != address and not request.url.startswith("data:") else None)
        page.goto(address)
        pages.append(page)
        return page

    yield open_
    for page in pages:
        page.close()
    assert wrong == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390, 320])
def test_it_fits_and_can_be_read(opened, width, scheme):
    page = opened(width, scheme)
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(LOW_CONTRAST) == []


def test_landmarks_and_names(opened):
    page = opened(1440, "light")
    assert [page.locator(name).count() for name in ("header", "nav", "main", "h1")] == [1, 1, 1, 1]
    assert page.evaluate("[...document.querySelectorAll('[aria-labelledby]')].every((e) => document.getElementById(e.getAttribute('aria-labelledby')))")
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((element) => element.id)")
    assert len(ids) == len(set(ids))
    targets = page.evaluate("[...document.querySelectorAll('nav a')].map((link) => link.hash.slice(1))")
    assert set(targets) <= set(ids)


def test_the_keyboard_reaches_the_answer_and_where_a_figure_comes_from(opened):
    page = opened(1440, "light")
    tip = page.locator("#tip")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    for _ in range(4):  # the table's box scrolls, so it takes the focus before its figures
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('#answer a.f')"):
            break
    assert page.evaluate("document.activeElement.matches('#answer a.f:focus-visible')")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert tip.is_visible() and "/summary/loads/0/speedup/ratio" in tip.inner_text()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.closest('#tip') !== null")
    assert page.evaluate("document.activeElement.getAttribute('href')").startswith("../metrics/runs/")
    page.keyboard.press("Escape")
    assert not tip.is_visible() and page.evaluate("document.activeElement.matches('#answer a.f')")


def test_everything_that_can_be_pressed_takes_the_focus(opened):
    page = opened(390, "light")
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true })")
    assert page.evaluate("[...document.querySelectorAll('a[href], summary, .scroll')].filter((e) => e.getClientRects().length && e.tabIndex < 0).length") == 0


@pytest.mark.parametrize("width", [1440, 390])
def test_pointing_shows_and_pressing_keeps_where_a_figure_comes_from(opened, width):
    page = opened(width, "dark")
    figure, tip = page.locator("#answer a.f").first, page.locator("#tip")
    figure.hover()
    assert tip.is_visible() and "result.json" in tip.inner_text() and "records" in tip.inner_text()
    page.locator("h1").hover()
    assert not tip.is_visible()
    figure.click()
    page.locator("h1").hover()
    assert tip.is_visible()
    box = tip.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= width
    page.locator("h1").click()
    assert not tip.is_visible()


def test_a_point_of_a_plot_leads_to_its_number(opened):
    page = opened(1440, "light")
    page.locator("svg.plot a").first.hover()
    assert "/summary/loads/0/speedup/ratio" in page.locator("#tip").inner_text()


def test_print_leaves_the_navigation_out(opened):
    page = opened(1440, "light")
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible() and page.locator("#answer").is_visible()
