"""The command `kbatch doctor`: what of an installation works, and the remedies."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kbatch import __version__, distribution, text_table
from kbatch.cli import gpu_check, search_options
from kbatch.cli.command import WHOLE, new_console, told_plainly, with_options
from kbatch.cli.quick_checks import QUICK
from kbatch.cli.search_options import SearchOptions
from kbatch.errors import KbatchError, SearchError
from kbatch.runtime import device, nvidia

if TYPE_CHECKING:
    from rich.console import Console

    from kbatch.checks.check import Found


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """The options of `kbatch doctor`, which `--help` explains."""

    model: Annotated[
        str | None,
        typer.Argument(
            show_default=False,
            help="module:function of your build(hp), importable from here, to check what kbatch "
            "assumes of it; needs --data.",
        ),
    ] = None
    data: Annotated[str | None, search_options.DATA] = None
    image_size: Annotated[int | None, search_options.IMAGE_SIZE] = None
    split: Annotated[str, search_options.SPLIT] = "60,20,20"
    labels: Annotated[Literal["numbers", "one-hot"] | None, search_options.LABELS] = None
    values: Annotated[str | None, search_options.VALUES] = None
    loss: Annotated[str | None, search_options.LOSS] = None
    metric: Annotated[str | None, search_options.METRIC] = None
    seed: Annotated[int, typer.Option(**WHOLE, help="Seed of the split and the weights.")] = 0
    gpu: Annotated[bool, typer.Option("--gpu", help="Check the GPU too: about two minutes.")] = (
        False
    )

    def check(self) -> None:
        """Refuse a model without data, and data without a model."""
        if (self.model is None) == (self.data is None):
            return
        received = f"--data {self.data}" if self.model is None else self.model
        raise SearchError(
            "A model must be checked with its data",
            f"{received} alone",
            "Pass both: kbatch doctor mymodel:build --data FOLDER",
        )

    def search(self) -> SearchOptions:
        """Return the options of the search that is checked; its horizon is of no concern."""
        own = {name: value for name, value in vars(self).items() if name != "gpu"}
        return SearchOptions(**own, epochs=search_options.DEFAULT_EPOCHS, axes={})


def passes_quick_checks() -> bool:
    """Run the quick checks, print a line of each, and tell whether none failed.

    A machine without a GPU fails, since it was asked for one.
    """
    try:
        report = gpu_check.GpuReport(None, gpu_check.gpus())
    except KbatchError as error:
        print(f"! {error}")
        return False
    gpu_check.run(QUICK, report)
    print(report.summary())
    return not report.failed


TIMEOUT_SECONDS = 120
LIBRARIES = ("keras-tuner", "numpy", "loky", "nvidia-ml-py")
# Of TF_ variables only TensorFlow's own: Terraform has such names too, and passwords in them.
VARIABLES = re.compile(
    r"TF_(AUTO|CONFIG$|CPP|CPU|CUBLAS|CUDA|CUDNN|DETERMINISTIC|DISABLE|DUMP|ENABLE|FORCE|GPU"
    r"|INTER|INTRA|MIN|MKL|NUM|ONEDNN|USE|XLA)\w*"
    r"|CUDA_(VISIBLE_DEVICES|DEVICE_ORDER)|XLA_FLAGS|KERAS_BACKEND|KBATCH_CACHE"
)
QUESTIONS = """
import json, os
os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_FORCE_GPU_ALLOW_GROWTH="true")
told = {}
def ask(name, question):
    try:
        told[name] = question()
    except Exception:
        pass
def limit():
    from tensorflow.python.client import device_lib
    devices = device_lib.list_local_devices()
    return next(device.memory_limit for device in devices if device.device_type == "GPU")
def gpu_name(gpu):
    return tf.config.experimental.get_device_details(gpu).get("device_name", "GPU")
def build():
    info = tf.sysconfig.get_build_info()
    return {name: str(value) for name, value in info.items() if name.endswith("_version")}
