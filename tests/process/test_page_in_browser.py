"""The page in headless Chromium: no errors, charts drawn, sorting and hovering."""

import html
import json
import re
import shutil
import subprocess

import pytest
from result_records import confirmation, failed, keep, record

from kbatch.results import page

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")

# The page reports on itself in its title, which Chromium prints with the rest of the document.
PROBE = """
<script>
(async () => {
  const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
  while (!document.body.dataset.drawn) await wait(50);
  const told = { theme: document.body.dataset.drawn };
  told.charts = [...document.querySelectorAll(".chart")].map((place) => {
    const svg = place.querySelector("svg");
    const marks = svg.querySelectorAll("[role='graphics-symbol']").length;
    const label = svg.closest("[role='graphics-document']").getAttribute("aria-label");
    return { marks, label };
  });
  const column = (position) =>
    [...document.querySelectorAll("#table tbody tr")].map((row) => row.cells[position].innerText);
  told.headings = [...document.querySelectorAll("#table thead th")].map((cell) => cell.innerText);
  told.orders = told.headings.map((_, position) => {
    const cell = document.querySelectorAll("#table thead th")[position];
    const button = cell.querySelector("button");
    button.focus();
    const focused = document.activeElement === button;
    button.click();
    const first = { sort: cell.ariaSort, texts: column(position), focused };
    button.click();
    return [first, { sort: cell.ariaSort, texts: column(position), focused }];
  });
  told.sorted = document.querySelectorAll("#table th:not([aria-sort='none'])[aria-sort]").length;
  const over = async (mark) => {
    const along = mark.getPointAtLength(mark.getTotalLength() / 3);
    const at = new DOMPoint(along.x, along.y).matrixTransform(mark.getScreenCTM());
    for (let step = 0; step < 3; step++) {
      const where = { bubbles: true, clientX: at.x + step, clientY: at.y };
      for (const name of ["pointerover", "pointermove"]) {
        mark.dispatchEvent(new PointerEvent(name, where));
      }
      mark.dispatchEvent(new MouseEvent("mousemove", where));
      await wait(150);
    }
    const tip = document.getElementById("vg-tooltip-element");
    return tip && tip.classList.contains("visible") ? tip.innerText : "";
  };
  told.tips = [];
  for (const name of ["score-optimizer", "curves-search", "space"]) {
    const marks = [...document.querySelectorAll(`#${name} svg path, #${name} svg line`)];
    const mark = marks.find((each) => each.__data__ && each.__data__.tooltip);
    told.tips.push(mark ? await over(mark) : "");
  }
  told.width = document.documentElement.scrollWidth;
  told.window = window.innerWidth;
  document.title = JSON.stringify(told);
})();
</script>
"""


@pytest.fixture(scope="module", autouse=True)
def one_cache(tmp_path_factory):
    """The library of the charts is bundled once for all tests here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KBATCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def shown(folder, *options):
    """What the page of a search tells of itself, and what Chromium's console said."""
    text = page.write(folder).read_text()
    end = text.rindex("</body>")
    probed = folder / "probed.html"
    probed.write_text(f"{text[:end]}{PROBE}{text[end:]}")
    return opened(probed, *options)


def opened(file, *options):
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += ["--enable-logging=stderr", "--virtual-time-budget=60000", *options]
    with_profile = [*command, f"--user-data-dir={file.parent / 'profile'}", file.as_uri()]
    result = subprocess.run(with_profile, capture_output=True, text=True, timeout=120, check=False)
    console = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
    title = re.search(r"<title>(.*?)</title>", result.stdout, re.S)[1]
    try:
        return json.loads(html.unescape(title)), console
    except ValueError:
        pytest.fail(f"the page was not drawn: {title} {console}")


def searched(count):
    records = [record(-1, 0.2, "baseline", optimizer="compiled", learning_rate=None)]
    for number in range(count):
        one = record(
            number,
            0.4 * (number + 1) / count,
            batch_size=64 * 2 ** (number % 5),
            optimizer=("sgd", "adam")[number % 2],
            values={"units <b>": number % 3, "rate": 0.1 * number},
        )
        records.append(one)
    return [*records, failed(record(count, 0.1, values={"units <b>": 1, "rate": 0.5}))]


@pytest.fixture(scope="module")
def dark_page(tmp_path_factory):
    records = [*searched(12), *confirmation({-1: 0.2, 11: 0.35}, 3)]
    folder = keep(tmp_path_factory.mktemp("dark"), records)
    return shown(folder, "--blink-settings=preferredColorScheme=0", "--window-size=500,800")


