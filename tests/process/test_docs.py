"""Every block of code in README.md and docs/ works: Python runs, commands are parsed or run."""

import contextlib
import functools
import inspect
import io
import math
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

import kbatch
from kbatch.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = {str(file.relative_to(ROOT)): file for file in FILES}
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:python scripts/|kbatch [a-z])[^`]*)`")
SLOW = {
    "docs/how-to/largest-batch.md": "a dozen worker processes",
    "docs/how-to/recompute.md": "measures three plans",
    "docs/how-to/several-devices.md": "a search as in test_several_devices",
}
# The pages say sizes that a reader wants; the tests need small ones.
SMALL = [
    (r"\bseconds_per_trial=\d+", "seconds_per_trial=0.3"),
    (r"\bseconds=\d+", "seconds=0.3"),
    (r"\bHorizon\(60,", "Horizon(0.3,"),
    (r"\bmax_trials=\d+", "max_trials=1"),
    (r"\bbudget=\"30min\"", "max_trials=2"),
    (r"\bobjective\(\), 6,", "objective(), 1,"),
    (r"\bbudget=\"2min\"", "seconds_per_trial=0.3, max_trials=1, confirm_seeds=0"),
    (r"\bepochs=10, max_trials=6", "epochs=2, seconds_per_trial=0.3, max_trials=1"),
    (r"\bepochs=(10|50)\b", "epochs=2"),
    (r"\bseeds=\d+", "seeds=1"),
    (r"\btop=1\)", "top=1, seeds=1)"),
]
# Outputs whose numbers are those of the machine and the moment that the page names.
ILLUSTRATIVE = {
    "README.md": ("• baseline ->",),
    "docs/how-to/advice.md": ("recipe: batch 512",),
    "docs/how-to/results.md": ("Recipes by score",),
    "docs/how-to/largest-batch.md": ("batch ", "policy ", "weights ", "  batch "),
    "docs/how-to/recompute.md": ("minimal: ", "1.7 MB"),
}
NOT_RUN = {
    "pip install": "changes the environment; .ci/run runs it",
    "pytest": "these tests; .ci/run runs it",
    "mkdocs serve": "a server; .ci/run builds the pages",
    "docker": "there is no Docker here",
    "tensorboard --logdir": "a server; tests/keras/test_board.py asks its backends",
    "python scripts/bench_": "hours",
    "python scripts/record_table.py": "hours",
    "python scripts/recompute_applications.py": "hours",
    "python scripts/gpu_check.py": "no GPU is here; tests/process/test_gpu_check.py runs a few",
    "python scripts/fuzz_": "minutes; tests/process/test_fuzz.py runs a sample",
}
# Options that make a command small; the last one given counts.
SMALL_COMMANDS = {
    "cats-vs-dogs": "--model cnn --image-size 16 --trials 1 --seconds-per-trial 0.3 --confirm 0",
    "search": "--image-size 16 --trials 1 --seconds-per-trial 0.3 --confirm 0",
    "max-batch": "--shape 16,16,3 --memory-limit 100MB --ceiling 32",
    "recompute": "--shape 16,16,3 --memory-limit 100MB",
    "doctor": "",
}
TUNE = ["--trials", "1", "--seconds-per-trial", "0.3", "--confirm", "0"]


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str


@functools.cache
def blocks(page):
    """The fenced blocks of a page in order, those in HTML comments among them."""
    text = PAGES[page].read_text()
    return [
        Block(page, text.count("\n", 0, match.start()) + 1, *match.groups())
        for match in FENCE.finditer(text)
    ]


def of_language(language):
    return [block for page in PAGES for block in blocks(page) if block.language == language]


def small(code):
    for pattern, replacement in SMALL:
        code = re.sub(pattern, replacement, code)
    return code


def runs_python(page):
    return any(block.language == "python" for block in blocks(page)) and page != "docs/index.md"


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page in SLOW else [])
        for page in PAGES
        if runs_python(page)
    ],
)
def test_the_python_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    """In order, in one namespace, in an empty folder; what they print is what the page says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KBATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    # so that no trial of a third of a second is stopped at a rung
    monkeypatch.setattr("kbatch.search.tuner_border.widest_difference", lambda *_: math.inf)
    namespace = {"__name__": "__docs__"}
    printed = ""
    for block in blocks(page):
        if block.language == "python":
            code = "\n" * block.line + small(block.text)
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(code, page, "exec"), namespace)
            printed = output.getvalue()
        elif block.language == "text" and printed:
            if not block.text.startswith(ILLUSTRATIVE.get(page, ())):
                assert printed == block.text, f"{page}:{block.line}"
            printed = ""
    sys.modules.pop("mymodel", None)


def test_the_first_page_shows_the_script_of_the_readme():
    scripts = [
        next(block.text for block in blocks(page) if block.language == "python")
        for page in ("README.md", "docs/index.md")
    ]
    assert scripts[0] == scripts[1]
    assert len(scripts[0].splitlines()) <= 20


def test_the_readme_is_short_and_its_links_lead_somewhere():
    text = PAGES["README.md"].read_text()
    assert len(text.splitlines()) <= 120
    links = re.findall(r"\]\(([^)#]+)", text)
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_reference_has_every_public_name():
    text = "".join(file.read_text() for file in (ROOT / "docs" / "reference").glob("*.md"))
    shown = set(re.findall(r"^::: (\S+)$", text, re.MULTILINE))
    rooms = [kbatch, *(getattr(kbatch, name) for name in kbatch.__all__ if name.islower())]
    public = {f"{room.__name__}.{name}" for room in rooms for name in getattr(room, "__all__", ())}
    modules = {room.__name__ for room in rooms if inspect.ismodule(room)}
    assert public - modules == shown


def commands():
    """Every command of the pages as its words, without comments; `a && b` are two."""
    for block in of_language("bash"):
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words:
                end = words.index("&&") if "&&" in words else len(words)
                yield block, words[:end]
                words = words[end + 1 :]


def known_options(words):
    """The options that a command has: those of `--help`, or those that a script's text names."""
    if words[0] == "kbatch":
        command = typer.main.get_command(app).commands[words[1]]
        return {option for each in command.params for option in each.opts} | {"--help"}
    return set(re.findall(r'"(--[a-z-]+)"', (ROOT / words[1]).read_text()))


