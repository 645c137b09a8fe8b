"""The doctor on datasets of public libraries, where these are installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import Dataset

from sharedds.diagnose.examine import Examined, examine, examined
from sharedds.diagnose.target import Opened, load_target

# What libraries warn of is no business of ours.
pytestmark = pytest.mark.filterwarnings("ignore")


def library(name: str) -> Any:
    """Import a library, or skip the test: what does not fit this torch is as good as not there."""
    try:
        return pytest.importorskip(name, reason=f"{name} is not installed")
    except RuntimeError as error:  # as of an operator that its build for another torch misses
        pytest.skip(f"{name} is installed and cannot be imported: {error}")


class Holds(Dataset[int]):
    """A dataset that holds something."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        """Return the number."""
        return index


def looked_at(dataset: Any) -> Examined:
    """Return what is found in a dataset or loader, as the doctor's own process finds it."""
    opened = dataset if isinstance(dataset, Opened) else load_target(dataset).open()
    return examined(examine(opened))


def hazards(dataset: Any) -> list[tuple[str, str]]:
    """Return the kind and the place of each hazard."""
    return [(each.kind, each.path) for each in looked_at(dataset).audit.hazards]


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two classes of one picture each."""
    for name in ("cat", "dog"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        Image.new("RGB", (16, 16)).save(tmp_path / "pictures" / name / "0.png")
    return tmp_path / "pictures"


def test_an_open_hdf5_file_is_a_handle(tmp_path: Path) -> None:
    """Both the file and a dataset in it, which needs another remedy."""
    h5py = library("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["images"] = np.zeros((4, 4))
    with h5py.File(tmp_path / "x.h5", "r") as file:
        found = looked_at(Holds({"file": file, "images": file["images"]})).audit.hazards
    assert [each.spawn for each in found] == [None, None]
    assert {each.path for each in found} == {"dataset.held['file']", "dataset.held['images']"}
    assert any('h5py.File(self.path)["name"]' in each.fix for each in found)


def test_a_zarr_array_in_a_folder_is_safe(tmp_path: Path) -> None:
    """Each chunk is a file that is opened to be read: forked workers share no position."""
    zarr = library("zarr")
    array = zarr.open(str(tmp_path / "x.zarr"), mode="w", shape=(8, 8), chunks=(4, 4), dtype="u1")
    assert array[0, 0] == 0
    assert hazards(Holds(array)) == []


def test_a_folder_of_pictures_is_safe(pictures: Path) -> None:
    """An ImageFolder keeps paths, of which a few cost nothing."""
    library("torchvision")
    datasets = library("torchvision.datasets")
    assert hazards(datasets.ImageFolder(str(pictures))) == []


def test_the_annotations_of_coco_are_told(pictures: Path, tmp_path: Path) -> None:
    """Dicts of dicts of lists, named where pycocotools keeps them."""
    library("pycocotools.coco")
    library("torchvision")
    datasets = library("torchvision.datasets")
    names = ["cat/0.png", "dog/0.png"]
    boxes = [
        {"id": i, "image_id": i % 2, "category_id": 1, "bbox": [i * 0.1, 1.0, 2.0, i * 0.3]}
        for i in range(20_000)
    ]
    facts = {
        "images": [{"id": i, "file_name": name} for i, name in enumerate(names)],
        "annotations": boxes,
        "categories": [{"id": 1, "name": "thing"}],
    }
    (tmp_path / "coco.json").write_text(json.dumps(facts), encoding="utf-8")
    dataset = datasets.CocoDetection(str(pictures), str(tmp_path / "coco.json"))
    assert ("objects", "dataset.coco.anns") in hazards(dataset)


def test_random_transforms_of_monai_are_told_once() -> None:
    """Each transform holds a generator, which MONAI's own loader seeds."""
    data, transforms = library("monai.data"), library("monai.transforms")
    pipeline = transforms.Compose(
        [
            transforms.RandFlipd("image"),
            transforms.RandRotate90d("image"),
            transforms.RandGaussianNoised("image"),
        ]
    )
    dataset = data.Dataset([{"image": np.zeros((1, 4, 4))}] * 4, pipeline)
    assert hazards(dataset) == [("random", "dataset.transform")]
    assert hazards(data.DataLoader(dataset, batch_size=2)) == []


def test_random_transforms_of_albumentations_are_told_once() -> None:
    """Each transform holds two generators."""
    albumentations = library("albumentations")
    pipeline = albumentations.Compose([albumentations.HorizontalFlip() for _ in range(4)])
    found = looked_at(Holds(pipeline)).audit
    assert [(each.kind, each.path) for each in found.hazards] == [("random", "dataset.held")] * 2
    assert not [note for note in found.notes if "lock" in note.what]  # of libraries it imports


def test_a_mapped_table_of_hugging_face_is_safe(tmp_path: Path) -> None:
    """It pickles to the path of its file, whatever its columns hold."""
    datasets = library("datasets")
    rows = {"text": [f"sentence number {i} of many" for i in range(100_000)]}
    datasets.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "rows"))
    assert hazards(datasets.load_from_disk(str(tmp_path / "rows"))) == []


def test_a_table_of_arrow_has_its_own_remedy() -> None:
    """It has no rows to iterate over; its file can be mapped."""
    pyarrow = library("pyarrow")
    table = pyarrow.table({"path": [f"/data/{i:09d}.jpg" for i in range(100_000)]})
    (hazard,) = looked_at(Holds(table)).audit.hazards
    assert (hazard.kind, hazard.path) == ("table", "dataset.held")
    assert "pa.memory_map" in hazard.fix
