"""The command `kbatch report`: what it writes, and the browser."""

import json
import webbrowser

import pytest
from result_records import confirmation, keep, record
from typer.testing import CliRunner

from kbatch.cli.app import app


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr("kbatch.results.page.vega", lambda: "window.vegaEmbed = 1;")
    records = [record(-1, 0.2, "baseline"), record(1, 0.3), *confirmation({-1: 0.2, 1: 0.3}, 3)]
    return keep(tmp_path / "a [b]", records)


@pytest.fixture
def opened(monkeypatch):
    addresses = []
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(addresses.append(address)) or True)
    return addresses


def test_the_page_is_written_and_opened_where_asked(folder, opened):
    result = CliRunner().invoke(app, ["report", str(folder)])
    assert result.exit_code == 0
    assert f"{folder}/report.html" in result.output
    assert (folder / "report.html").exists()
    assert opened == []
    assert CliRunner().invoke(app, ["report", str(folder), "--open"]).exit_code == 0
    assert opened == [(folder / "report.html").as_uri()]


def test_without_a_browser_the_address_is_told(folder, monkeypatch):
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    result = CliRunner().invoke(app, ["report", str(folder), "--open"])
    assert result.exit_code == 0
    assert f"There is no browser here. Open {(folder / 'report.html').as_uri()}" in result.output


@pytest.mark.parametrize("where", ["", "missing", "a file", "broken"])
def test_a_folder_of_no_search_is_refused_and_nothing_opened(where, tmp_path, opened):
    (tmp_path / "a file").touch()
    (tmp_path / "broken" / "kbatch").mkdir(parents=True)
    (tmp_path / "broken" / "kbatch" / "records.jsonl").write_text("{}\n{}\n")
    result = CliRunner().invoke(app, ["report", str(tmp_path / where), "--open"])
    assert result.exit_code == 2
    assert "error: " in result.output
    assert not list(tmp_path.rglob("report.html"))
    assert opened == []


@pytest.mark.parametrize("command", ["report", "compare", "advise", "export"])
def test_the_folder_of_a_study_is_told_from_a_search(command, folder, tmp_path):
    study = tmp_path / "st"
    (study / "kbatch").mkdir(parents=True)
    (study / "kbatch" / "project.json").write_text(json.dumps({"study": "optimizers"}))
    (study / "kbatch" / "records.jsonl").write_text("")
    others = [str(folder)] if command == "compare" else []
    result = CliRunner().invoke(app, [command, *others, str(study)])
    assert result.exit_code == 2
    assert "this is the folder of the study 'optimizers'" in result.output
    assert f"Read {study / 'study.md'}" in result.output
