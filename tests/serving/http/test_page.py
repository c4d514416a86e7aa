"""The demo in a real browser."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from recbole_lisa.serving import Recommender
from recbole_lisa.serving.ids import IdMap
from tests.serving.build import N_ITEMS
from tests.serving.http.build import PATIENCE, Running, running, seeded_recommender

pytest.importorskip("uvicorn")
SWITCHES = """headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking
    disable-component-update disable-sync"""
HACK = "document.title='hacked'"
ODD = [f'<img src=x onerror="{HACK}">', f"</script><script>{HACK}</script>", "&lt;b&gt;"]
IDS = [*ODD, *(f"thing {n}" for n in range(N_ITEMS - 1 - len(ODD)))]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A headless Chromium; the test is skipped where there is none."""
    pytest.importorskip("selenium")
    from selenium import webdriver

    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        pytest.skip("needs chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = str(programs[0])
    for switch in (*SWITCHES.split(), f"user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(str(programs[1])))
    yield driver
    driver.quit()


class Page:
    """The page as a visitor sees it."""

    def __init__(self, browser: Any, service: Running, titles: dict[str, str]) -> None:
        self.browser = browser
        browser.get(f"http://127.0.0.1:{service.port}/")
        self.wait_for("#found li", [titles.get(item, item) for item in IDS[:20]])

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)"
        return list(self.browser.execute_script(script, selector))

    def click(self, selector: str, text: str) -> None:
        # In one step: the list may be shown anew between finding the button and pressing it.
        script = "[...document.querySelectorAll(arguments[0])].find((one) => one.textContent === arguments[1]).click()"
        self.browser.execute_script(script, selector, text)

    def search(self, text: str) -> None:
        field = self.browser.find_element("id", "query")
        field.clear()
        field.send_keys(text)

    def wait_for(self, selector: str, expected: list[str]) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.browser, PATIENCE, poll_frequency=0.02).until(
            lambda _: self.texts(selector) == expected, f"{selector} has {self.texts(selector)}, not {expected}"
        )

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.browser.get_log("browser")]


@contextlib.contextmanager
def opened(browser: Any, name: str = "LISABase", **more: Any) -> Iterator[tuple[Page, Recommender, Running]]:
    """The page over a model whose first ids are code, once it shows items."""
    recommender = Recommender(replace(seeded_recommender(name).bundle, ids=IdMap.from_ids(IDS), **more))
    with running(recommender) as service:
        yield Page(browser, service, recommender.bundle.titles), recommender, service


def test_items_are_found_picked_and_lead_to_recommendations_and_a_picture(browser: Any) -> None:
    with opened(browser) as (page, recommender, _):
        assert page.texts("#model") == [f"LISABase of small, {N_ITEMS - 1} items"]
        page.search("thing 2")
        page.wait_for("#found li", ["thing 2", *(f"thing {n}" for n in range(20, N_ITEMS - 1 - len(ODD)))])
        session = recommender.start()
        for item in ("thing 2", "thing 21"):
            page.click("#found button", item)
            session.update(item)
            page.wait_for("#recommended button", session.recommend(10).items)
        assert page.texts("#history li") == ["thing 21", "thing 2"]
        assert page.texts("#recommended .score") == [f"{score:.3f}" for score in session.recommend(10).scores]

        [cells] = [layer[0] for layer in session.batch.histograms]
        drawn = browser.execute_script(
            "return [...document.querySelectorAll('svg rect')].map((one) => "
            "['x', 'y', 'fill-opacity'].map((name) => Number(one.getAttribute(name))))"
        )
        assert len(drawn) == int((cells > 0).sum())
        for x, y, opacity in drawn:
            assert opacity == pytest.approx(float(cells[round(y - 0.05), round(x)] / cells.max()))
        assert browser.find_element("id", "picture").is_displayed()

        first = session.recommend(10).items[0]
        page.click("#recommended button", first)
        session.update(first)
        page.wait_for("#history li", [first, "thing 21", "thing 2"])
        page.wait_for("#recommended button", session.recommend(10).items)
        page.click("#clear", "Start again")
        page.wait_for("#history li", [])
        assert page.texts("#recommended li") == [] and not browser.find_element("id", "picture").is_displayed()
        assert page.texts("#error") == [""] and page.complaints() == []


def test_ids_are_text_whatever_they_hold_and_no_other_script_runs(browser: Any) -> None:
    with opened(browser) as (page, _, _):
        for count, item in enumerate(ODD, start=1):
            page.search(item)
            page.wait_for("#found li", [item])
            page.click("#found button", item)
            page.wait_for("#history li", ODD[:count][::-1])
        assert browser.title == "recbole-lisa"
        assert browser.find_elements("css selector", "img, li script, li b") == []
        assert page.complaints() == []
        add = "const bad = document.createElement('script'); bad.textContent = arguments[0]; document.body.append(bad)"
        browser.execute_script(add, HACK)
        assert browser.title == "recbole-lisa"
        assert any("Content Security Policy" in one for one in page.complaints())


def test_titles_stand_for_the_ids(browser: Any) -> None:
    titles = {item: f"<b>{item}</b>" for item in IDS[2:]}
    with opened(browser, titles=titles) as (page, recommender, _):
        page.click("#found button", titles["thing 3"])
        best = recommender.start(["thing 3"]).recommend(10).items
        page.wait_for("#recommended button", [titles.get(item, item) for item in best])
        assert page.texts("#history li") == [titles["thing 3"]] and page.texts("b") == []


def test_a_session_that_has_gone_is_begun_anew_with_its_history(browser: Any) -> None:
    with opened(browser) as (page, recommender, service):
        page.click("#found button", "thing 3")
        page.wait_for("#recommended button", recommender.start(["thing 3"]).recommend(10).items)
        session = browser.execute_script("return session")
        assert service.call("DELETE", f"/sessions/{session}").status == 200
        page.click("#found button", "thing 4")
        page.wait_for("#recommended button", recommender.start(["thing 3", "thing 4"]).recommend(10).items)
        assert page.texts("#history li") == ["thing 4", "thing 3"]


def test_a_model_without_sessions_is_shown_without_a_picture(browser: Any) -> None:
    with opened(browser, "Transformer") as (page, recommender, _):
        page.click("#found button", "thing 3")
        page.click("#found button", "thing 1")
        page.wait_for("#recommended button", recommender.recommend([["thing 3", "thing 1"]])[0].items)
        assert not browser.find_element("id", "picture").is_displayed()
        assert page.texts("#error") == [""]
