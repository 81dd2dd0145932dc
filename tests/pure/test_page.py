"""The page: one file without a network, with what the records say, for every kind of search."""

import json
import re
from html.parser import HTMLParser

import pytest
from result_records import GOAL, confirmation, failed, keep, record

from kbatch.errors import RecordError
from kbatch.records.files import Lock, is_locked
from kbatch.results import page as page_page
from kbatch.results.page import MOST_TRIALS, at_rest, contents_of, html_of, recipe_table
from kbatch.results.ranking import ranking
from kbatch.results.report import RUN_FILE
from kbatch.training.progress import LivePage, Watcher

ODD = '<script>alert("x")</script>&'
LIBRARY = "window.vegaEmbed = 1;"


class Parsed(HTMLParser):
    """The tags of a page, its texts, and whatever it would load."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.loaded, self.ids = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.append((tag, given))
        self.loaded += [
            given[name] for name in ("src", "href", "action", "poster") if name in given
        ]
        if "id" in given:
            self.ids.append(given["id"])

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module", autouse=True)
def one_cache(tmp_path_factory):
    """The library of the charts is bundled once for all tests here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KBATCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def many(count):
    return [
        record(number, 0.001 * number, batch_size=64 * 2 ** (number % 5), values={"units": number})
        for number in range(count)
    ]


def searched(count=3):
    records = [record(-1, 0.2, "baseline"), *many(count)]
    return [*records, failed(record(count, 0.1, values={"units": 9}))]


def page(folder, **arguments):
    return html_of(contents_of(folder), LIBRARY, **arguments)


def rows(text):
    """The rows of the table as lists of texts."""
    body = re.search(r"<tbody>(.*?)</tbody>", text, re.S)[1]
    return [
        [re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(r"<t[hd] .*?</t[hd]>", row)]
        for row in re.findall(r"<tr.*?</tr>", body, re.S)
    ]


def test_the_page_is_one_small_file_that_loads_nothing(tmp_path):
    folder = keep(tmp_path, [*searched(300), *confirmation({-1: 0.2, 1: 0.3}, 3)])
    file = page_page.write(folder)
    assert file == folder / "report.html"
    text = file.read_text()
    assert len(file.read_bytes()) < 2e6
    parsed = Parsed(text)
    assert all(where.startswith(("#", "data:")) for where in parsed.loaded), parsed.loaded
    assert "@import" not in text.split("</style>")[0]
    assert "url(" not in text.split("</style>")[0]
    assert "default-src 'none'" in text
    assert not list(folder.glob("*.tmp"))


def test_every_chart_has_its_words_and_its_data(tmp_path):
    folder = keep(tmp_path, [*searched(), *confirmation({-1: 0.2, 1: 0.3}, 3)])
    text = page(folder)
    parsed = Parsed(text)
    assert len(parsed.ids) == len(set(parsed.ids))
    places = [given["data-spec"] for tag, given in parsed.tags if "data-spec" in given]
    assert len(places) >= 6
    for place in places:
        found = re.search(f'<script type="application/json" id="{place}">(.*?)</script>', text)
        spec = json.loads(found[1])
        assert spec["description"]
        assert spec["width"] == "container"
    for _, given in parsed.tags:
        if given.get("href", "").startswith("#"):
            assert given["href"][1:] in parsed.ids


def test_the_table_is_the_ranking_with_the_confirmation(tmp_path):
    records = [*searched(), *confirmation({-1: 0.2, 1: 0.3}, 3)]
    found = rows(page(keep(tmp_path, records)))
    assert [row[0] for row in found] == ["baseline", "2", "1", "0", "3"]
    ranks = ranking(records, GOAL, 400)
    made = recipe_table(ranks, records, GOAL, records[2])
    assert [[cell.text for cell in row.cells] for row in made.rows] == found
    score = made.headings.index("score/s")
    assert [row.cells[score].key for row in made.rows] == [rank.record.score for rank in ranks]
    confirmed = [row.cells[score + 1] for row in made.rows]
    assert "(n = 3)" in confirmed[0].text
    assert [cell.key is None for cell in confirmed] == [False, True, False, True, True]
    assert [row.role for row in made.rows] == ["baseline", "", "best", "", ""]


def test_without_a_confirmation_there_is_no_column_for_it(tmp_path):
    text = page(keep(tmp_path, searched()))
    assert "fresh seeds</" not in text
    assert "nothing is claimed before fresh seeds confirm it" in text
    assert len(rows(text)[0]) == 9


def test_odd_texts_are_texts(tmp_path):
    values = {ODD: ODD, "unicode \u2028 \u202e": "\u2028"}
    records = [
        record(0, 0.3, values=values, augmentation=ODD, changes={"remarks": (ODD,)}),
        record(1, 0.2, values={ODD: "b"}),
    ]
    folder = keep(tmp_path / "a & <b>", records)
    notes = {"command": ODD, "data": ODD, "model": ODD, "skipped": [ODD]}
    (folder / RUN_FILE).write_text(json.dumps(notes))
    text = page_page.write(folder).read_text()
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
    parsed = Parsed(text)
    assert "alert" not in "".join(tag for tag, _ in parsed.tags)
    assert text.count("<script") == text.count("</script>")
    assert "a &amp; &lt;b&gt;" in text


