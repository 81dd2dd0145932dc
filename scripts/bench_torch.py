"""kbatch's plan beside PyTorch's `checkpoint_sequential`, on the same encoder.

    pip install torch --index-url https://download.pytorch.org/whl/cpu
    python scripts/bench_torch.py
    python scripts/bench_torch.py --blocks 12 --width 128

A block is attention and two dense layers, each after a layer normalization and beside a sum. Both
train a step of Adam on the same shapes in float32, attention without a fused kernel. The peak is
above what is held before the step: TensorFlow's from its allocator, PyTorch's from the memory
events of its profiler. The time is the median over pairs of steps, one with the cuts and one
without in turn, of the CPU seconds of the one over those of the other.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

LENGTH, BATCH, HEADS, PAIRS = 64, 32, 4, 7
PLACEMENTS = ("every block", "every second", "√n")


def stretches(blocks: int, placement: str) -> int:
    """Into how many stretches a placement parts the blocks."""
    if placement == "√n":
        return round(blocks**0.5)
    return blocks if placement == "every block" else blocks // 2


def in_turn(plain, cut) -> float:
    """The median ratio of CPU seconds of one step over those of the other."""
    ratios = []
    for _ in range(PAIRS):
        seconds = []
        for step in (plain, cut):
            began = time.process_time()
            step()
            seconds.append(time.process_time() - began)
        ratios.append(seconds[1] / seconds[0])
    return statistics.median(ratios)


def by_kbatch(blocks: int, width: int) -> dict[str, list[float]]:
    """Peak and time of the plain model and of kbatch's plan."""
    import keras
    import numpy as np
    import tensorflow as tf
    from bench_recompute import peak
    from keras import layers

    from kbatch import recompute

    def model():
        inputs = x = keras.Input((LENGTH, width))
        for _ in range(blocks):
            normed = layers.LayerNormalization()(x)
            attention = layers.MultiHeadAttention(HEADS, width // HEADS, flash_attention=False)
            x = layers.Add()([x, attention(normed, normed)])
            inner = layers.Dense(2 * width, "gelu")(layers.LayerNormalization()(x))
            x = layers.Add()([x, layers.Dense(width)(inner)])
        outputs = layers.Dense(2)(layers.GlobalAveragePooling1D()(x))
        return keras.Model(inputs, outputs)

    x = np.random.default_rng(0).normal(size=(BATCH, LENGTH, width)).astype("float32")
    batch = tf.constant(x), tf.constant(np.arange(BATCH) % 2)

    def step_of(planned):
        made = model()
        if planned:
            recompute.apply(made, recompute.plan(made, BATCH, "minimal", x=x))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        made.compile("adam", loss)
        made.optimizer.build(made.trainable_variables)
        step = tf.function(made.train_step)
        return lambda: step(batch)

    plain, planned = step_of(False), step_of(True)
    peaks = [peak(step, "CPU:0") for step in (plain, planned)]
    return {"plain": [peaks[0], 1.0], "minimal": [peaks[1], in_turn(plain, planned)]}


def by_torch(blocks: int, width: int) -> dict[str, list[float]]:
    """Peak and time of the plain model and of each placement of PyTorch's checkpoints."""
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint_sequential

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
            self.attention = nn.MultiheadAttention(width, HEADS, batch_first=True)
            self.dense = nn.Sequential(
                nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
            )

        def forward(self, x):
            normed = self.norms[0](x)
            # the weights are asked for, so that the attention is computed in steps as Keras does
            x = x + self.attention(normed, normed, normed, need_weights=True)[0]
            return x + self.dense(self.norms[1](x))

    torch.manual_seed(0)
    body, head = nn.Sequential(*(Block() for _ in range(blocks))), nn.Linear(width, 2)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], foreach=False)
    x, y = torch.randn(BATCH, LENGTH, width), torch.arange(BATCH) % 2

    def plain():
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(head(body(x).mean(1)), y).backward()
        optimizer.step()

    def cut(segments):
        def step():
            optimizer.zero_grad(set_to_none=True)
            held = checkpoint_sequential(body, segments, x, use_reentrant=False)
            nn.functional.cross_entropy(head(held.mean(1)), y).backward()
            optimizer.step()

        return step

    def peak_of(step):
        for _ in range(2):
            step()
        optimizer.zero_grad(set_to_none=True)
        with torch.profiler.profile(profile_memory=True) as profile:
            step()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.json")
            profile.export_chrome_trace(str(path))
            events = json.loads(path.read_text())["traceEvents"]
        memory = [each["args"] for each in events if each["name"] == "[memory]"]
        before = memory[0]["Total Allocated"] - memory[0]["Bytes"]
        return max(each["Total Allocated"] for each in memory) - before

    found = {"plain": [peak_of(plain), 1.0]}
    for placement in PLACEMENTS:
        step = cut(stretches(blocks, placement))
        found[placement] = [peak_of(step), in_turn(plain, step)]
    return found


BENCHES = {"kbatch": by_kbatch, "torch": by_torch}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=24, help="defaults to 24")
    parser.add_argument("--width", type=int, default=64, help="defaults to 64")
    parser.add_argument("--one", choices=BENCHES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(BENCHES[options.one](options.blocks, options.width)))
        return
    print("| | cuts | peak MB | of the plain peak | time |\n|---|---|---|---|---|")
    for name in BENCHES:  # each library in a process of its own
        sizes = ["--blocks", str(options.blocks), "--width", str(options.width)]
        command = [sys.executable, __file__, "--one", name, *sizes]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = json.loads(said.splitlines()[-1])
        for cuts, (peak_bytes, ratio) in found.items():
            share = peak_bytes / found["plain"][0]
            print(f"| {name} | {cuts} | {peak_bytes / 1e6:.1f} | {share:.1%} | {ratio:.2f}× |")


if __name__ == "__main__":
    main()
