"""What recompute does for the models that people train: tasks of keras-hub, with random weights.

Each row: parameters, operations, the peak of a plain step and of the plan (predicted, then
measured), seconds of a step of the plan over those of a plain one, and whether training is exact.

    pip install '.[hub]'
    TF_CPU_ALLOCATOR_USE_BFC=true TF_ENABLE_ONEDNN_OPTS=0 python scripts/bench_models.py [NAME …]
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import keras
import keras_hub
import numpy as np

from kbatch import recompute

models = keras_hub.models
LENGTH, BATCH, DEPTH, VOCABULARY = 64, 32, 12, 500
rng = np.random.default_rng(0)
IDS = rng.integers(0, VOCABULARY, (BATCH, LENGTH))
MASK = np.ones((BATCH, LENGTH), "int32")
TOKENS = {"token_ids": IDS, "padding_mask": MASK}
PAIRS = {**TOKENS, "segment_ids": np.zeros((BATCH, LENGTH), "int32")}
SEQUENCES = {
    "encoder_token_ids": IDS,
    "encoder_padding_mask": MASK,
    "decoder_token_ids": IDS,
    "decoder_padding_mask": MASK,
}
IMAGES = rng.random((BATCH, 32, 32, 3)).astype("float32")
LABELS = np.arange(BATCH) % 2
NARROW = {"hidden_dim": 64, "intermediate_dim": 128}
TEXT = {"vocabulary_size": VOCABULARY, "num_layers": DEPTH, **NARROW}
HEADS = {"num_heads": 4, "max_sequence_length": LENGTH, "dropout": 0.0}
QUERIES = {"num_query_heads": 4, "num_key_value_heads": 2}


def bert():
    return models.BertTextClassifier(
        models.BertBackbone(**TEXT, **HEADS), num_classes=2, preprocessor=None
    )


def roberta():
    return models.RobertaTextClassifier(
        models.RobertaBackbone(**TEXT, **HEADS), num_classes=2, preprocessor=None
    )


def gpt2():
    return models.GPT2CausalLM(models.GPT2Backbone(**TEXT, **HEADS), preprocessor=None)


def llama():
    return models.LlamaCausalLM(models.LlamaBackbone(**TEXT, **QUERIES), preprocessor=None)


def mistral():
    return models.MistralCausalLM(
        models.MistralBackbone(**TEXT, **QUERIES, sliding_window=LENGTH), preprocessor=None
    )


def gemma():
    return models.GemmaCausalLM(
        models.GemmaBackbone(**TEXT, **QUERIES, head_dim=16), preprocessor=None
    )


def gemma_lora():
    backbone = models.GemmaBackbone(**TEXT, **QUERIES, head_dim=16)
    backbone.enable_lora(rank=2)
    return models.GemmaCausalLM(backbone, preprocessor=None)


def mixtral():
    backbone = models.MixtralBackbone(**TEXT, **QUERIES, num_experts=2, top_k=1)
    return models.MixtralCausalLM(backbone, preprocessor=None)


def bart():
    return models.BartSeq2SeqLM(models.BartBackbone(**TEXT, **HEADS), preprocessor=None)


def vit():
    backbone = models.ViTBackbone(
        image_shape=(32, 32, 3),
        patch_size=4,
        num_layers=DEPTH,
        num_heads=4,
        hidden_dim=64,
        mlp_dim=128,
    )
    return models.ViTImageClassifier(backbone, num_classes=2, preprocessor=None)


def resnet():
    backbone = models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[64, 64, 64],
        stackwise_num_blocks=[2, 2, 2],
        stackwise_num_strides=[1, 2, 2],
        block_type="basic_block",
        image_shape=(32, 32, 3),
    )
    return models.ResNetImageClassifier(backbone, num_classes=2, preprocessor=None)


# a model joins by one line: how it is built, a batch of inputs, its labels
MODELS = {
    "bert": (bert, PAIRS, LABELS),
    "roberta": (roberta, TOKENS, LABELS),
    "gpt2": (gpt2, TOKENS, IDS),
    "llama": (llama, TOKENS, IDS),
    "mistral": (mistral, TOKENS, IDS),
    "gemma": (gemma, TOKENS, IDS),
    "gemma_lora": (gemma_lora, TOKENS, IDS),
    "mixtral": (mixtral, TOKENS, IDS),
    "bart": (bart, SEQUENCES, IDS),
    "vit": (vit, IMAGES, LABELS),
    "resnet": (resnet, IMAGES, LABELS),
}
COLUMNS = ("model", "parameters", "operations", "plain MB (predicted)", "planned MB (predicted)")
HEAD = f"| {' | '.join(COLUMNS)} | time | exact |"


def megabytes(count):
    return f"{count / 1e6:,.1f}"


def row(name):
    """One row of the table."""
    build, x, y = MODELS[name]
    model = build()
    plain, plan = (recompute.plan(model, BATCH, kind, x=x) for kind in ("none", "minimal"))
    measured = [recompute.measure(model, each, x, y) for each in (plain, plan)]
    exact = recompute.verify(model, plan, x, y).exact
    cells = [
        f"{each.measured_peak_bytes / 1e6:,.1f} ({megabytes(each.peak_bytes)})" for each in measured
    ]
    time = measured[1].measured_seconds / measured[0].measured_seconds
    operations = sum(segment.operations for segment in plan.segments)
    words = f"| {name} | {model.count_params():,} | {operations} | {cells[0]} | {cells[1]} "
    return f"{words}| {time:.2f}x | {'yes' if exact else 'NO'} |"


def main():
    print(HEAD)
    print("|---" * 7 + "|")
    for name in sys.argv[1:] or MODELS:
        keras.backend.clear_session()
        print(row(name), flush=True)


if __name__ == "__main__":
    main()
