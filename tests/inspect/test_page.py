"""The report in a real browser: the numbers it shows, by mouse and by keyboard, and its silence."""

import json
import os
import shutil

import pytest
import torch

from depth_memory import inspect
from tests.inspect.test_inspect import small

NEEDED = "chromium and chromedriver: got none; allowed: apt-get install chromium chromium-driver"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars
--disable-background-networking --disable-component-update --disable-sync --window-size=1300,1000"""
WORDS = ["The", " old", "</script>", " <b>", "&amp;", "\n\x1b", "\u65e5", "  ", " was", " quiet"]
STREAMS = ({"name": "ldm", "groups": 2}, {"name": "attnres"}, {"name": "mhc"})


def found(names):
    paths = [shutil.which(name) for name in names]
    return next((path for path in paths if path), None)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program, driver = found(BROWSERS), found(["chromedriver"])
    if program is None or driver is None:
        pytest.fail(NEEDED, pytrace=False)
    # with both paths given selenium has nothing to look for; it shall not ask anybody anyway
    os.environ |= {"SE_OFFLINE": "true", "SE_AVOID_STATS": "true"}
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in (*QUIET.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
    with webdriver.Chrome(options=options, service=service) as started:
        yield started


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A report of three streams on the same text, and the data beside it."""
    out = tmp_path_factory.mktemp("report")
    torch.manual_seed(0)
    models = [(f"run {i}", small(stream)) for i, stream in enumerate(STREAMS)]
    inspect.report(
        models,
        torch.arange(20).reshape(2, 10),
        out,
        title="Three <streams>",
        words=WORDS,
        kept=8,
        pictures=False,
    )
    return out / "report.html", json.loads((out / "inspect.json").read_text())


@pytest.fixture
def page(browser, written):
    """The opened report; afterwards it must have been silent, to the console and to the network."""
    file, _ = written
    browser.get_log("performance")
    browser.get(file.as_uri())
    yield browser
    messages = [json.loads(e["message"])["message"] for e in browser.get_log("performance")]
    sent = [m["params"]["request"]["url"] for m in messages if m["method"].endswith("BeSent")]
    assert file.as_uri() in sent
    assert [url for url in sent if url != file.as_uri() and not url.startswith("data:")] == []
    assert browser.get_log("browser") == []


def texts(page, selector):
    from selenium.webdriver.common.by import By

    return [element.text for element in page.find_elements(By.CSS_SELECTOR, selector)]


def one(page, selector):
    from selenium.webdriver.common.by import By

    return page.find_element(By.CSS_SELECTOR, selector)


def choose(page, name, value):
    from selenium.webdriver.support.ui import Select

    Select(one(page, f"#{name}")).select_by_value(str(value))


def point(page, model, read, source):
    from selenium.webdriver import ActionChains

    cell = one(page, f"#map-{model} [data-read='{read}'][data-source='{source}']")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", cell)
    ActionChains(page).move_to_element(cell).perform()


def shown(page, model):
    return float(one(page, f"#value-{model}").text)


def test_the_mean_is_shown_first_and_each_model_answers_for_its_own_cell(page, written):
    point(page, 1, 5, 2)
    for m, entry in enumerate(written[1]["models"]):
        expected = sum(entry["weights"][5][2]) / entry["groups"]
        assert shown(page, m) == pytest.approx(expected, abs=5.1e-5)
    assert len(texts(page, "#maps figure")) == 3
    assert "mlp 2 reads mlp 0" in one(page, "#readout").text


def test_a_token_and_a_group_show_their_own_weights(page, written):
    exact = [inspect.unpack(entry) for entry in written[1]["models"]]
    one(page, "[data-token='3']").click()
    choose(page, "group", 1)
    for read, source in ((6, 4), (3, 3), (1, 0)):
        point(page, 0, read, source)
        assert shown(page, 0) == pytest.approx(exact[0][read, source, 3, 1], abs=5.1e-5)
        for m in (1, 2):  # which have one weight for all channels
            assert shown(page, m) == pytest.approx(exact[m][read, source, 3, 0], abs=5.1e-5)
    assert one(page, "[data-token='3']").get_attribute("aria-pressed") == "true"
    assert "token 3" in one(page, "#maps .note").text
    choose(page, "token", 5)
    assert shown(page, 0) == pytest.approx(exact[0][1, 0, 5, 1], abs=5.1e-5)
    choose(page, "group", "")
    assert shown(page, 0) == pytest.approx(exact[0][1, 0, 5].mean(), abs=5.1e-5)


def test_every_cell_of_every_token_is_what_the_file_says(page, written):
    script = """const upto = (n) => [...Array(n).keys()];
        return models.map((model, m) => model.reads.map((_, read) => upto(read + 1).map((s) =>
        upto(report.text.kept).map((t) => upto(model.groups).map((g) =>
        ofToken(m, read, s, t, g))))))"""
    for entry, rows in zip(written[1]["models"], page.execute_script(script), strict=True):
        exact = inspect.unpack(entry)
        assert exact.shape[2] == 8
        for read, row in enumerate(rows):
            assert row == exact[read, : read + 1].tolist()


def test_pointing_at_a_token_looks_and_leaving_returns(page, written):
    from selenium.webdriver import ActionChains

    point(page, 0, 4, 1)
    before = shown(page, 0)
    ActionChains(page).move_to_element(one(page, "[data-token='2']")).perform()
    exact = inspect.unpack(written[1]["models"][0])[4, 1, 2].mean()
    assert shown(page, 0) == pytest.approx(exact, abs=5.1e-5)
    ActionChains(page).move_to_element(one(page, "h1")).perform()
    assert shown(page, 0) == before


