"""Texts for the options of random command lines, most of them absurd."""

from __future__ import annotations


def _words(text: str) -> list[str]:
    return text.split()


# Long, deep and with control characters: a terminal's sequence, a line of its own, a formula.
HOSTILE = [
    "x" * 120_000,
    "9" * 5_000,
    "[" * 5_000,
    "/".join("a" * 5_000),
    "\x1b]0;title\x07\x1b[2J",
    "a\nerror: forged\r\x08",
    "\u202egnp.x",
    "\ud800",
    "a\0b",
    "=HYPERLINK(1)",
    "1e308",
    "-1e308",
    "NaN",
]
NUMBERS = [
    *HOSTILE,
    "",
    " ",
    "1/2",
    *_words(
        "0 1 2 3 5 8 16 64 0.5 0.8 2.0 -1 -0 nan inf -inf 1e-9 1e300 1e-300 1e999 "
        "99999999999999999999 9007199254740993 4294967296 2147483648 "
        "1_0 ٣٢ ² １６ 0x10 1e3 1,5 +3 3. .5 -.5 . e ½ Ⅷ 1__0 0b1 True None 1e1e1"
    ),
]
NAMES = [
    *HOSTILE,
    "",
    "\x1b[2J",
    *_words(
        "drawn tfds random bayesian grid cnn small-resnet sgd adam compiled lion sgd,adam "
        "adam,adam "
        "float32 mixed_float16 mixed_bfloat16 float64 none flip flip_shift none,flip off on both "
        "auto minimal sqrt stages budget:0.5 budget:0 budget:nan budget:1e999 any "
        "powers_of_two jump "
        "bisect mse binary_crossentropy nonsense SGD [/x] [bold] [/] :smile: %s {} \\"
    ),
]
LISTS = _words(
    "16,32 32,64,128 64 0 -1 16,,32 , 16;32 99999999999 1_0,2 16,abc 32,32 4096 2147483648"
)
RANGES = _words(
    "0.001:0.1 0.1:0.001 1e-300:1e300 nan:1 0:1 -1:1 1:1 :: : 0.1 a:b 1e-9:100 0.01:0.02:0.03 "
    "0.001:inf ١:٢"
)
SHAPES = _words(
    "4 8,8,3 224,224,3 0 -1 4294967296 1,1,1,1,1,1,1,1,1,1,1 65536,65536 ² 1_0 8x8 (8,8) [8] , 8,"
)
DTYPES = _words(
    "float32 float64 uint8 int32 bool float16 U10 S3 O datetime64 complex64 void V8 nonsense ,f4 "
    "f4,f4 (2,)f4 longdouble"
)
RECIPES = [
    "",
    "{}",
    "{} {}",
    "[32]",
    '{"batch_size": 512}',
    '{"batch_size": 512, "optimizer": "sgd", "learning_rate": 0.16}',
    '{"batch_size": 64, "micro_batch_size": 8, "policy": "mixed_float16"}',
    '{"optimizer": "compiled", "learning_rate": null}',
    '{"batch_size": 1e999}',
    '{"batch_size": NaN}',
    '{"batch": 3}',
    '{"ema": 0.9999, "batch_schedule": "linear:8", "training": "sam:0.05"}',
    '{"learning_rate": 1e-300}',
    '{"[bold]": "[/x]"}',
    "[" * 5000,
    '{"a":' * 5000 + "1" + "}" * 5000,
    '{"batch_size": ' + "9" * 5000 + "}",
    '{"training": "' + "x" * 120_000 + '"}',
    '{"training": "\\u001b[2J"}',
]
LIMITS = [
    *HOSTILE,
    *_words("8GB 1GB 0 -1 1KB 99999999999999GB 1e999 nanGB infGB 8 8TB eightGB 1_0GB ٣GB"),
]
BUILDS = [
    *HOSTILE,
    "",
    *_words(
        "good:build good:nothing good good: :build good:build:x nowhere:build raises:build "
        "syntax:build null:build exits:build later:build returns:number returns:text good.py:build "
        "os:path sys:exit ..:x a..b:c"
    ),
]
MODULES = {
    "good": "def build(hp=None):\n    import keras\n"
    "    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])\n",
    "raises": "raise RuntimeError('not today')\n",
    "syntax": "def build(:\n",
    "null": "def build():\n    pass\0\n",
    "exits": "import sys\nsys.exit(4)\n",
    "later": "import sys\ndef build(hp=None):\n    sys.exit(5)\n",
    "returns": "def number(hp=None): return 3\ndef text(hp=None): return 'model'\n",
}
