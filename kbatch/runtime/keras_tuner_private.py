"""Private names of KerasTuner that kbatch needs, one small function for each.

Each function says which file of which release the name was read in;
`tests/test_keras_tuner_private.py` fails when a release takes one away.
"""

from __future__ import annotations
