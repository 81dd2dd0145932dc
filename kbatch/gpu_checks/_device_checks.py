"""The checks of the device itself: environment, meter, limits and out of memory."""

from __future__ import annotations

from kbatch.gpu_checks.check import Check

HERE = "kbatch.gpu_checks"
CUDNN = "Keras takes cuDNN's LSTM where it sees a GPU"
TWO_MEMORIES = "the fake's memory and the host's are one"

ENVIRONMENT = (
    Check(
        "E1",
        "one GPU or more; device, driver, CUDA, cuDNN, ptxas and libdevice are named",
        f"{HERE}._environment:device",
        seconds_limit=60,
        quick=True,
    ),
    Check(
        "E2",
        "relative error of matmul and conv, forward and backward, against the CPU: "
        "< 2e-3 (float32 with TF32, float16), < 2e-2 (bfloat16)",
        f"{HERE}._environment:numbers",
        seconds_limit=120,
        quick=True,
    ),
    Check(
        "E3",
        "a jitted tanh and a jitted train step are finite and equal the plain ones to 1e-2",
        f"{HERE}._environment:jitted",
        seconds_limit=180,
        quick=True,
    ),
    Check(
        "E4",
        "importing kbatch, Keras and KerasTuner takes < 20 MB of the GPU and begins no context",
        f"{HERE}._environment:imports",
        seconds_limit=90,
        quick=True,
    ),
    Check(
        "E5",
        "`kbatch doctor` finds no problem",
        f"{HERE}._environment:doctor",
        seconds_limit=150,
        quick=True,
    ),
)
METER = (
    Check(
        "M1",
        "current and peak grow by a held tensor's bytes to 1 %; after reset peak = current",
        f"{HERE}._meter:block",
        seconds_limit=60,
        quick=True,
    ),
    Check(
        "M2",
        "20 matmuls of 8192 x 8192 are queued in < 20 % of the time until `wait` returns",
        f"{HERE}._meter:wait",
        seconds_limit=120,
        unrehearsed="a CPU has computed when it returns",
    ),
    Check(
        "M3",
        "the clock's seconds are the wall's to 2 %; plain fit / clocked fit >= 0.9",
        f"{HERE}._meter:clock",
    ),
    Check(
        "M4",
        "used bytes of the second card are unchanged after `wait`",
        f"{HERE}._meter:other_cards",
        unrehearsed="the fake has no driver that tells the bytes of a card",
    ),
)
LIMITS = (
    Check(
        "L1",
        "a limit of 4 GB is 3814 MiB; 96 % of it allocates, 110 % is certainly out of memory "
        "within 15 s, and then 27 % allocates",
        f"{HERE}._limits:limited",
        seconds_limit=90,
        quick=True,
        shares=True,
    ),
    Check(
        "L2",
        "without a limit the free bytes less 1.8 GiB to 3 %; a block of 97 % of them allocates",
        f"{HERE}._limits:whole",
        seconds_limit=90,
    ),
    Check(
        "L3",
        "a limit above the card's memory is refused, or cut to it",
        f"{HERE}._limits:more_than_there_is",
        seconds_limit=90,
        unrehearsed=TWO_MEMORIES,
    ),
    Check(
        "L4",
        "2 GiB allocate on the host under a limit of 1 GB for the GPU",
        f"{HERE}._limits:host",
        seconds_limit=90,
        shares=True,
        unrehearsed=TWO_MEMORIES,
    ),
    Check(
        "L5",
        "within 5 s after a worker is killed, or its parent, the GPU's used bytes are back",
        f"{HERE}._limits:killed",
        seconds_limit=150,
    ),
)

KINDS = {
    "elementwise": "",
    "conv_forward": "",
    "conv_backward": "",
    "matmul": "",
    "initialiser": "",
    "optimizer_slots": "",
    "batch_copy": "the fake copies nothing to a device",
    "lstm": CUDNN,
    "evaluate": "",
    "xla_run": "",
    "xla_compile": "XLA tunes nothing on a CPU",
    "cuda_graph": "a CPU has no CUDA graphs",
}
SHORTAGES = tuple(
    Check(
        f"O1.{kind}",
        "running out of 2 GB is certain, or suspect: an error of a known text, or a death",
        f"{HERE}._out_of_memory:shortage",
        (kind,),
        seconds_limit=240,
        quick=kind == "elementwise",
        shares=True,
        unrehearsed=why,
    )
    for kind, why in KINDS.items()
)
OUT_OF_MEMORY = (
    *SHORTAGES,
    Check(
        "O2",
        "after running out of memory a smaller batch in the same process has the losses of a "
        "fresh process to 1e-3",
        f"{HERE}._out_of_memory:next_batch",
        seconds_limit=300,
        shares=True,
    ),
    Check(
        "O3",
        "a jitted step ends as out_of_memory or died; the next probe comes from a new worker",
        f"{HERE}._out_of_memory:jitted",
        shares=True,
    ),
    *(
        Check(
            f"O4.{kind}",
            "where memory would allow 2**31 elements the finder answers below, without ModelError",
            f"{HERE}._out_of_memory:too_many_elements",
            (kind,),
            seconds_limit=600,
            expected_seconds=120,
            unrehearsed="a CPU has no memory for 2**31 elements",
        )
        for kind in ("bias_gradient", "broadcast_add", "conv")
    ),
)

DEVICE_CHECKS = (*ENVIRONMENT, *METER, *LIMITS, *OUT_OF_MEMORY)
