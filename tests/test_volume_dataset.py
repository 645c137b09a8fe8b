"""VolumeDataset: what an item is, which items there are, and what is told of them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import descriptors, python
from volume_stores import (
    AFFINE,
    PATCHES,
    SHAPES,
    Volume,
    case,
    empty,
    numbered,
    one_by_one,
    volumes,
    write_volumes,
)

from sharedds.datasets.volumes import VolumeDataset
from sharedds.errors import (
    OptionError,
    SampleIndexError,
    SampleKeyError,
    SchemaError,
    StoreFormatError,
)
from sharedds.patches import ForegroundPatches, GridPatches, SlicePatches, UniformPatches
from sharedds.store import Field, StoreWriter


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of five cases."""
    return write_volumes(tmp_path_factory.mktemp("volumes") / "x.lmdb", volumes())


# --- what an item is -----------------------------------------------------------------------------


def test_an_item_holds_a_part_of_image_and_label(path: Path) -> None:
    """The same voxels of both, as float32 and int64, with a channel axis."""
    item = one_by_one(VolumeDataset(path, patch=UniformPatches((8, 7, 5))), [2])[0]
    made = volumes()["case2"]
    assert made.label is not None
    i, j, k = item["start"].tolist()
    region = (slice(i, i + 8), slice(j, j + 7), slice(k, k + 5))
    assert list(item) == ["image", "label", "case", "start", "affine", "drawn"]
    assert item["image"].dtype == torch.float32
    assert np.array_equal(item["image"][0], made.image[region])
    assert item["label"].dtype == torch.int64
    assert np.array_equal(item["label"][0], made.label[region])
    assert item["case"] == "case2"
    assert item["drawn"].tolist() == [-1, -1, -1]


def test_the_affine_is_that_of_the_patch(path: Path) -> None:
    """Its first voxel is where that voxel of the volume is; spacing and axes stay."""
    for item in one_by_one(VolumeDataset(path, patch=ForegroundPatches(8)), [0, 1, 2]):
        place = AFFINE @ [*item["start"].tolist(), 1]
        assert item["affine"].dtype == torch.float64
        assert np.allclose(item["affine"][:, 3], place)
        assert np.array_equal(item["affine"][:3, :3], AFFINE[:3, :3])


def test_a_volume_without_a_place_counts_in_voxels(tmp_path: Path) -> None:
    """So that patches of it can still be put side by side."""
    write_volumes(tmp_path / "x.lmdb", {"a": Volume(image=numbered((9, 9, 9)))})
    dataset = VolumeDataset(tmp_path / "x.lmdb", patch=GridPatches(5, overlap=1))
    item = dataset[7]
    assert item["start"].tolist() == [4, 4, 4]
    assert item["affine"].tolist()[0] == [1, 0, 0, 4]
    assert dataset.affine_of("a") is None


def test_several_patches_of_a_case_have_an_axis_in_front(path: Path) -> None:
    """All but the name of the case."""
    item = one_by_one(VolumeDataset(path, patch=UniformPatches((4, 5, 6), per_case=3)), [0])[0]
    shapes = {name: tuple(item[name].shape) for name in item if name != "case"}
    assert shapes == {
        "image": (3, 1, 4, 5, 6), "label": (3, 1, 4, 5, 6), "start": (3, 3), "affine": (3, 4, 4),
        "drawn": (3, 3),
    }  # fmt: skip
    assert item["case"] == "case0"
    assert len(set(map(tuple, item["start"].tolist()))) == 3


def test_without_a_patch_volumes_are_whole(path: Path) -> None:
    """Each in its own shape."""
    dataset = VolumeDataset(path)
    assert [tuple(item["image"].shape[1:]) for item in dataset] == SHAPES
    assert np.array_equal(dataset[3]["image"][0], volumes()["case3"].image)


def test_slices_have_two_dimensions(path: Path) -> None:
    """All slices of all cases, one for each item; whole ones, where no size is given."""
    dataset = VolumeDataset(path, patch=SlicePatches(axis=2))
    assert len(dataset) == sum(k for _, _, k in SHAPES)
    item = dataset[13]
    made = volumes()["case1"]
    assert made.label is not None
    assert item["image"].shape == (1, 9, 30)
    assert np.array_equal(item["image"][0], made.image[..., 1])
    assert np.array_equal(item["label"][0], made.label[..., 1])
    assert item["start"].tolist() == [0, 0, 1]