@pytest.mark.parametrize(
    "records",
    [
        [record(-1, 0.3, "baseline")],
        [record(0, 0.3)],
        [failed(record(0, 0.3))],
        [failed(record(-1, 0.3, "baseline")), failed(record(0, 0.3), "nan")],
        [record(0, 0.3), *confirmation({-1: 0.2, 0: 0.3}, 1)],
        [failed(one) for one in confirmation({-1: 0.45, 0: 0.4}, 2)],
    ],
    ids=["baseline", "one trial", "one failed", "all failed", "one seed", "failed confirmation"],
)
def test_every_kind_of_search_has_a_page(records, tmp_path):
    text = page(keep(tmp_path, records))
    assert len(re.findall(r"<h1>.+</h1>", text)) == 1
    assert "</html>" in text


def test_a_search_of_which_nothing_is_kept_has_no_page(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(RecordError, match="must hold the records of one search"):
            page_page.write(folder)
    assert not (tmp_path / page_page.FILE).exists()


def test_a_long_search_shows_its_best_trials_and_says_so(tmp_path):
    folder = keep(tmp_path, [record(-1, 0.2, "baseline"), *many(MOST_TRIALS + 5)])
    text = page(folder)
    assert len(rows(text)) == 1 + MOST_TRIALS
    assert rows(text)[-1][0] == "5"  # the lowest score that is shown
    assert "The 5 trials with the lowest scores are left out" in text


def test_advice_asks_nothing_of_the_machine_of_the_reader(tmp_path):
    records = [
        record(0, 0.3, policy="mixed_float16", batch_size=512, optimizer="sgd"),
        record(1, 0.1),
    ]
    text = page(keep(tmp_path, records))
    assert "Best recipe (trial 0)" in text
    assert "Why: " in text
    assert "does not multiply float16 faster" not in text


def test_the_page_tells_what_was_searched_and_by_what(tmp_path):
    one = record(0, 0.3)
    folder = keep(tmp_path, [one])
    text = page(folder)
    for words in ("10 training seconds a trial", "400 for validation", "1 trial,", "kbatch report"):
        assert words in text


def test_a_page_says_that_its_search_goes_on_and_reloads(tmp_path):
    folder = keep(tmp_path, searched())
    records = folder / "search" / "kbatch"
    assert not is_locked(records)
    assert page_page.RUNNING.split("`")[0] not in page_page.write(folder).read_text()
    with Lock(records):
        assert is_locked(records)
        held = page_page.write(folder).read_text()
        assert "was still running" in held
        assert 'data-reload="0"' in held
        live = page_page.write_live(folder).read_text()
        assert "loads itself again" in live
        assert f'data-reload="{page_page.RELOAD_SECONDS}"' in live
        assert f'<meta http-equiv="refresh" content="{page_page.RELOAD_SECONDS}">' in live
    assert not is_locked(records)
    assert "running" not in page_page.write(folder).read_text().split("<main>")[0]


class Told(Watcher):
    def __init__(self):
        self.ended_trials = []

    def ended(self, record):
        self.ended_trials.append(record.trial)


def test_each_training_that_ends_is_on_the_page(tmp_path):
    folder, told = keep(tmp_path, searched()), Told()
    LivePage(folder, told).ended(record(0, 0.3))
    assert told.ended_trials == [0]
    assert "loads itself again" in (folder / page_page.FILE).read_text()


def test_the_page_takes_a_share_of_the_time(tmp_path):
    folder, now = keep(tmp_path, searched()), [0.0]

    def clock():
        now[0] += 0.5  # so long a page takes
        return now[0]

    live = LivePage(folder, Told(), clock)
    written = []
    for trial in range(20):
        now[0] += 9.5
        live.ended(record(trial, 0.3))
        written.append((folder / page_page.FILE).exists())
        (folder / page_page.FILE).unlink(missing_ok=True)
    assert [trial for trial, was in enumerate(written) if was] == [0, 3, 6, 9, 12, 15, 18]


def test_a_page_that_cannot_be_written_fails_no_trial(tmp_path):
    folder, told = keep(tmp_path, searched()), Told()
    (folder / page_page.FILE).mkdir()
    (folder / page_page.FILE / "in the way").touch()
    live = LivePage(folder, told)
    with pytest.warns(UserWarning, match="could not be written, and the search goes on"):
        live.ended(record(0, 0.3))
    live.ended(record(1, 0.3))  # said once
    assert told.ended_trials == [0, 1]


def test_a_search_that_was_stopped_no_longer_reloads(tmp_path):
    folder = keep(tmp_path, searched())
    with pytest.raises(KeyboardInterrupt), at_rest(folder):
        page_page.write_live(folder)
        raise KeyboardInterrupt
    assert "loads itself again" not in (folder / page_page.FILE).read_text()
    (folder / page_page.FILE).unlink()
    with pytest.raises(KeyboardInterrupt), at_rest(folder):
        raise KeyboardInterrupt
    assert not (folder / page_page.FILE).exists()


def test_one_batch_size_has_no_chart_over_batch_sizes(tmp_path):
    keep(tmp_path, [record(-1, 0.2, "baseline"), record(0, 0.3)])
    assert not any("batch size" in each.heading for each in contents_of(tmp_path).sections)
    keep(tmp_path / "two", [record(-1, 0.2, "baseline"), record(0, 0.3, batch_size=64)])
    headings = [each.heading for each in contents_of(tmp_path / "two").sections]
    assert "Score over batch size" in headings