def test_all_charts_are_drawn_without_a_word_on_the_console(dark_page):
    told, console = dark_page
    assert console == []
    assert told["theme"] == "dark"
    assert len(told["charts"]) == 6
    for chart in told["charts"]:
        assert chart["marks"] > 0
        assert chart["label"]


def test_a_pointer_over_a_mark_shows_its_recipe(dark_page):
    told, _ = dark_page
    for tip in told["tips"]:
        assert "batch" in tip


def test_each_heading_sorts_up_and_down_with_nothing_last(dark_page):
    told, _ = dark_page
    assert told["sorted"] == 1
    for heading, (first, second) in zip(told["headings"], told["orders"], strict=True):
        assert first["focused"]
        assert {first["sort"], second["sort"]} == {"ascending", "descending"}, heading
        known = [text for text in first["texts"] if text not in ("-", "")]
        again = [text for text in second["texts"] if text not in ("-", "")]
        assert first["texts"][: len(known)] == known
        assert second["texts"][: len(again)] == again
        keys = [key(text) for text in known]
        falls = first["sort"] == "descending"
        if all(isinstance(each, float) for each in keys):
            assert keys == sorted(keys, reverse=falls), heading
        assert sorted(first["texts"]) == sorted(second["texts"])


def key(text):
    """The number that a cell begins with; -1 for the baseline."""
    if text == "baseline":
        return -1.0
    number = re.match(r"-?[\d,.]+", text)
    return float(number[0].replace(",", "")) if number else text


def test_nothing_is_wider_than_a_telephone(tmp_path, dark_page):
    assert dark_page[0]["width"] <= dark_page[0]["window"]
    folder = keep(tmp_path, [*searched(12), *confirmation({-1: 0.2, 11: 0.35}, 3)])
    page.write(folder)
    # a window of Chromium has 500 pixels at least, and a frame any width
    (folder / "frame.html").write_text(
        '<iframe id="page" src="report.html" width="390" height="800" style="border: 0"></iframe>'
        "<script>addEventListener('load', () => setTimeout(() => {"
        "const page = document.getElementById('page').contentDocument;"
        "const charts = [...page.querySelectorAll('figure:not(#space) .chart svg')];"
        "const widest = Math.max(...charts.map((svg) => svg.getBoundingClientRect().width));"
        "document.title = JSON.stringify({ width: page.documentElement.scrollWidth, widest,"
        "charts: charts.length });"
        "}, 9000));</script><title></title>"
    )
    told, console = opened(folder / "frame.html", "--allow-file-access-from-files")
    assert console == []
    assert told["charts"] == 5
    assert told["width"] <= 390
    assert told["widest"] <= 390


@pytest.mark.parametrize(
    "records",
    [
        [failed(record(0, 0.3))],
        [record(0, 0.3)],
        [record(0, 0.3, values={"</script><b>": "<img src=x onerror=alert(1)>"}), record(1, 0.2)],
        pytest.param(searched(300), marks=pytest.mark.slow),
    ],
    ids=["one failed", "one trial", "odd names", "300 trials"],
)
def test_other_searches_are_drawn_as_well(records, tmp_path):
    told, console = shown(keep(tmp_path, records))
    assert console == []
    assert told["theme"] == "light"
    assert len(told["orders"][0][0]["texts"]) == min(len(records), 301)


@pytest.mark.slow
def test_a_page_that_reloads_keeps_its_order(tmp_path):
    folder = keep(tmp_path, searched(4))
    text = page.write_live(folder).read_text().replace('data-reload="10"', 'data-reload="1"')
    count = """<script>
    const loads = Number(window.sessionStorage.getItem("loads")) + 1;
    window.sessionStorage.setItem("loads", loads);
    if (loads === 3) document.body.dataset.reload = "0";
    </script>"""
    tell = """<script>
    const heading = document.querySelectorAll("#table thead th")[1];
    document.title = JSON.stringify({ loads, sort: heading.ariaSort });
    if (loads === 1) heading.querySelector("button").click();
    </script>"""
    end, begin = text.rindex("</body>"), text.index("<header>")
    probed = f"{text[:begin]}{count}{text[begin:end]}{tell}{text[end:]}"
    (folder / "live.html").write_text(probed)
    told, console = opened(folder / "live.html")
    assert console == []
    assert told == {"loads": 3, "sort": "ascending"}