def test_the_length_of_a_grid_is_exact(path: Path) -> None:
    """All patches of all cases; together they cover each case."""
    dataset = VolumeDataset(path, patch=GridPatches((8, 8, 4), overlap=2))
    seen = [np.zeros(shape, bool) for shape in SHAPES]
    for item in dataset:
        i, j, k = (slice(max(n, 0), n + p) for n, p in zip(item["start"], (8, 8, 4), strict=True))
        seen[int(item["case"][-1])][i, j, k] = True
    assert all(each.all() for each in seen)
    assert len(dataset) == sum(
        len(dataset.of_case(f"case{number}")) for number in range(len(SHAPES))
    )


def test_channels_and_moments_come_first(tmp_path: Path) -> None:
    """All of them are cut at the same place."""
    made = {"a": case((12, 11, 10), channels=4), "b": case((9, 14, 8), channels=4, seed=1)}
    write_volumes(tmp_path / "x.lmdb", made)
    dataset = VolumeDataset(tmp_path / "x.lmdb", patch=ForegroundPatches((5, 6, 4), fraction=1))
    for index, item in enumerate(one_by_one(dataset, [0, 1])):
        i, j, k = item["start"].tolist()
        expected = made["ab"[index]].image[:, i : i + 5, j : j + 6, k : k + 4]
        assert item["image"].shape == (4, 5, 6, 4)
        assert np.array_equal(item["image"], expected)
    assert dataset.makes_batches


def test_values_are_scaled_to_what_was_measured(tmp_path: Path) -> None:
    """Or stay as stored, where that is asked for; then what fills the outside is as stored, too."""
    attrs = {"slope": 0.5, "intercept": -10.0}
    image = numbered((6, 6, 6), np.int16)
    write_volumes(tmp_path / "x.lmdb", {"a": Volume(image=image, attrs=attrs)})
    scaled = VolumeDataset(tmp_path / "x.lmdb", patch=GridPatches((6, 6, 8)), fill=-1024)[0]
    plain = VolumeDataset(tmp_path / "x.lmdb", patch=GridPatches((6, 6, 8)), fill=7, scaled=False)[
        0
    ]
    assert np.array_equal(scaled["image"][0, :, :, 1:7], image * 0.5 - 10)
    assert set(scaled["image"][0, :, :, 0].unique().tolist()) == {-1024}
    assert plain["image"].dtype == torch.int16
    assert np.array_equal(plain["image"][0, :, :, 1:7], image)
    assert set(plain["image"][0, :, :, 7].unique().tolist()) == {7}


def test_labels_can_be_left_out(path: Path) -> None:
    """Then nothing of them is read, except where voxels are drawn."""
    item = VolumeDataset(path, patch=ForegroundPatches(8), labels=False)[0]
    assert "label" not in item


def test_labels_can_be_small(path: Path) -> None:
    """Bytes where int64 takes eight times as many; a dtype that may not hold them is refused."""
    patch = UniformPatches((8, 8, 14))
    wide, small = (
        one_by_one(VolumeDataset(path, patch=patch, label_dtype=dtype, label_fill=9), [0])[0]
        for dtype in (np.int64, np.uint8)
    )
    assert small["label"].dtype == torch.uint8
    assert torch.equal(small["label"].long(), wide["label"])
    with pytest.raises(SchemaError, match="label_dtype='int8' may not hold"):
        VolumeDataset(path, patch=patch, label_dtype="int8")[0]


@pytest.mark.parametrize("padding", ["constant", "edge", "reflect"])
def test_image_and_label_are_padded_alike(path: Path, padding: Any) -> None:
    """By one rule; the constants may differ."""
    dataset = VolumeDataset(
        path, patch=UniformPatches((16, 16, 5)), padding=padding, fill=5, label_fill=-1
    )
    item = one_by_one(dataset, [4])[0]
    made = volumes()["case4"]
    for name, values, constant in (("image", made.image, 5), ("label", made.label, -1)):
        assert values is not None
        more: Any = {"constant_values": constant} if padding == "constant" else {}
        # Signed, so that -1 is a value.
        wide = values.astype(np.int64)
        expected = np.pad(wide, [(2, 2), (2, 2), (2, 2)], mode=padding, **more)
        assert np.array_equal(item[name][0], expected)
    assert item["start"].tolist() == [-2, -2, -2]


