"""The TFDS builder of the case study's 2,000 photographs: 600/200/200 of each class.

It reads an unpacked PetImages folder or the official zip.
"""

from __future__ import annotations

import tensorflow_datasets as tfds

from kbatch.data.case_study import pictures

IMAGE_SIZE = 200


class Builder(tfds.core.GeneratorBasedBuilder):
    """The first 1,000 readable cats and dogs by number, 200 px, in three splits."""

    VERSION = tfds.core.Version("1.0.0")
    MANUAL_DOWNLOAD_INSTRUCTIONS = (
        "Put the unpacked PetImages folder, or the official zip as PetImages.zip, "
        "into the manual folder."
    )

    def _info(self) -> tfds.core.DatasetInfo:
        features = tfds.features.FeaturesDict(
            {
                "image": tfds.features.Image(shape=(IMAGE_SIZE, IMAGE_SIZE, 3)),
                "label": tfds.features.ClassLabel(names=["cat", "dog"]),
            }
        )
        return self.dataset_info_from_configs(features=features, supervised_keys=("image", "label"))

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict:
        folder = dl_manager.manual_dir / "PetImages"
        source = folder if folder.is_dir() else dl_manager.manual_dir / "PetImages.zip"
        found = pictures(str(source), IMAGE_SIZE)
        return {
            name: self._generate_examples(getattr(found, name))
            for name in ("train", "validation", "test")
        }

    def _generate_examples(self, part):
        for index, (image, label) in enumerate(zip(*part, strict=True)):
            yield index, {"image": image, "label": int(label)}
