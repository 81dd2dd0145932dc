"""All studies by name."""

from __future__ import annotations

from kbatch.studies import augmentation, generalisation, optimizers, techniques, throughput
from kbatch.studies.study import Study

STUDIES: dict[str, Study] = {
    module.STUDY.name: module.STUDY
    for module in (optimizers, augmentation, techniques, throughput, generalisation)
}