# --- functions of the user -----------------------------------------------------------------------


def test_a_transform_takes_image_and_label_of_each_patch(path: Path) -> None:
    """What it returns stands in their place, also of several patches."""
    seen = []

    def transform(image: torch.Tensor, label: torch.Tensor) -> Any:
        seen.append((image.shape, label.shape))
        return image * 2, label + 1

    patch = UniformPatches(4, per_case=2)
    plain = one_by_one(VolumeDataset(path, patch=patch), [1])[0]
    changed = one_by_one(VolumeDataset(path, patch=patch, transform=transform), [1])[0]
    assert seen == [((1, 4, 4, 4), (1, 4, 4, 4))] * 2
    assert torch.equal(changed["image"], plain["image"] * 2)
    assert torch.equal(changed["label"], plain["label"] + 1)
    assert changed["case"] == "case1"


def test_without_labels_a_transform_takes_the_image(path: Path) -> None:
    """And returns it."""
    dataset = VolumeDataset(
        path, patch=UniformPatches(4), labels=False, transform=lambda image: image[:, :2]
    )
    assert dataset[0]["image"].shape == (1, 2, 4, 4)


def test_a_dict_transform_makes_the_item(path: Path) -> None:
    """Whatever that is; several patches are joined where they are dicts."""

    def shape(item: dict[str, Any]) -> Any:
        return {"x": item["image"].numpy()[:, 0], "case": item["case"]}

    one = VolumeDataset(path, patch=UniformPatches(4), dict_transform=shape)[0]
    more = VolumeDataset(path, patch=UniformPatches(4, per_case=3), dict_transform=shape)[0]
    other = VolumeDataset(
        path, patch=UniformPatches(4, per_case=2), dict_transform=lambda item: item["case"]
    )
    assert isinstance(one["x"], np.ndarray)
    assert (more["x"].shape, more["case"]) == ((3, 1, 4, 4), "case0")
    assert other[0] == ["case0", "case0"]


def test_patches_that_do_not_fit_together_are_told(path: Path) -> None:
    """With the case: a transform gave the patches of one visit different shapes, or names."""
    shapes = iter([3, 2])

    def uneven(item: dict[str, Any]) -> Any:
        return item | {"image": item["image"][:, : next(shapes)]}

    dataset = VolumeDataset(path, patch=UniformPatches(4, per_case=2), dict_transform=uneven)
    with pytest.raises(SchemaError, match="do not fit together") as caught:
        dataset[1]
    assert "case1" in caught.value.__notes__[0]


def test_what_a_transform_raises_names_the_case(path: Path) -> None:
    """As a note."""

    def fail(item: Any) -> Any:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        VolumeDataset(path, patch=UniformPatches(4), dict_transform=fail)[1]
    assert "case1" in caught.value.__notes__[0]


def test_a_transform_that_loses_the_label_is_told(path: Path) -> None:
    """Instead of taking a tensor apart along its first axis."""
    dataset = VolumeDataset(path, patch=UniformPatches(4), transform=lambda image, label: image)
    with pytest.raises(SchemaError, match="the image and the label are expected"):
        dataset[0]


# --- subsets, splits, cases ----------------------------------------------------------------------


def test_a_part_of_the_cases_can_be_cut_in_another_way(path: Path) -> None:
    """Patches at random for training, a grid over each case of the other part."""
    train, rest = VolumeDataset(path, patch=UniformPatches(4)).split((0.6, 0.4), seed=1)
    grid = rest.with_patch(GridPatches(8))
    assert sorted((*train.cases, *rest.cases)) == [f"case{n}" for n in range(5)]
    assert grid.cases == rest.cases
    assert {item["case"] for item in grid} == set(rest.cases)
    assert len(grid.of_case(rest.cases[1])) == GridPatches(8).counts(
        np.array([rest.shape_of(rest.cases[1])])
    )
    with pytest.raises(SampleIndexError, match="no items of case"):
        grid.of_case(train.cases[0])


