"""The notebook of the examples runs from the first cell to the last, at a tiny size."""

import re
from pathlib import Path

import keras
import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell

from kbatch.results.loading import load_records

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
TINY = "SECONDS, TRIALS, SEEDS = 0.3, 2, 1"


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook after its search ran twice, and the folder that it ran in."""
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cells = {cell.id: cell for cell in notebook.cells}
    assert cells["parameters"].metadata.tags == ["parameters"]
    again = [new_code_cell(TINY, id="tiny"), new_code_cell(cells["search"].source, id="again")]
    for cell, after in zip(again, ("parameters", "search"), strict=True):
        notebook.cells.insert(notebook.cells.index(cells[after]) + 1, cell)
    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    notebook.metadata.kernelspec = kernel
    where = {"metadata": {"path": str(folder)}}
    # as a page shows streams: in one piece, the lines that were written over left out
    client = NotebookClient(notebook, timeout=240, resources=where, coalesce_streams=True)
    return client.execute(), folder


def outputs(notebook, name):
    (cell,) = (cell for cell in notebook.cells if cell.id == name)
    return cell.outputs


def said(notebook, name):
    return "".join(each.text for each in outputs(notebook, name) if each.output_type == "stream")


def test_the_stored_notebook_is_valid_and_holds_no_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell for cell in code if cell.outputs or cell.execution_count] == []
    assert notebook.metadata.kernelspec.name == "python3"


def test_every_cell_runs_and_the_search_trains_nothing_twice(executed):
    notebook, folder = executed
    records = load_records(folder / "runs" / "notebook")
    purposes = [record.purpose for record in records]
    assert purposes == ["baseline", "search", "search", "confirmation", "confirmation"]
    assert "held" not in said(notebook, "again")
    assert keras.models.load_model(folder / "digits.keras").count_params() == 38_410


def test_progress_in_a_notebook_is_plain_lines_in_order(executed):
    """KerasTuner empties the cell of a search after every trial; that of a confirmation stays."""
    found = [each for each in outputs(executed[0], "confirm") if each.get("name") != "stderr"]
    kinds = [each.output_type for each in found]
    assert kinds == ["stream", "execute_result"]  # no box of HTML for each line
    lines = [line for line in found[0].text.splitlines() if "first step" not in line]
    starts = [re.sub(r"\d+", "N", line.split(":")[0]) for line in lines]
    assert starts == [
        "N trainings of N.N training seconds to confirm",
        "confirmation of the baseline",
        "    ended by horizon",
        "confirmation of trial N",
        "    ended by horizon",
    ]
    assert "Best score So Far" in said(executed[0], "search")


def test_results_show_themselves_as_tables_and_a_figure(executed):
    shown = {name: outputs(executed[0], name)[-1].data for name in ("confirm", "report", "figure")}
    assert "<table" in shown["confirm"]["text/html"]
    assert "baseline" in shown["report"]["text/html"]
    assert shown["figure"]["image/png"]
    assert "examples per second" in said(executed[0], "best")