@pytest.mark.parametrize(
    "block", of_language("bash"), ids=lambda block: f"{block.page}:{block.line}"
)
def test_a_block_of_commands_is_bash(block):
    read = subprocess.run(["bash", "-n"], input=block.text, text=True, capture_output=True)
    assert (read.returncode, read.stderr) == (0, "")


def test_every_command_is_known_with_its_options():
    """Those of kbatch are parsed whole; of others, files, extras and options are checked."""
    project = (ROOT / "pyproject.toml").read_text()
    group = typer.main.get_command(app)
    for block, words in commands():
        said = f"{block.page}:{block.line}: {shlex.join(words)}"
        if words[0] == "kbatch":
            group.commands[words[1]].make_context(words[1], words[2:])
            continue
        assert any(shlex.join(words).startswith(name) for name in NOT_RUN), said
        for extra in re.findall(r"\.\[(\w+)\]", shlex.join(words)):
            assert f"\n{extra} = [" in project, said
        for word in words[1:]:
            assert not re.fullmatch(r"(scripts|tests|examples)/\S+", word) or (ROOT / word).exists()
        if words[0] == "python":
            options = {word for word in words if word.startswith("--")}
            assert options <= known_options(words), said
        if words[0] == "docker" and "kbatch" in words and words[1] == "run":
            own = words[words.index("kbatch") + 1 :]
            group.commands[own[0]].make_context(own[0], own[1:])


@pytest.mark.parametrize("page", [*PAGES, "scripts/results/README.md"])
def test_commands_in_the_text_name_options_that_exist(page):
    for text in INLINE.findall((ROOT / page).read_text()):
        words = text.split()
        options = {word for word in words if word.startswith("--")}
        assert options <= known_options(words), text


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """What the pages take for granted: a model in `mymodel.py`, pictures in `PetImages`."""
    from PIL import Image

    from kbatch.data.drawn import drawn_pets

    setup = next(block for block in blocks("docs/how-to/largest-batch.md"))
    source = re.search(r'SOURCE = """\n(.*?)"""', setup.text, re.DOTALL)
    (tmp_path / "mymodel.py").write_text(source.group(1).replace("32, 32, 3", "16, 16, 3"))
    for name, pictures in drawn_pets(100, 16).items():
        (tmp_path / "PetImages" / name).mkdir(parents=True)
        for number, picture in enumerate(pictures):
            Image.fromarray(picture).save(tmp_path / "PetImages" / name / f"{number}.png")
    script = ROOT / "tests" / "support" / "users_scripts" / "from_scratch.py"
    (tmp_path / "train.py").write_text(script.read_text())
    monkeypatch.setenv("KBATCH_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.slow
def test_the_commands_of_kbatch_run(folder):
    """Each once, with options appended that make it small; a report is that of the last search."""
    done = set()
    searched = ""
    of_searches = (["report"], ["advise"], ["export"], ["compare"])
    for block, words in sorted(commands(), key=lambda each: each[1][1:2] in of_searches):
        if words[0] != "kbatch" or tuple(words) in done:
            continue
        done.add(tuple(words))
        name = words[1]
        arguments = [*words[1:], *SMALL_COMMANDS.get(name, "").split()]
        if name == "tune":  # what comes behind the script is the script's
            arguments = ["tune", *TUNE, *words[2:]]
        if name in ("cats-vs-dogs", "search"):
            searched = f"out-{len(done)}"
            arguments += ["--out", searched]
        if name == "report":
            arguments = ["report", searched]
        arguments = [searched if word.startswith("runs/") else word for word in arguments]
        result = subprocess.run(
            [sys.executable, "-m", "kbatch", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        allowed = (0, 1) if name == "doctor" else (0,)
        assert result.returncode in allowed, (block, arguments, result.stderr)


def test_the_page_on_docker_shows_the_files():
    page = PAGES["docs/how-to/docker.md"].read_text()
    shown = [text for language, text in FENCE.findall(page) if language == "dockerfile"]
    files = ("Dockerfile", "tensorflow.Dockerfile")
    for block, name in zip(shown, files, strict=True):
        text = (ROOT / "examples" / "docker" / name).read_text()
        assert text.endswith(block)
        head = text.removesuffix(block)
        assert all(line.startswith("#") for line in head.splitlines())