def test_a_dataset_of_each_case_opens_few_files(tmp_path: Path) -> None:
    """As few as any subset: hundreds of cases may be at hand at once, each on its own."""
    made = {f"c{n}": Volume(image=numbered((4, 4, 4))) for n in range(30)}
    dataset = VolumeDataset(write_volumes(tmp_path / "x.lmdb", made), patch=GridPatches(4))
    before = descriptors()
    parts = [dataset.of_case(name) for name in dataset.cases]
    assert descriptors() - before <= 2 * len(parts)


def test_a_case_has_a_name_and_a_shape(path: Path) -> None:
    """Asked for by its name, or by the number of an item."""
    dataset = VolumeDataset(path, patch=GridPatches(8))
    assert dataset.shape_of("case3") == dataset.shape_of(len(dataset) - 2 - 8) == SHAPES[3]
    with pytest.raises(SampleKeyError, match="case9"):
        dataset.shape_of("case9")


def test_keys_name_the_case_and_the_patch(path: Path) -> None:
    """For messages."""
    assert VolumeDataset(path, patch=UniformPatches(4)).key(2) == "case2"
    assert VolumeDataset(path, patch=SlicePatches(axis=0)).key(21) == "case1[1]"


def test_what_belongs_together_stays_together(tmp_path: Path) -> None:
    """Groups are those of the store; items of a grid belong to that of their case."""
    made = {
        f"scan{n}": Volume(image=numbered((6, 5, 4)), group=f"patient{n // 3}") for n in range(12)
    }
    write_volumes(tmp_path / "x.lmdb", made, grouped=True)
    dataset = VolumeDataset(tmp_path / "x.lmdb", patch=GridPatches((3, 5, 4)))
    assert dataset.groups[:8] == ["patient0"] * 6 + ["patient1"] * 2
    parts = dataset.split((0.5, 0.5), groups=dataset.groups)
    assert {len(part) for part in parts} == {12}
    assert not set(parts[0].groups) & set(parts[1].groups)
    assert VolumeDataset(tmp_path / "x.lmdb").subset([4, 5]).groups == ["patient1"] * 2


def test_joined_datasets_give_the_items_of_both(path: Path) -> None:
    """As of any dataset here."""
    one = VolumeDataset(path, patch=UniformPatches(4))
    joined = one + one.subset([1, 3])
    assert [item["case"] for item in joined][5:] == ["case1", "case3"]


def test_fingerprints_tell_grids_apart(path: Path) -> None:
    """Numbers of items mean other patches there; random places are no part of it."""
    made = [
        VolumeDataset(path, patch=patch).fingerprint
        for patch in (GridPatches(8), GridPatches((8, 8, 9)), GridPatches(8), UniformPatches(4),
                      UniformPatches(5))
    ]  # fmt: skip
    assert made[0] == made[2] != made[1]
    assert made[3] == made[4]


# --- refused -------------------------------------------------------------------------------------


def test_a_case_without_a_label_is_named(tmp_path: Path) -> None:
    """Instead of background that nobody has seen; the others can be chosen."""
    made = {"a": case((6, 6, 6)), "b": Volume(image=numbered((6, 6, 6)))}
    dataset = VolumeDataset(write_volumes(tmp_path / "x.lmdb", made), patch=UniformPatches(4))
    with pytest.raises(SchemaError, match=r"case 'b' has no label; .*with_label\(\)"):
        dataset[1]
    assert dataset.with_label() == [0]
    assert VolumeDataset(tmp_path / "x.lmdb", patch=UniformPatches(4), labels=False)[1]


def test_drawing_by_class_needs_counts(tmp_path: Path) -> None:
    """A store without labels is refused at once."""
    write_volumes(tmp_path / "x.lmdb", {"a": Volume(image=numbered((6, 6, 6)))})
    with pytest.raises(OptionError, match="it has no labels"):
        VolumeDataset(tmp_path / "x.lmdb", patch=ForegroundPatches(4))


def test_a_store_of_something_else_is_refused(tmp_path: Path) -> None:
    """With the fields that it has."""
    with StoreWriter(tmp_path / "x.lmdb", schema={"image": "uint8[4, 4, 3]"}) as writer:
        writer.add({"image": np.zeros((4, 4, 3), np.uint8)})
    with pytest.raises(OptionError, match="no field 'image' of arrays"):
        VolumeDataset(tmp_path / "x.lmdb")


