"""The page in a real Chromium: strokes and files in, answers on the screen."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
import uvicorn
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.actions.pointer_input import PointerInput
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from tenfold.serving import app, protocol
from tenfold.serving.classifier import Classifier
from tests.servers import free_port

pytestmark = [pytest.mark.xdist_group("page"), pytest.mark.timeout(120)]

DIGITS = [str(digit) for digit in range(10)]
Point = tuple[float, float]
SEVEN: list[Point] = [(-0.25, -0.3), (0.25, -0.3), (0.1, 0.05), (-0.05, 0.35)]
"""From the middle of the paper, as shares of its side."""
BAR: list[Point] = [(0.0, -0.3), (0.0, 0.3)]

# Keeps what the page asks and hears. While `holding`, answers stay away until they are released, and cannot be aborted.
RECORDER = """
window.exchanges = []; window.blocked = []; window.holding = false; window.held = [];
document.addEventListener("securitypolicyviolation", (event) => blocked.push(event.blockedURI));
const real = window.fetch;
window.fetch = async (address, options) => {
  const asked = options.body ? JSON.parse(options.body) : null;
  const hold = asked && holding;
  const response = await real(address, hold ? { ...options, signal: undefined } : options);
  const exchange = { asked, status: response.status, answer: await response.clone().json() };
  if (hold) await new Promise((release) => held.push(release));
  if (asked) exchanges.push(exchange);
  return response;
};
"""


def network(path: Path, classes: list[str], handwriting: str | None) -> Classifier:
    """One layer of random weights, so bold that it says different things of different pictures."""
    weights = np.random.default_rng(0).normal(0, 0.002, (784, len(classes))).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["images"], ["numbers"], to=TensorProto.FLOAT),
            helper.make_node("Flatten", ["numbers"], ["flat"]),
            helper.make_node("MatMul", ["flat", "weights"], ["logits"]),
        ],
        "page",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, ["N", 1, 28, 28])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", len(classes)])],
        [numpy_helper.from_array(weights, "weights")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    notes = {"format": "2", "classes": json.dumps(classes), "image_shape": "[1, 28, 28]"}
    notes |= {"handwriting": handwriting} if handwriting else {}
    helper.set_model_props(model, {f"tenfold.{key}": value for key, value in notes.items()})
    onnx.save(model, path)
    return Classifier(path)


@contextmanager
def serve(classifier: Classifier, name: str) -> Iterator[str]:
    """The address of the application, in a thread of its own."""
    port = free_port()
    application = app.make(classifier, protocol.respond, name)
    server = uvicorn.Server(uvicorn.Config(application, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert thread.is_alive(), "the server ended"
        assert time.monotonic() < deadline, "the server did not come up"
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    return network(tmp_path_factory.mktemp("page") / "digits.onnx", DIGITS, '{"box": 20, "by_mass": true}')


@pytest.fixture(scope="module")
def address(digits: Classifier) -> Iterator[str]:
    with serve(digits, "models:/tenfold-mnist@champion") as address:
        yield address


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        assert not os.environ.get("CI"), "needs a browser: apt-get install chromium chromium-driver"
        pytest.skip("needs Chromium and its driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "disable-dev-shm-usage",
        "disable-background-networking",
    ):
        options.add_argument(f"--{argument}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('browser')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options, Service(driver))
    chrome.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": RECORDER})
    yield chrome
    chrome.quit()


class Page:
    """What a person does with the page, and sees on it."""

    def __init__(self, browser: webdriver.Chrome) -> None:
        self.browser = browser
        self.opened: list[str] = []

    def open(self, address: str, *, dark: bool = False, width: int = 1200) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.browser.get(address)
        self.opened += [f"{address}/", f"blob:{address}/"]
        self.wait(lambda: self.text("model") != "")

    def wait(self, condition: Callable[[], object]) -> None:
        WebDriverWait(self.browser, 10, 0.02).until(lambda _: condition())

    def script(self, code: str, *arguments: object) -> Any:
        return self.browser.execute_script(f"return {code}", *arguments)

    def text(self, identifier: str) -> str:
        content: str = self.script("document.getElementById(arguments[0]).textContent", identifier)
        return content.replace("\N{NO-BREAK SPACE}", " ")

    @property
    def state(self) -> str:
        state: str = self.script("document.getElementById('answer').dataset.state")
        return state

    @property
    def ink(self) -> int:
        """How many pixels of the paper are inked."""
        ink: int = self.script(
            "document.getElementById('canvas').getContext('2d').getImageData(0, 0, canvas.width, canvas.height)"
            ".data.filter((value, at) => at % 4 === 3 && value > 0).length"
        )
        return ink

    def settle(self, state: str) -> None:
        """Until the question is answered and the page shows this state."""
        self.wait(lambda: self.state == state and not self.script("answer.hasAttribute('aria-busy')"))

    def draw(
        self,
        points: list[Point],
        kind: Literal["mouse", "touch", "pen"] = "mouse",
        meanwhile: Callable[[], object] = bool,
    ) -> None:
        """One stroke; `meanwhile` happens before the pen is lifted."""
        if kind == "touch":
            self._touch(points, meanwhile)
            return
        canvas = self.browser.find_element(By.ID, "canvas")
        side = canvas.size["width"]
        pointer = PointerInput(kind, kind)
        actions = ActionBuilder(self.browser, mouse=pointer, duration=30)
        for number, (x, y) in enumerate(points):
            actions.pointer_action.move_to(canvas, round(x * side), round(y * side))
            if number == 0:
                actions.pointer_action.pointer_down()
        actions.perform()
        meanwhile()
        actions = ActionBuilder(self.browser, mouse=pointer, duration=30)
        actions.pointer_action.pointer_up()
        actions.perform()

    def _touch(self, points: list[Point], meanwhile: Callable[[], object]) -> None:
        """By the browser's own protocol: its driver forgets a finger between two calls, and never lifts it."""
        box = self.script("canvas.getBoundingClientRect().toJSON()")
        for number, (x, y) in enumerate(points):
            place = {"x": box["left"] + (0.5 + x) * box["width"], "y": box["top"] + (0.5 + y) * box["height"]}
            event = {"type": "touchMove" if number else "touchStart", "touchPoints": [place]}
            self.browser.execute_cdp_cmd("Input.dispatchTouchEvent", event)
        meanwhile()
        self.browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})

    def press(self, *keys: str) -> None:
        ActionChains(self.browser, duration=0).send_keys(*keys).perform()

    def click(self, identifier: str) -> None:
        self.browser.find_element(By.ID, identifier).click()

    def open_file(self, file: Path) -> None:
        self.browser.find_element(By.ID, "file").send_keys(str(file))

    def drop(self, *files: Path) -> None:
        data = {"items": [], "files": list(map(str, files)), "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            event = {"type": kind, "x": 5, "y": 5, "data": data}
            self.browser.execute_cdp_cmd("Input.dispatchDragEvent", event)

    def paste(self, content: str) -> None:
        self.browser.execute_script(
            "const bytes = Uint8Array.from(atob(arguments[0]), (letter) => letter.charCodeAt());"
            "const clipboardData = new DataTransfer();"
            "clipboardData.items.add(new File([bytes], 'image.png', { type: 'image/png' }));"
            "document.dispatchEvent(new ClipboardEvent('paste', { clipboardData }));",
            content,
        )

    @property
    def sent(self) -> str:
        """The picture of the last question, as base64."""
        ((picture,), params) = self.script("exchanges.at(-1).asked").values()
        assert params == {"return": "seen"}
        assert isinstance(picture, str)
        return picture

    def asked_anew(self, earlier: str) -> bool:
        """Whether another picture than that one has been answered, and nothing is under way."""
        return self.sent != earlier and not self.script("answer.hasAttribute('aria-busy')")

    def places(self) -> list[Any]:
        """Where the parts of the page lie."""
        places: list[Any] = self.script(
            "[...document.querySelectorAll('section, #bars, .track')]"
            ".map((part) => part.getBoundingClientRect().toJSON())"
        )
        return places

    def rows(self) -> list[tuple[str, str, bool]]:
        """Each bar's class and percentage, and whether it is marked as the answer."""
        rows: list[list[Any]] = self.script(
            "[...document.querySelectorAll('#bars li')].map((row) => [row.children[0].textContent,"
            " row.children[2].textContent, row.classList.contains('first')])"
        )
        return [(name, percent.replace("\N{NO-BREAK SPACE}", " "), first) for name, percent, first in rows]

    def lengths(self) -> list[float]:
        """How much of its track each bar fills, once it has come to rest."""
        self.wait(lambda: self.script("document.getAnimations().length === 0"))
        lengths: list[float] = self.script(
            "[...document.querySelectorAll('.bar')].map((bar) => {"
            " const track = bar.parentNode.getBoundingClientRect();"
            " return (bar.getBoundingClientRect().right - track.left) / track.width })"
        )
        return lengths

    def check(self, classifier: Classifier) -> None:
        """All that is shown is what the model says of the picture that was sent."""
        self.settle("answer")
        self.wait(lambda: self.text("heard") != "")  # it is read out only when the pen is up
        (expected,) = classifier.answer([self.sent], {"return": "seen"})
        share = expected["probability"]
        assert self.text("name") == expected["name"]
        assert self.text("details").startswith(f"{share:.0%} sure, in ".replace("%", " %"))
        assert self.text("heard") == f"{expected['name']}, {share:.0%}".replace("%", " %")
        assert self.rows() == [
            (name, f"{value:.1%}".replace("%", " %"), name == expected["name"])
            for name, value in expected["probabilities"].items()
        ]
        assert self.lengths() == pytest.approx(list(expected["probabilities"].values()), abs=0.01)
        assert self.script("seen.src") == f"data:image/png;base64,{expected['seen']}"
        self.wait(lambda: self.script("seen.naturalWidth") == 28)


@pytest.fixture
def page(browser: webdriver.Chrome, address: str) -> Iterator[Page]:
    """The page, opened. Whatever a test does, nothing may be asked of any other server, and nothing break."""
    browser.get_log("browser")
    browser.get_log("performance")
    page = Page(browser)
    page.open(address)
    yield page
    assert page.script("blocked") == [], "the page needs what its policy forbids"
    for entry in browser.get_log("performance"):
        event = json.loads(entry["message"])["message"]
        if event["method"] == "Network.requestWillBeSent":
            asked = event["params"]["request"]["url"]
            assert asked.startswith((*page.opened, "data:")), f"the page asked another server: {asked}"
    errors = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    provoked = ("status of 400", "ERR_INTERNET_DISCONNECTED")  # the browser notes them by itself
    assert [error for error in errors if not any(part in error for part in provoked)] == []


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scan of something: dark on light."""
    image = Image.new("RGB", (90, 120), "white")
    image.paste("navy", (40, 20, 55, 100))
    path = tmp_path_factory.mktemp("pictures") / "one.jpg"
    image.save(path)
    return path


@pytest.mark.parametrize("kind", ["mouse", "touch", "pen"])
def test_strokes_are_answered(page: Page, digits: Classifier, kind: Literal["mouse", "touch", "pen"]) -> None:
    assert page.state == "empty"
    assert page.text("title") == "Draw a digit"
    assert page.browser.title == "tenfold-mnist@champion · Tenfold"
    places = page.places()
    page.draw(SEVEN, kind, meanwhile=lambda: page.settle("answer"))
    page.check(digits)
    seven = page.sent
    sent = np.asarray(Image.open(io.BytesIO(base64.b64decode(seven))).convert("L"))
    rows, columns = np.nonzero(sent < 128)
    assert [rows.min(), rows.max(), columns.min(), columns.max()] == pytest.approx(
        [0.2 * 280 - 10, 0.85 * 280 + 10, 0.25 * 280 - 10, 0.72 * 280 + 10], abs=12
    ), "black strokes on white, where they were drawn"
    assert page.places() == places, "nothing moves when the answer comes"
    page.draw(BAR, kind)
    page.wait(lambda: page.asked_anew(seven))
    page.check(digits)
    page.click("undo")
    page.wait(lambda: page.sent == seven)
    page.check(digits)


def test_drawing_with_the_keyboard(page: Page, digits: Classifier) -> None:
    page.press(Keys.TAB)
    assert page.script("document.activeElement.id") == "canvas"
    page.press(*[Keys.ARROW_UP] * 12)
    assert page.ink == 0
    assert float(page.script("cursor.style.top").removesuffix("%")) == pytest.approx(20)
    ActionChains(page.browser, duration=0).key_down(Keys.SPACE).send_keys(*[Keys.ARROW_DOWN] * 20).key_up(
        Keys.SPACE
    ).perform()
    page.check(digits)
    bar = page.sent
    page.press(*[Keys.ARROW_LEFT] * 8, Keys.ENTER)
    hold = ActionChains(page.browser).key_down(Keys.ARROW_UP).key_down(Keys.ARROW_RIGHT).pause(0.5)
    hold.key_up(Keys.ARROW_UP).key_up(Keys.ARROW_RIGHT).send_keys(Keys.ENTER).perform()
    page.wait(lambda: page.asked_anew(bar))
    page.check(digits)
    ink = page.ink
    page.press(Keys.ARROW_LEFT)
    assert page.ink == ink, "the pen is up"
    ActionChains(page.browser).key_down(Keys.CONTROL).send_keys("z").key_up(Keys.CONTROL).perform()
    page.wait(lambda: page.sent == bar)
    page.check(digits)
    page.press(Keys.DELETE)
    page.settle("empty")
    page.wait(lambda: page.ink == 0)
    assert page.rows() == [(name, "", False) for name in DIGITS]


@pytest.mark.parametrize("way", ["open", "drop", "paste"])
def test_image_files(page: Page, digits: Classifier, picture: Path, way: str) -> None:
    content = base64.b64encode(picture.read_bytes()).decode()
    if way == "paste":
        page.paste(content)
    else:
        (page.open_file if way == "open" else page.drop)(picture)
    page.check(digits)
    assert page.sent == content, "the file itself, as it is"
    page.wait(lambda: page.script("preview.naturalWidth") == 90)
    page.draw(SEVEN)
    page.wait(lambda: page.asked_anew(content))
    page.check(digits)
    assert page.script("preview.hidden"), "a drawing takes the image's place"


def test_what_is_refused_is_said_and_the_next_stroke_is_answered(
    page: Page, digits: Classifier, tmp_path: Path
) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("no image")
    Image.new("L", (28, 28)).save(tmp_path / "blank.png")
    for file in (text, tmp_path / "blank.png"):
        page.open_file(file)
        page.wait(lambda: page.state == "refused" and page.script("exchanges.at(-1).status") == 400)
        page.settle("refused")
        message = page.script("exchanges.at(-1).answer.message").partition(". Send")[0]
        assert page.text("name") == page.text("heard") == message.replace("inputs[0]", "The picture") + "."
        assert page.script("seen.hidden")
        page.click("clear")
        page.settle("empty")
    page.drop(text, text)
    page.settle("refused")
    page.draw(SEVEN)
    page.check(digits)


def test_an_older_answer_never_replaces_a_newer_one(page: Page, digits: Classifier) -> None:
    def hold(on: bool) -> None:
        page.browser.execute_script("window.holding = arguments[0]", on)

    def release() -> None:
        count = page.script("held.splice(0).map((release) => release()).length")
        assert count > 0
        page.wait(lambda: page.script("exchanges.length") >= answered + count)

    hold(True)
    page.draw(BAR, meanwhile=lambda: page.wait(lambda: page.script("held.length")))
    hold(False)
    page.draw(SEVEN)
    page.check(digits)
    shown, answered = (page.text("name"), page.rows()), page.script("exchanges.length")
    release()
    assert (page.text("name"), page.rows()) == shown

    hold(True)
    page.draw(BAR, meanwhile=lambda: page.wait(lambda: page.script("held.length")))
    page.click("clear")
    answered = page.script("exchanges.length")
    release()
    assert page.state == "empty", "no answer to what is not there any more"
    assert page.text("name") == "The answer appears here while you draw."


@pytest.mark.parametrize("back", ["with the next stroke", "by itself"])
def test_the_server_goes_away_and_comes_back(page: Page, digits: Classifier, back: str) -> None:
    conditions: dict[str, object] = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.browser.execute_cdp_cmd("Network.emulateNetworkConditions", conditions | {"offline": True})
    try:
        page.draw(BAR)
        page.settle("away")
        assert "does not answer" in page.text("name")
    finally:
        page.browser.execute_cdp_cmd("Network.emulateNetworkConditions", conditions | {"offline": False})
    if back == "with the next stroke":
        page.draw(SEVEN)
    page.settle("answer")
    page.check(digits)


def test_dark_and_light(page: Page, address: str, digits: Classifier) -> None:
    def colours() -> list[int]:
        """Lightness of the ground, the paper, the text and the strokes."""
        shades: list[str] = page.script(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(stage).backgroundColor,"
            " getComputedStyle(document.body).color, getComputedStyle(canvas).color]"
        )
        return [int(shade.partition("(")[2].partition(",")[0]) for shade in shades]

    ground, paper, text, ink = colours()
    assert min(ground, paper) - max(text, ink) > 140
    page.draw(SEVEN)
    page.check(digits)
    light, sent = page.text("name"), page.sent
    page.open(address, dark=True)
    ground, paper, text, ink = colours()
    assert min(text, ink) - max(ground, paper) > 140
    page.draw(SEVEN)
    page.check(digits)
    assert (page.text("name"), page.sent) == (light, sent), "the same picture is sent in dark and in light"


@pytest.mark.parametrize("width", [320, 1900])
def test_nothing_is_cut_off(page: Page, address: str, digits: Classifier, width: int) -> None:
    page.open(address, width=width)
    page.draw(SEVEN)
    page.check(digits)
    assert page.script("document.documentElement.scrollWidth") <= width
    assert (
        page.script("Math.min(...[...document.querySelectorAll('button, label')].map((tool) => tool.clientHeight))")
        >= 40
    )


def test_names_for_those_who_listen(page: Page) -> None:
    tree = page.browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    names = {(node["role"]["value"], node["name"]["value"]) for node in tree if node.get("name", {}).get("value")}
    assert {
        ("heading", "Draw a digit"),
        ("application", "Drawing area"),
        ("button", "Undo"),
        ("button", "Clear"),
        ("region", "Answer"),
        ("list", "Probabilities"),
    } <= names
    assert any(name == "Open image…" for _, name in names)
    assert any(node["role"]["value"] == "status" for node in tree)


def test_photographs_of_many_classes(page: Page, picture: Path, tmp_path: Path) -> None:
    classes = [f"kind of animal number {number}" for number in range(40)]
    classifier = network(tmp_path / "animals.onnx", classes, None)
    with serve(classifier, "models:/tenfold-animals@champion") as address:
        page.open(address)
        page.wait(lambda: page.text("title") == "Show a picture")
        assert page.script("canvas.hidden")
        page.drop(picture)
        page.settle("answer")
        (expected,) = classifier.answer([page.sent], {"top_k": 10})
        assert [row[0] for row in page.rows()] == list(expected["probabilities"])
        assert [row[2] for row in page.rows()] == [True] + 9 * [False]
        assert page.text("name") == expected["name"]