def onednn():
    from tensorflow.python.util import _pywrap_util_port
    return _pywrap_util_port.IsMklEnabled()
try:
    import tensorflow as tf
    told["tensorflow"] = tf.__version__
    from kbatch.runtime import device, device_memory
    told["gpus"] = [gpu_name(gpu) for gpu in tf.config.list_physical_devices("GPU")]
except BaseException as error:
    told["error"] = f"{type(error).__name__}: {error}"
else:
    ask("cuda", tf.test.is_built_with_cuda)
    ask("build", build)
    ask("cpu", device.processor_words)
    ask("tells_bytes", lambda: device_memory.bytes_now() is not None)
    ask("limit", limit)
    ask("onednn", onednn)
try:
    import keras
    told.update(keras=keras.__version__, backend=keras.backend.backend())
except BaseException as error:
    told["keras_error"] = f"{type(error).__name__}: {error}"
print()
print(json.dumps(told))
"""


@with_options(DoctorOptions)
def doctor(options: DoctorOptions) -> None:
    """Show versions, devices and settings for a bug report, and the problems of this machine.

    With a model and data, check what kbatch assumes of them instead, as a search does before it
    trains. The exit code is 1 if there is a problem, or if a check refuses.
    """
    with told_plainly():
        options.check()
        sound = _is_well() if options.model is None else _suits(options)
        sound = (not options.gpu or passes_quick_checks()) and sound
    if not sound:
        raise typer.Exit(1)


def _is_well() -> bool:
    """Print versions, devices and settings, and tell whether there is no problem."""
    found = findings()
    print("\n".join(lines(found)))
    return not any(finding.problem for finding in found)


def _suits(options: DoctorOptions) -> bool:
    """Print what the checks find in a model and data, and tell whether none refuses."""
    return passes_checks(options.search(), new_console())


@dataclass(frozen=True)
class DoctorLine:
    """One line of the doctor's report."""

    topic: str  # such as a library, a device or a setting
    value: str  # its version, name or value
    problem: str = ""  # the problem as a clause without a full stop; empty if there is none
    do: str = ""  # the remedy as a clause without a full stop


def findings() -> list[DoctorLine]:
    """Return versions, devices, memory and settings, each with its problem if it has one."""
    told = ask_tensorflow()
    return [
        _kbatch(),
        DoctorLine("python", f"{platform.python_version()}, {platform.platform()}"),
        _tensorflow(told),
        _keras(told),
        *(DoctorLine(name, _version(name)) for name in LIBRARIES),
        _tensorboard(),
        *_devices(told),
        *_variables(),
    ]


def lines(found: Iterable[DoctorLine]) -> Iterator[str]:
    """Give the findings as aligned lines of text, then each problem with its remedy."""
    found = list(found)
    width = max(len(finding.topic) for finding in found)
    yield from (f"{finding.topic:<{width}}  {finding.value}" for finding in found)
    yield from (f"! {finding.problem}. {finding.do}." for finding in found if finding.problem)