def test_all_is_within_reach_of_the_keyboard(page, written):
    from selenium.webdriver import ActionChains, Keys

    exact = inspect.unpack(written[1]["models"][0])
    keys = ActionChains(page)
    page.execute_script("arguments[0].focus()", one(page, "[data-token='0']"))
    keys.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ENTER).perform()
    assert one(page, "[data-token='2']").get_attribute("aria-pressed") == "true"
    for _ in range(12):  # over the choices, to the map
        if page.switch_to.active_element.get_attribute("id") == "map-0":
            break
        ActionChains(page).send_keys(Keys.TAB).perform()
    ActionChains(page).send_keys(Keys.ARROW_UP).perform()  # the last row appears
    ActionChains(page).send_keys(Keys.ARROW_UP, Keys.ARROW_RIGHT).perform()
    assert shown(page, 0) == pytest.approx(exact[5, 1, 2].mean(), abs=5.1e-5)
    ActionChains(page).send_keys(Keys.ESCAPE).perform()
    mean = sum(written[1]["models"][0]["weights"][5][1]) / 2
    assert shown(page, 0) == pytest.approx(mean, abs=5.1e-5)


@pytest.mark.parametrize("quantity", ["relative", "share", "spread"])
def test_other_quantities_are_those_of_the_file(page, written, quantity):
    choose(page, "quantity", quantity)
    point(page, 0, 5, 2)
    entry = written[1]["models"][0]
    means = [sum(weights) / 2 for weights in entry["weights"][5]]
    expected = {
        "relative": means[2] / sum(map(abs, means)),
        "share": entry["share"][5][2],
        "spread": sum(entry["spread"][5][2]) / 2,
    }
    assert shown(page, 0) == pytest.approx(expected[quantity], abs=5.1e-5)


def signed(difference):
    text = f"{difference:+.4f}".replace("-", "\u2212")
    return text if float(text[1:]) else text[1:]


def test_the_table_of_losses_is_that_of_the_file(page, written):
    rows = [row.split("\t") for row in page.execute_script(
        "return [...document.querySelectorAll('#losses tbody tr')]"
        ".map((r) => [...r.children].map((c) => c.textContent).join('\\t'))"
    )]  # fmt: skip
    found = [entry["ablation"] for entry in written[1]["models"]]
    assert rows[0] == ["none", *(x for f in found for x in (f"{f['loss']:.4f}", ""))]
    assert [row[0] for row in rows[1:-1]] == written[1]["models"][0]["reads"]
    for name, *cells in rows[1:-1]:
        for f, loss, difference in zip(found, cells[::2], cells[1::2], strict=True):
            (row,) = [r for r in f["rows"] if r["read"] == name] or [None]
            assert loss == ("\u2013" if row is None else f"{row['loss']:.4f}")
            assert difference == ("" if row is None else signed(row["difference"]))
    assert rows[-1][1] == f"{found[0]['every']:.4f}"
    assert "run 1 (attnres): left out, attention 0: an ordinary" in one(page, "#left-out").text


def test_curves_show_what_each_stream_has(page, written):
    from selenium.webdriver import ActionChains, Keys

    titles = page.execute_script(
        "return [...document.querySelectorAll('[data-panel]')]"
        ".map((p) => [p.dataset.panel, p.querySelectorAll('svg').length])"
    )
    counts = dict(titles)
    assert counts["Beyond the ordinary residual"] == 3
    assert counts["Condition of P"] == counts["Gain of the read"] == 1
    chart = one(page, "[data-panel='Condition of P'] svg")
    page.execute_script("arguments[0].focus()", chart)
    ActionChains(page).send_keys(*[Keys.ARROW_RIGHT] * 3).perform()
    text = one(page, "[data-panel='Condition of P'] .values").text
    row = written[1]["models"][0]["writes"][3]
    numbers = [
        f"{float(f'{x:.4g}'):g}" for kind in ("median", "worst") for x in row["condition"][kind]
    ]
    median, worst = ", ".join(numbers[:2]), ", ".join(numbers[2:])
    assert text == f"{row['source']}: median token {median}; worst token {worst}"


def test_words_of_the_text_are_words_and_not_markup(page, written):
    expected = [
        "The",
        " old",
        "</script>",
        " <b>",
        "&amp;",
        "\u23ce\u241b",
        "\u65e5",
        "\u2423\u2423",
    ]
    script = "return [...document.querySelectorAll('#tokens button')].map((b) => b.textContent)"
    assert page.execute_script(script) == expected
    assert one(page, "h1").text == page.title == "Three <streams>"
    assert "the first 8 only" in one(page, "#text-note").text


def test_it_can_be_read_in_the_dark_and_on_paper(page, written):
    backgrounds, inks = [], []
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        style = "return getComputedStyle(document.body)."
        backgrounds.append(page.execute_script(f"{style}backgroundColor"))
        inks.append(page.execute_script(f"{style}color"))
    assert backgrounds[0] == "rgb(255, 255, 255)"
    assert sum(map(int, backgrounds[1][4:-1].split(","))) < 120
    assert sum(map(int, inks[1][4:-1].split(","))) > 600
    pdf = page.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"]
    assert len(pdf) > 20_000
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_stream_without_anything_to_show_shows_what_there_is(browser, tmp_path):
    ids = torch.arange(1)[None]
    _, (file, *_) = inspect.report(
        [("plain", small({"name": "preln"}))], ids, tmp_path, title="one", pictures=False
    )
    browser.get(file.as_uri())
    assert browser.get_log("browser") == []
    point(browser, 0, 2, 1)
    assert shown(browser, 0) == 1.0
    panels = browser.execute_script("return document.querySelectorAll('[data-panel]').length")
    assert panels == 3
    assert texts(browser, "#ablation") == []