def test_a_store_of_ones_own_needs_no_shapes(tmp_path: Path) -> None:
    """Any field of arrays with three or four axes is a volume."""
    with StoreWriter(tmp_path / "x.lmdb", schema={"image": "zstd"}) as writer:
        for size in (4, 6):
            writer.add({"image": numbered((size, 5, 4), np.float32)})
    dataset = VolumeDataset(tmp_path / "x.lmdb", patch=GridPatches(4))
    assert len(dataset) == 2 + 4
    assert dataset.cases == ("0", "1")


def test_a_shape_that_is_not_true_is_damage(tmp_path: Path) -> None:
    """Of a store that says one thing and has another."""
    schema: dict[str, str | Field] = {"image": "raw", "shape": "int64[4]"}
    with StoreWriter(tmp_path / "x.lmdb", schema=schema) as writer:
        writer.add({"image": numbered((4, 5, 6)), "shape": [2, 4, 5, 6]})
    with pytest.raises(StoreFormatError, match="it is damaged"):
        VolumeDataset(tmp_path / "x.lmdb", patch=UniformPatches(3))[0]


@pytest.mark.parametrize(
    "options",
    [
        {"patch": (4, 4, 4)},
        {"padding": "wrap"},
        {"cache_blocks": "much"},
        {"cache_blocks": -1},
        {"label_dtype": "float32"},
        {"label_dtype": "bytes of"},
        {"label_dtype": "uint8", "label_fill": -1},
        {"label_fill": 0.5},
        {"fill": "nothing"},
        {"fill": None},
    ],
    ids=str,
)
def test_options_are_checked(path: Path, options: dict[str, Any]) -> None:
    """With the value."""
    with pytest.raises(OptionError):
        VolumeDataset(path, **options)


# --- size ----------------------------------------------------------------------------------------


def test_a_pickle_is_small_whatever_there_is(tmp_path: Path) -> None:
    """Of 20,000 cases and their patches; what workers unpickle is the same."""
    schema: dict[str, str | Field] = {"image": "raw", "shape": "int64[4]"}
    values = np.zeros((1, 1, 1), np.uint8)
    with StoreWriter(tmp_path / "x.lmdb", schema=schema) as writer:
        for number in range(20_000):
            writer.add({"image": values, "shape": [1, 1, 1, 1]}, key=f"case{number:06d}")
    dataset = VolumeDataset(tmp_path / "x.lmdb", patch=GridPatches(64))
    part = dataset.subset(range(0, 20_000, 2))
    for each in (dataset, part, part.with_patch(UniformPatches(64))):
        data = pickle.dumps(each)
        assert len(data) < 60_000
        assert pickle.loads(data).fingerprint == each.fingerprint
    assert part[9_999]["case"] == "case019998"


@pytest.mark.parametrize(
    "patch", [None, ForegroundPatches(4), GridPatches(8)], ids=["whole", "drawn", "grid"]
)
def test_a_pickle_that_was_kept_opens_later(path: Path, patch: Any) -> None:
    """Of a store, as one of pictures does: in a process that begins after its maker has ended."""
    made = python(
        "import pickle, sys\n"
        "patch = pickle.loads(bytes.fromhex(sys.argv[2]))\n"
        "from sharedds.datasets.volumes import VolumeDataset\n"
        "dataset = VolumeDataset(sys.argv[1], patch=patch)\n"
        "print(pickle.dumps(dataset).hex())",
        path,
        pickle.dumps(patch).hex(),
    )
    dataset = pickle.loads(bytes.fromhex(made.stdout.strip()))
    assert len(dataset) == len(VolumeDataset(path, patch=patch))
    assert dataset[0]["case"] == "case0"
    assert not dataset.counts


def test_memory_for_a_sample_is_known(path: Path) -> None:
    """Exactly what a batch takes, for planning."""
    for patch in PATCHES.values():
        dataset = VolumeDataset(path, patch=patch)
        batch = dataset.load_batch([0, 1], empty)
        tensors = [value for value in batch.values() if isinstance(value, torch.Tensor)]
        assert dataset.sample_nbytes == sum(each.nbytes for each in tensors) // 2
    assert VolumeDataset(path).sample_nbytes is None
