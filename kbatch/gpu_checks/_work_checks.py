"""The checks of kbatch's work: data, training, finder, XLA, recompute and search."""

from __future__ import annotations

from itertools import product

from kbatch.gpu_checks.check import Check

HERE = "kbatch.gpu_checks"
CUDNN = "Keras takes cuDNN's LSTM where it sees a GPU"
MINUTES = "a CPU takes a minute or more for it"

DATA = (
    Check(
        "D1",
        "preparing 6 GB of data under a limit of 4 GB takes < 100 MB of the GPU",
        f"{HERE}._input:prepared",
        unrehearsed="the fake's memory and the host's are one",
    ),
    Check(
        "D2",
        "examples/s against those of data on the GPU: >= 0.7, or a remark says that it waits",
        f"{HERE}._input:speed",
        expected_seconds=30,
    ),
)
POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")
TRAINING = (
    *(
        Check(
            f"T1.{policy}.{jit}",
            "ended by the horizon, seconds within 5 % of it, value > 0.5, load of the GPU told",
            f"{HERE}._training:policy",
            (policy, jit),
            seconds_limit=180,
            quick=(policy, jit) == ("float32", "plain"),
            unrehearsed="" if policy == "float32" else "a CPU is slow at 16 bits",
        )
        for policy, jit in product(POLICIES, ("plain", "jit"))
    ),
    Check(
        "T2",
        "mixed_float16: updates less iterations are >= 0 and < 5",
        f"{HERE}._training:skipped",
        seconds_limit=180,
    ),
    Check(
        "T3.axis",
        "the baseline's jit_compile is in the default space",
        f"{HERE}._training:baseline",
        seconds_limit=90,
    ),
    *(
        Check(
            f"T3.{model}",
            "seconds of a step with and without XLA are stored",
            f"{HERE}._training:jit_seconds",
            (model,),
            seconds_limit=400,
            expected_seconds=60,
            unrehearsed=MINUTES if model == "resnet50" else "",
        )
        for model in ("cnn", "small-resnet", "resnet50")
    ),
    Check(
        "T4",
        "the difference of two curves of the same seed is stored",
        f"{HERE}._training:twice",
    ),
    Check(
        "T5",
        "after a search of 20 trials, jitted and not, the bytes in use are back to 2 % of their "
        "most, and the card's used bytes grew by < 200 MB",
        f"{HERE}._training:many",
        seconds_limit=400,
        expected_seconds=60,
    ),
)
MODELS = ("cnn", "small-resnet", "resnet50", "mobilenetv2", "lstm", "transformer")
REHEARSED = {("cnn", "float32", "plain")}
# On a GPU Keras does not let XLA compile an LSTM that may use cuDNN's kernel.
ANSWERS = [
    each
    for each in product(MODELS, ("float32", "mixed_float16"), ("plain", "jit"))
    if each[::2] != ("lstm", "jit")
]
FINDER = (
    *(
        Check(
            f"F1.{'.'.join(each)}",
            "the answer at 4 GB trains 100 steps in 2 fresh processes, 1.15 times it fails in 2; "
            "at most 2 times out of memory; < 120 s",
            f"{HERE}._finder:largest",
            each,
            seconds_limit=600,
            expected_seconds=90,
            unrehearsed="" if each in REHEARSED else MINUTES,
        )
        for each in ANSWERS
    ),
    *(
        Check(
            f"F2.{model}",
            "the first step's peak, the steady peak, the prediction, and the peaks without "
            "cuDNN's autotuning are stored",
            f"{HERE}._finder:peaks",
            (model,),
            expected_seconds=40,
            shares=True,
            unrehearsed="" if model == "cnn" else MINUTES,
        )
        for model in MODELS
    ),
    Check(
        "F3",
        "all of the card without a ceiling: an answer within 300 s",
        f"{HERE}._finder:whole_card",
        seconds_limit=600,
        expected_seconds=120,
    ),
    Check(
        "B1",
        "every row of the table of the default space and XLA at 4 GB trains 60 steps, and 1.25 "
        "times it fails",
        f"{HERE}._finder:table",
        seconds_limit=1500,
        expected_seconds=300,
    ),
)
XLA = (
    Check(
        "X1",
        "XLA's bytes are the measured peak to 1 %, and the same in two processes",
        f"{HERE}._xla:compiled",
        shares=True,
    ),
    Check(
        "X2",
        "a step of twice the limit is too large, and no ModelError",
        f"{HERE}._xla:too_large",
        shares=True,
    ),
)
RECOMPUTE = (
    *(
        Check(
            f"R1.{model}",
            "peak -30 % or better on ResNet50, seconds <= 1.4 times; stored for each strategy",
            f"{HERE}._recompute:strategies",
            (model,),
            seconds_limit=600,
            expected_seconds=60,
            unrehearsed="" if model == "small-resnet" else MINUTES,
        )
        for model in ("small-resnet", "resnet50", "mobilenetv2")
    ),
    Check(
        "R2",
        "recompute and plain training differ by < 1e-5, traced 10 times, with determinism on",
        f"{HERE}._recompute:exact",
        seconds_limit=600,
        expected_seconds=40,
    ),
    Check(
        "R3",
        "the finder answers for an LSTM with recompute",
        f"{HERE}._recompute:sequences",
        expected_seconds=40,
        shares=True,
        unrehearsed=CUDNN,
    ),
)
SEARCH = (
    Check(
        "S1",
        "a search that is killed goes on: exit code 0, the report names the GPU, nothing is "
        "trained twice",
        f"{HERE}._search:resumed",
        seconds_limit=600,
        expected_seconds=60,
    ),
    Check(
        "S2",
        "a second find_max_batch gives the same answer and trains nothing; the key names the GPU",
        f"{HERE}._search:kept",
        expected_seconds=40,
        shares=True,
    ),
    Check(
        "P1",
        "`pytest -m gpu tests/gpu` passes",
        f"{HERE}._search:suite",
        seconds_limit=1500,
        expected_seconds=300,
        unrehearsed=MINUTES,
    ),
)

WORK_CHECKS = (*DATA, *TRAINING, *FINDER, *XLA, *RECOMPUTE, *SEARCH)
