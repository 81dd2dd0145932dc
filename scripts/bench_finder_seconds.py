"""What a search for the largest batch takes on models of keras-hub, and whether its answers last.

Each row has the predicted and the answered batch size; the trainings of the search; the steps that
the answer was confirmed by; CPU seconds of its processes and seconds by the clock; and how many
fresh processes trained 50 steps at the answer with the whole limit. `bert47` has 47 million
parameters and 4 GB, the others 256 MB.

    pip install -e '.[hub]'
    python scripts/bench_finder_seconds.py bert47 --fresh 0
    python scripts/bench_finder_seconds.py bert gpt2 vit --out finder_seconds.csv
"""

import argparse
import resource
import time
from pathlib import Path

import bench_models
import keras
import keras_hub
import numpy as np
import rows
from finder_models import Spec
from fresh_processes import fifty

import kbatch
from kbatch import Recipe
from kbatch.errors import KbatchError
from kbatch.memory._workload import workload_of
from kbatch.model_spec import ModelSpec

LIMIT, LARGE_LIMIT, TEXT_LENGTH = 256 << 20, 4_000_000_000, 128
TRANSFORMERS = (
    "bert roberta distilbert albert deberta electra opt bloom gpt_neo_x falcon phi3 qwen gpt2 llama"
    " mistral gemma gemma_lora mixtral bart t5 whisper vit mixer"
)
COLUMNS = ("model", "predicted", "answer", "trainings", "steps", "cpu_seconds", "seconds", "lasted")


def bert47():
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=30522,
        num_layers=10,
        num_heads=8,
        hidden_dim=512,
        intermediate_dim=2048,
        max_sequence_length=512,
    )
    return keras_hub.models.BertTextClassifier(backbone, num_classes=2, preprocessor=None)


def example(name):
    """The builder of a model, the shapes of one example and its label, and the limit in bytes."""
    if name != "bert47":
        build, x, y = bench_models.MODELS[name]
        limit = LIMIT
    else:
        ids = np.ones((1, TEXT_LENGTH), "int32")
        x = {"token_ids": ids, "segment_ids": ids, "padding_mask": ids}
        build, y, limit = bert47, np.zeros(1, "int32"), LARGE_LIMIT
    shapes = keras.tree.map_structure(lambda array: Spec(array.shape[1:], str(array.dtype)), (x, y))
    return build, *shapes, limit


def cpu_seconds():
    """CPU seconds of the processes that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def row(name, fresh):
    """Search for the largest batch of one model, then train at it in fresh processes."""
    build, x, y, limit = example(name)
    recipe, tried = Recipe(optimizer="adam", learning_rate=1e-3), []
    began, used = time.perf_counter(), cpu_seconds()
    found = kbatch.find_max_batch(
        build, x, y, recipe, memory_limit=limit, fresh=True, on_probe=tried.append
    )
    measured = {"cpu_seconds": cpu_seconds() - used, "seconds": time.perf_counter() - began}
    workload, _ = workload_of(ModelSpec(build), x, y, recipe, None)
    lasted = [fifty(workload, limit, found.batch_size).passed for _ in range(fresh)]
    return {
        "model": name,
        "predicted": found.predicted,
        "answer": found.batch_size,
        "trainings": len(tried),
        "steps": found.confirmed_steps,
        **{key: round(value, 1) for key, value in measured.items()},
        "lasted": f"{sum(lasted)} of {fresh}" if fresh else "",
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="models; all transformers where none is named")
    parser.add_argument("--out", type=Path, help="a CSV file that rows are added to")
    parser.add_argument("--fresh", type=int, default=5, help="processes that train 50 steps each")
    options = parser.parse_args()
    for name in options.names or TRANSFORMERS.split():
        try:
            rows.tell(options.out, COLUMNS, row(name, options.fresh))
        except KbatchError as error:
            print(f"{name}: {error}", flush=True)


if __name__ == "__main__":
    main()