def ask_tensorflow() -> dict[str, Any]:
    """Ask TensorFlow and Keras for versions and devices; `"error"` holds why they do not answer."""
    try:
        process = subprocess.run(
            [sys.executable, "-c", QUESTIONS],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {TIMEOUT_SECONDS} seconds"}
    except OSError as error:
        return {"error": f"{error}"}
    try:
        return dict(json.loads(process.stdout.strip().splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
        return {"error": f"its process {_ending(process.returncode)}"}


def _variables() -> Iterator[DoctorLine]:
    """The environment variables that TensorFlow and kbatch read."""
    for name, value in sorted(os.environ.items()):
        if VARIABLES.fullmatch(name):
            yield DoctorLine(name, _one_line(value))


def _ending(code: int) -> str:
    """How a process ended, from its exit code."""
    if code >= 0:
        return f"ended with code {code} and said nothing"
    names = {member.value: member.name for member in signal.Signals}
    return f"died of {names.get(-code, f'signal {-code}')}"


def _kbatch() -> DoctorLine:
    """The version of kbatch, and whether another project of its import name is installed."""
    other = distribution.other_version()
    if other is None:
        return DoctorLine("kbatch", f"{__version__} ({distribution.NAME})")
    return DoctorLine(
        "kbatch",
        f"{__version__} ({distribution.NAME})",
        f"another project is installed as kbatch {other}, and is imported by the same name",
        f"Run `{distribution.DO}`",
    )


def _tensorflow(told: Mapping[str, Any]) -> DoctorLine:
    if "error" in told:
        do = (
            "Install it again with `pip install --force-reinstall tensorflow`, "
            "with an NVIDIA card `'tensorflow[and-cuda]'`"
        )
        if "SIGILL" in told["error"]:
            do = (
                "Its wheels need a processor with AVX: take another machine, "
                "or build TensorFlow for this one"
            )
        return DoctorLine(
            "tensorflow",
            told.get("tensorflow", "not usable"),
            f"TensorFlow does not work here: {_one_line(told['error'])}",
            do,
        )
    build = ", ".join(
        f"{name.removesuffix('_version')} {value}"
        for name, value in sorted(told.get("build", {}).items())
    )
    cuda = "with CUDA" if told.get("cuda") else "without CUDA"
    versions = f" ({build})" if build else ""
    return DoctorLine("tensorflow", f"{told['tensorflow']}, built {cuda}{versions}")


def _keras(told: Mapping[str, Any]) -> DoctorLine:
    backend = told.get("backend") or os.environ.get("KERAS_BACKEND") or "unknown"
    value = f"{told.get('keras') or _version('keras')}, backend {backend}"
    if backend not in ("tensorflow", "unknown"):
        return DoctorLine(
            "keras",
            value,
            f"kbatch trains on TensorFlow, and Keras is set to {backend}",
            "Set KERAS_BACKEND=tensorflow",
        )
    if "keras_error" in told and "error" not in told:
        return DoctorLine(
            "keras",
            value,
            f"Keras cannot be imported: {_one_line(told['keras_error'])}",
            "Run `pip install 'keras>=3.8'`",
        )
    return DoctorLine("keras", value)


def _tensorboard() -> DoctorLine:
    if importlib.util.find_spec("tensorboard") is None:
        problem = "keras-tuner imports TensorBoard in every trial, so without it every trial fails"
        return DoctorLine("tensorboard", "not installed", problem, "Run `pip install tensorboard`")
    return DoctorLine("tensorboard", _version("tensorboard"))


def _devices(told: Mapping[str, Any]) -> Iterator[DoctorLine]:
    """The processor, the GPUs, the NVIDIA cards, and their memory."""
    gpus = told.get("gpus", [])
    yield DoctorLine("cpu", told.get("cpu") or device.processor_words())
    without = "unknown" if "error" in told else "none that TensorFlow sees"
    yield DoctorLine("gpu", ", ".join(gpus) or without)
    yield _nvidia(told)
    yield DoctorLine("memory limit", _limit(told))
    yield DoctorLine("tells its bytes", _tells_bytes(told))
    words = {True: "on", False: "off", None: "unknown"}
    yield DoctorLine("onednn", words.get(told.get("onednn"), "unknown"))


def _nvidia(told: Mapping[str, Any]) -> DoctorLine:
    cards = "; ".join(nvidia.card_names()) or (
        "one without nvidia-smi" if nvidia.has_card() else ""
    )
    if not cards or told.get("gpus") or "error" in told:
        return DoctorLine("nvidia cards", cards or "none")
    if nvidia.is_card_hidden():
        hidden = os.environ["CUDA_VISIBLE_DEVICES"]
        return DoctorLine(
            "nvidia cards",
            cards,
            f"CUDA_VISIBLE_DEVICES={hidden!r} hides the NVIDIA card from TensorFlow",
            "Unset it",
        )
    problem = (
        "TensorFlow does not see the NVIDIA card"
        if told.get("cuda")
        else "This TensorFlow is built without CUDA and cannot use the NVIDIA card"
    )
    return DoctorLine(
        "nvidia cards",
        cards,
        problem,
        f"Run `pip install 'tensorflow[and-cuda]=={told['tensorflow']}'`, or see examples/docker/",
    )


def _limit(told: Mapping[str, Any]) -> str:
    if told.get("gpus"):
        return f"{told['limit'] / 1e6:,.0f} MB" if "limit" in told else "unknown"
    megabytes = os.environ.get("TF_CPU_BFC_MEM_LIMIT_IN_MB")
    if megabytes and os.environ.get("TF_CPU_ALLOCATOR_USE_BFC", "").lower() in ("true", "1"):
        return f"{megabytes} MB"
    return "none (a CPU has one with TF_CPU_ALLOCATOR_USE_BFC=true and TF_CPU_BFC_MEM_LIMIT_IN_MB)"


def _tells_bytes(told: Mapping[str, Any]) -> str:
    if "tells_bytes" not in told:
        return "unknown"
    if told["tells_bytes"]:
        return "yes"
    return "no (a CPU does with TF_CPU_ALLOCATOR_USE_BFC=true when TensorFlow is imported)"


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _one_line(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())


def passes_checks(options: SearchOptions, console: Console) -> bool:
    """Check what kbatch assumes, print a table, and return whether no check refuses."""
    found = _found(options, console)
    console.print(table(found, console.width), highlight=False, markup=False, soft_wrap=True)
    refused = [each.check.name for each in found if each.refusal is not None]
    seconds = sum(each.seconds for each in found)
    says = f"A search would refuse: {', '.join(refused)}." if refused else "A search would begin."
    console.print(f"{says} {len(found)} checks took {seconds:.1f} s.", highlight=False)
    return not refused


def table(found: Sequence[Found], width: int) -> str:
    """Return what checks found as a text, one row per check."""
    from rich.table import Table
    from rich.text import Text

    page = Table(show_lines=True)
    for heading in ("check", "kbatch assumes", "here", "else", "found"):
        page.add_column(heading, ratio=WIDE.get(heading))
    page.add_column("s", justify="right")
    for each in found:
        cells = (each.check.name, each.check.assumes, each.verdict, each.check.otherwise)
        row = (*cells, each.sentence, f"{each.seconds:.1f}")
        page.add_row(*map(Text, row))
    return text_table.rendered(page, width)


WIDE = {"kbatch assumes": 2, "else": 2, "found": 3}  # shares of the width that others leave


def _found(options: SearchOptions, console: Console) -> list[Found]:
    """Make the checks of the search that the options ask for."""
    from kbatch.cli import search_run
    from kbatch.cli.task import task_of

    options, task = task_of(options)
    space = options.space()
    search_run.import_tensorflow()
    search_run.start_tensorflow()
    from kbatch.checks import catalogue
    from kbatch.data.streams import inputs_of
    from kbatch.hypermodel import HyperModel
    from kbatch.models.maker import check_known_values
    from kbatch.models.preprocessor import preprocess_of
    from kbatch.training.arguments import FitArguments

    searched = task.searched(search_run.load(task, console))
    console.print(searched.words, highlight=False, soft_wrap=True)
    terms = HyperModel(searched.spec, space, metric=searched.metric, seconds_per_trial=1).terms
    maker, policy = terms.model_maker, space.baseline.policy
    hp = maker.hyperparameters()
    model = maker.raw(policy, hp)
    check_known_values(maker.values, hp, lambda other: maker.raw(policy, other))
    arguments = FitArguments.parse(
        searched.examples.train, {"validation_data": searched.examples.validation}
    )
    data = arguments.data(lambda: inputs_of(model), preprocess_of(model))
    return catalogue.made(terms.subject(arguments, data))
