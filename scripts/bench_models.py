"""What recompute does for the models that people train, with random weights.

Each row is from a process of its own. It has the parameters; the segments of the plan; the peak of
a plain step and of the plan, measured and in brackets predicted; the largest batches under a memory
limit that the finder probes, unconfirmed; CPU seconds of a step of the plan over those of a plain
one, the median of steps in turn; and how far gradients are apart.

    pip install -e '.[hub]'
    python scripts/bench_models.py > table.md
    python scripts/bench_models.py bert vit
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import keras
import keras_hub
import numpy as np
from finder_models import Spec

from kbatch import Recipe, find_max_batch, recompute

models = keras_hub.models
LENGTH, BATCH, DEPTH, VOCABULARY = 64, 32, 12, 500
rng = np.random.default_rng(0)
IDS = rng.integers(0, VOCABULARY, (BATCH, LENGTH))
MASK = np.ones((BATCH, LENGTH), "int32")
TOKENS = {"token_ids": IDS, "padding_mask": MASK}
PAIRS = {**TOKENS, "segment_ids": np.zeros((BATCH, LENGTH), "int32")}
DECODED = {"decoder_token_ids": IDS, "decoder_padding_mask": MASK}
SEQUENCES = {"encoder_token_ids": IDS, "encoder_padding_mask": MASK, **DECODED}
PLACES = np.tile(np.arange(4), (BATCH, 1))
SOUND = rng.normal(size=(BATCH, 2 * LENGTH, 16)).astype("float32")
FEATURES = rng.normal(size=(BATCH, LENGTH, 64)).astype("float32")
LARGE = rng.random((BATCH, 64, 64, 3)).astype("float32")
AREAS = np.eye(2, dtype="float32")[rng.integers(0, 2, (BATCH, 64, 64))]
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


def classifier(kind, **settings):
    backbone = getattr(models, f"{kind}Backbone")(**TEXT, **{**HEADS, **settings})
    return getattr(models, f"{kind}TextClassifier")(backbone, num_classes=2, preprocessor=None)


def causal(kind, **settings):
    backbone = getattr(models, f"{kind}Backbone")(**TEXT, **settings)
    return getattr(models, f"{kind}CausalLM")(backbone, preprocessor=None)


def albert():
    return classifier("Albert", embedding_dim=32)


def electra():
    text = {**NARROW, **HEADS, "vocab_size": VOCABULARY, "num_layers": DEPTH}
    backbone = models.ElectraBackbone(**text, embedding_dim=32)
    return with_loss(keras.Model(backbone.input, backbone.output["sequence_output"]))


def opt():
    return causal("OPT", **HEADS)


def bloom():
    return causal("Bloom", num_heads=4)


def gpt_neo_x():
    return causal("GPTNeoX", num_heads=4)


def falcon():
    backbone = models.FalconBackbone(
        **{**TEXT, "num_attention_heads": 4}, attention_dropout_rate=0, feedforward_dropout_rate=0
    )
    return models.FalconCausalLM(backbone, preprocessor=None)


def phi3():
    return causal("Phi3", **QUERIES)


def qwen():
    return causal("Qwen", **QUERIES)


def masked():
    return models.BertMaskedLM(models.BertBackbone(**TEXT, **HEADS), preprocessor=None)


def with_loss(model):
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def t5():
    backbone = models.T5Backbone(**TEXT, num_heads=4, dropout=0.0)
    decoded = backbone.output["decoder_sequence_output"]
    return with_loss(keras.Model(backbone.input, backbone.token_embedding(decoded, reverse=True)))


def whisper():
    backbone = models.WhisperBackbone(
        **TEXT,
        num_heads=4,
        num_mels=16,
        max_encoder_sequence_length=2 * LENGTH,
        max_decoder_sequence_length=LENGTH,
        dropout=0.0,
    )
    decoded = backbone.output["decoder_sequence_output"]
    return with_loss(keras.Model(backbone.input, backbone.token_embedding(decoded, reverse=True)))


def densenet():
    backbone = models.DenseNetBackbone(
        stackwise_num_repeats=[6, 6], compression_ratio=0.5, growth_rate=16, image_shape=(32, 32, 3)
    )
    return models.DenseNetImageClassifier(backbone, num_classes=2, preprocessor=None)


def segformer():
    encoder = models.MiTBackbone(
        layerwise_depths=[3, 3, 3, 3],
        num_layers=4,
        hidden_dims=[16, 32, 48, 64],
        layerwise_num_heads=[1, 1, 2, 2],
        layerwise_sr_ratios=[8, 4, 2, 1],
        layerwise_patch_sizes=[7, 3, 3, 3],
        layerwise_strides=[4, 2, 2, 2],
        max_drop_path_rate=0.0,
        image_shape=(64, 64, 3),
    )
    backbone = models.SegFormerBackbone(image_encoder=encoder, projection_filters=32)
    return models.SegFormerImageSegmenter(backbone, num_classes=2, preprocessor=None)


def deeplab():
    encoder = models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[7],
        stackwise_num_filters=[64, 64],
        stackwise_num_blocks=[3, 3],
        stackwise_num_strides=[1, 2],
        block_type="basic_block",
        image_shape=(64, 64, 3),
    )
    backbone = models.DeepLabV3Backbone(
        image_encoder=encoder,
        low_level_feature_key="P2",
        spatial_pyramid_pooling_key="P3",
        dilation_rates=[6, 12],
        upsampling_size=2,
        projection_filters=16,
        image_shape=(64, 64, 3),
    )
    return models.DeepLabV3ImageSegmenter(backbone, num_classes=2, preprocessor=None)


def application(name, size=32):
    model = getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3), classes=2)
    return with_loss(model)


def unet():
    inputs = keras.Input((64, 64, 3))
    x, kept = inputs, []
    for filters in (16, 32, 64):
        for _ in range(2):
            x = keras.layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        kept.append(x)
        x = keras.layers.MaxPooling2D()(x)
    for filters in (64, 32, 16):
        x = keras.layers.UpSampling2D()(x)
        x = keras.layers.Concatenate()([x, kept.pop()])
        for _ in range(2):
            x = keras.layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    model = keras.Model(inputs, keras.layers.Conv2D(2, 1, activation="softmax")(x))
    model.compile("adam", "categorical_crossentropy")
    return model


def mixer():
    x = inputs = keras.Input((LENGTH, 64))
    for _ in range(DEPTH):
        one = keras.layers.Permute((2, 1))(keras.layers.LayerNormalization()(x))
        one = keras.layers.Dense(LENGTH)(keras.layers.Dense(128, "gelu")(one))
        x = keras.layers.Add()([x, keras.layers.Permute((2, 1))(one)])
        one = keras.layers.Dense(128, "gelu")(keras.layers.LayerNormalization()(x))
        x = keras.layers.Add()([x, keras.layers.Dense(64)(one)])
    return with_loss(
        keras.Model(inputs, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling1D()(x)))
    )


def lstm():
    x = inputs = keras.Input((LENGTH, 64))
    for _ in range(4):
        x = keras.layers.LSTM(64, return_sequences=True)(x)
    return with_loss(keras.Model(inputs, keras.layers.Dense(2)(x[:, -1])))


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
    "bert masked": (masked, {**PAIRS, "mask_positions": PLACES}, IDS[:, :4]),
    "roberta": (roberta, TOKENS, LABELS),
    "distilbert": (partial(classifier, "DistilBert"), TOKENS, LABELS),
    "albert": (albert, PAIRS, LABELS),
    "deberta": (partial(classifier, "DebertaV3", bucket_size=16), TOKENS, LABELS),
    "electra": (electra, PAIRS, IDS % 64),
    "opt": (opt, TOKENS, IDS),
    "bloom": (bloom, TOKENS, IDS),
    "gpt_neo_x": (gpt_neo_x, TOKENS, IDS),
    "falcon": (falcon, TOKENS, IDS),
    "phi3": (phi3, TOKENS, IDS),
    "qwen": (qwen, TOKENS, IDS),
    "gpt2": (gpt2, TOKENS, IDS),
    "llama": (llama, TOKENS, IDS),
    "mistral": (mistral, TOKENS, IDS),
    "gemma": (gemma, TOKENS, IDS),
    "gemma_lora": (gemma_lora, TOKENS, IDS),
    "mixtral": (mixtral, TOKENS, IDS),
    "bart": (bart, SEQUENCES, IDS),
    "t5": (t5, SEQUENCES, IDS),
    "whisper": (whisper, {**DECODED, "encoder_features": SOUND}, IDS),
    "vit": (vit, IMAGES, LABELS),
    "resnet": (resnet, IMAGES, LABELS),
    "densenet": (densenet, IMAGES, LABELS),
    "segformer": (segformer, LARGE, AREAS),
    "deeplab": (deeplab, LARGE, AREAS),
    "unet": (unet, LARGE, AREAS),
    "ResNet50": (partial(application, "ResNet50"), IMAGES, LABELS),
    "MobileNetV3Small": (partial(application, "MobileNetV3Small"), IMAGES, LABELS),
    "EfficientNetB0": (partial(application, "EfficientNetB0"), IMAGES, LABELS),
    "ConvNeXtTiny": (partial(application, "ConvNeXtTiny"), IMAGES, LABELS),
    "mixer": (mixer, FEATURES, LABELS),
    "lstm": (lstm, FEATURES, LABELS),
}
COLUMNS = (
    "model",
    "parameters",
    "segments",
    "plain MB (predicted)",
    "planned MB (predicted)",
    "largest batch",
    "time",
    "equal to",
)
# Bytes for the largest batch; the weights of some models need more.
LIMIT, LARGE_LIMIT, MANY = 256 << 20, 1 << 30, 5_000_000
TURNS = 5


def peaks(model, plans, x, y):
    """The measured and predicted MB of plans, as cells."""
    found = [recompute.measure(model, plan, x, y) for plan in plans]
    return [
        f"{each.measured_peak_bytes / 1e6:,.1f} ({each.peak_bytes / 1e6:,.1f})" for each in found
    ]


def time_ratio(build, plans, x, y):
    """CPU seconds of a step of the second plan over those of the first, one in turn."""
    trained = []
    for plan in plans:
        trained.append(build())
        recompute.apply(trained[-1], plan)
        trained[-1].train_on_batch(x, y)

    def step(model):
        began = time.process_time()
        model.train_on_batch(x, y)
        return time.process_time() - began

    turns = [[step(model) for model in trained] for _ in range(TURNS)]
    return statistics.median(planned / plain for plain, planned in turns)


def largest(build, x, y, limit_bytes):
    """The largest batches without and with the plan, as a cell."""
    specs = [keras.tree.map_structure(spec, each) for each in (x, y)]
    found = [
        find_max_batch(
            build, *specs, Recipe(recompute=kind), memory_limit=limit_bytes, confirmed_steps=0
        )
        for kind in ("none", "minimal")
    ]
    return " → ".join(f"{each.batch_size:,}" for each in found)


def spec(examples):
    """Shape and type of one example: it sets no ceiling."""
    return Spec(examples.shape[1:], str(examples.dtype))


def row(name):
    """One row of the table."""
    build, x, y = MODELS[name]
    model = build()
    plans = [recompute.plan(model, BATCH, kind, x=x) for kind in ("none", "minimal")]
    cells = [f"{model.count_params():,}", f"{len(plans[1].segments)}", *peaks(model, plans, x, y)]
    limit = LARGE_LIMIT if model.count_params() > MANY else LIMIT
    report = recompute.verify(model, plans[1], x, y)
    ratio = time_ratio(build, plans, x, y)
    cells += [largest(build, x, y, limit), f"{ratio:.2f}×"]
    cells.append("the bit" if report.exact else f"{report.gradients:.0e}")
    return f"| {' | '.join((name, *cells))} |"


def in_fresh_process(name):
    """The row of a model, or how it failed."""
    with tempfile.TemporaryDirectory() as cache:
        said = subprocess.run(
            [sys.executable, __file__, "--one", name],
            env={**os.environ, "KBATCH_CACHE": cache},
            capture_output=True,
            text=True,
        )
    if said.returncode:
        return f"| {name} | {said.stderr.strip().splitlines()[-1][:200]} |"
    return said.stdout.strip().splitlines()[-1]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(row(options.one))
        return
    unknown = set(options.names) - set(MODELS)
    if unknown:
        parser.error(f"NAME must be one of {', '.join(MODELS)}, not {', '.join(unknown)}")
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|", flush=True)
    for name in options.names or MODELS:
        print(in_fresh_process(name), flush=True)


if __name__ == "__main__":
    main()
