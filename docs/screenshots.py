"""Take the pictures of MLflow's pages that docs/mlflow-ui.md shows: python docs/screenshots.py [FOLDER]

It opens the store of the project at hand, after `make repro`, in a real Chromium, and needs `chromium` and
`chromedriver` on the PATH (on Debian the packages chromium, chromium-driver and fonts-dejavu-core). FOLDER is
docs/images by default.
"""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient
from PIL import Image
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tenfold.params import Params
from tenfold.tracking import store

SIZE = (1280, 900)
COLORS = 128
WAIT_S = 60.0
SETTLE_S = 4.0
"""Charts are drawn last, and say nothing when they are."""
BEGIN = "localStorage.setItem('mlflow.assistant.panelOpen_v1', 'false');" + (
    "localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true')"
)
"""MLflow's assistant, which wants a language model, does not cover a third of each page."""
WITHOUT_PATHS = """
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(arguments[0], "…");
"""
"""Where the project lies is nobody's concern."""


@dataclass(frozen=True)
class Page:
    """A page of MLflow."""

    address: str
    text: str
    """That it shows when it is ready."""
    click: str = ""
    """The text of what is to be clicked."""
    search: str = ""
    """What is to be searched for."""


def pages(client: MlflowClient) -> dict[str, Page]:
    """The pages, by the names of their pictures."""
    model = f"tenfold-{Params.load().data.dataset}"
    run = client.get_run(str(client.get_model_version_by_alias(model, "champion").run_id))
    newest = max(int(found.version) for found in client.search_model_versions(f"name = '{model}'"))
    runs = f"experiments/{run.info.experiment_id}/runs"
    of_run = f"{runs}/{run.info.run_id}"
    return {
        "runs": Page(runs, "matching run"),
        "run": Page(of_run, "dvc repro", click="Show more"),
        "metrics": Page(f"{of_run}/model-metrics", "lr", search="(train|val)/(acc|loss)$|^lr"),
        "artifacts": Page(f"{of_run}/artifacts/evaluate/mistakes.png", "evaluate/mistakes.png"),
        "model": Page(f"models/{model}", "Intended use"),
        "version": Page(f"models/{model}/versions/{newest}", "test images classified"),
    }


@contextmanager
def pages_of_mlflow() -> Iterator[str]:
    """The address of `tenfold ui`, as long as the block lasts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", "tenfold", "ui", "--port", str(port)], stdout=subprocess.DEVNULL)
    try:
        address = f"http://127.0.0.1:{port}"
        for _ in range(round(WAIT_S)):
            with suppress(OSError):
                urllib.request.urlopen(address, timeout=WAIT_S).close()
                break
            time.sleep(1)
        yield address
    finally:
        server.terminate()
        server.wait(30)


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """A browser without a window or a history."""
    driver = shutil.which("chromedriver")
    if driver is None:  # Selenium would download one
        sys.exit("error: no chromedriver on the PATH. On Debian: apt-get install chromium chromium-driver")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        for flag in ("headless", "disable-gpu", "disable-background-networking", f"user-data-dir={profile}"):
            options.add_argument(f"--{flag}")
        if os.geteuid() == 0:  # root's Chromium has no sandbox
            options.add_argument("--no-sandbox")
        browser = webdriver.Chrome(options=options, service=Service(driver))
        try:
            inner = "return [window.outerWidth - window.innerWidth, window.outerHeight - window.innerHeight]"
            frame = browser.execute_script(inner)
            browser.set_window_size(SIZE[0] + frame[0], SIZE[1] + frame[1])
            yield browser
        finally:
            browser.quit()


def take(browser: webdriver.Chrome, address: str, page: Page) -> bytes:
    """A picture of a page that is ready, as PNG."""
    browser.get(f"{address}/#/{page.address}?workflowType=machine_learning")
    browser.refresh()  # a change after # alone loads nothing
    wait = WebDriverWait(browser, WAIT_S, ignored_exceptions=[WebDriverException])  # it is drawn anew meanwhile
    if page.search:
        field = wait.until(lambda _: browser.find_element(By.XPATH, "//input[starts-with(@placeholder, 'Search')]"))
        field.send_keys(page.search)
    if page.click:
        wait.until(lambda _: browser.find_element(By.XPATH, f"//*[text()='{page.click}']").click() or True)
    wait.until(lambda _: page.text in browser.find_element(By.TAG_NAME, "body").text)
    time.sleep(SETTLE_S)
    browser.execute_script(WITHOUT_PATHS, str(Path.cwd()))
    return browser.get_screenshot_as_png()


def main(folder: Path) -> None:
    """Take all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with pages_of_mlflow() as address, chromium() as browser:
        browser.get(address)
        browser.execute_script(BEGIN)
        for name, page in pages(store.client()).items():
            png = take(browser, address, page)
            file = folder / f"mlflow-{name}.png"
            Image.open(io.BytesIO(png)).convert("RGB").quantize(COLORS).save(file, optimize=True)
            print(f"{file}  {file.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(Path(*sys.argv[1:2] or ["docs/images"]))
