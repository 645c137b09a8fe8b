"""SlideDataset: what an item is, which items there are, and that it is the same however loaded."""

from __future__ import annotations

import gc
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import in_process, python
from slide_stores import PATCHES, Slide, halved, picture, same, slides, write_slides
from torch.utils.data import DataLoader, default_collate
from volume_stores import empty, keys, one_by_one

from sharedds.datasets.offers import batch_maker
from sharedds.datasets.slides import SlideDataset
from sharedds.datasets.volumes import VolumeDataset
from sharedds.errors import (
    OptionError,
    SampleIndexError,
    SampleKeyError,
    SchemaError,
    StoreFormatError,
)
from sharedds.loader import build_loader
from sharedds.loader.heap import give_back
from sharedds.memory import process_memory
from sharedds.order import using_keys
from sharedds.patches import ForegroundPatches, GridPatches, TissuePatches, UniformPatches
from sharedds.store import Store, StoreWriter
from sharedds.store.opened import OpenedStore
from sharedds.testing import assert_same_stream

MB = 1_000_000

# One of the slides has no polygons, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:.*or no polygons.*:UserWarning")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of four slides."""
    return write_slides(tmp_path_factory.mktemp("slides") / "x.lmdb", slides())


# --- what an item is -----------------------------------------------------------------------------


def test_an_item_is_a_part_of_a_slide(path: Path) -> None:
    """Its pixels as stored, channels first, and where they are from."""
    item = one_by_one(SlideDataset(path, patch=TissuePatches(32)), [7])[0]
    image = slides()[item["slide"]].image
    y, x = item["y"], item["x"]
    assert list(item) == ["image", "slide", "level", "x", "y", "mpp", "tissue", "label"]
    assert item["image"].dtype == torch.uint8
    assert np.array_equal(item["image"].permute(1, 2, 0), image[y : y + 32, x : x + 32])
    assert (item["slide"], item["level"], item["mpp"]) == ("slide0", 0, 0.25)
    assert item["tissue"].dtype == item["label"].dtype == torch.float32
    assert item["label"].shape == (2,)


@pytest.mark.parametrize("kind", ["tissue", "uniform", "grid"])
def test_shares_belong_to_what_is_shown(path: Path, kind: str) -> None:
    """Those of the pixels of each class, as far as cells tell; nothing known is NaN."""
    dataset = SlideDataset(path, patch=PATCHES[kind])
    made = slides()
    h, w = dataset.patch.size  # type: ignore[misc]
    for item in one_by_one(dataset, range(0, len(dataset), 2)):
        slide = made[item["slide"]]
        y, x = max(item["y"], 0), max(item["x"], 0)
        part = slice(y, item["y"] + h), slice(x, item["x"] + w)
        assert slide.tissue is not None
        assert abs(slide.tissue[part].mean() - item["tissue"]) < 0.12
        if slide.labels is None:
            assert item["label"].isnan().all()
            continue
        for share, mask in zip(item["label"].tolist(), slide.labels, strict=True):
            assert abs(mask[part].mean() - share) < 0.12


def test_places_of_a_level_are_told_in_pixels_of_level_0(path: Path) -> None:
    """The patch is cut of that level, its pixels are as large as they are there."""
    dataset = SlideDataset(path, patch=UniformPatches(20, level=1))
    for item in one_by_one(dataset, range(len(dataset))):
        level = halved(slides()[item["slide"]].image)
        y, x = item["y"] // 2, item["x"] // 2
        assert (item["level"], item["x"] % 2, item["y"] % 2) == (1, 0, 0)
        assert item["mpp"] == 2 * (slides()[item["slide"]].mpp or 0)
        assert np.array_equal(item["image"].permute(1, 2, 0), level[y : y + 20, x : x + 20])


def test_a_pixel_size_is_the_same_for_all_slides(path: Path) -> None:
    """Read from the coarsest level that is fine enough, and averaged down."""
    dataset = SlideDataset(path, patch=UniformPatches(24, mpp=1.0))
    found = {}
    for item in one_by_one(dataset, range(len(dataset))):
        found[item["slide"]] = item["level"]
        assert item["mpp"] == 1.0
    assert found == {"slide0": 2, "slide1": 1, "slide2": 2, "slide3": 1}


@pytest.mark.parametrize(
    ("mpp", "level", "step"), [(1.5, 1, 3), (1.0, 1, 2), (2.5, 2, 5), (0.5, 0, 1)]
)
def test_pixels_are_means_of_the_level_below(
    tmp_path: Path, mpp: float, level: int, step: int
) -> None:
    """So many by so many of level 0; read from the coarsest level that is fine enough."""
    y, x = np.mgrid[0:240, 0:300]
    smooth = np.stack([y, x * 0.8, (x + y) / 3], -1).astype(np.uint8)
    write_slides(tmp_path / "x.lmdb", {"a": Slide(image=smooth, mpp=0.5)})
    for item in SlideDataset(tmp_path / "x.lmdb", patch=GridPatches(20, mpp=mpp)):
        assert item["level"] == level
        part = smooth[item["y"] :, item["x"] :][: 20 * step, : 20 * step].astype(float)
        wanted = part.reshape(20, step, 20, step, 3).mean((1, 3))
        assert np.abs(item["image"].permute(1, 2, 0).numpy() - wanted).max() <= 1.5


def test_parts_of_pixels_count_as_parts(tmp_path: Path) -> None:
    """A pixel of 0.8 micrometres is 1.6 of those of 0.5: exact, whatever the place."""
    image = np.random.default_rng(2).integers(0, 60000, (90, 90, 1), np.uint16)
    slide = Slide(image=image, mpp=0.5, levels=1, background=None)
    write_slides(tmp_path / "x.lmdb", {"a": slide}, chunk=(32, 32, 1))
    item = SlideDataset(tmp_path / "x.lmdb", patch=GridPatches(10, mpp=0.8))[4]
    y, x = item["y"], item["x"]
    fine = np.repeat(np.repeat(image[:, :, 0].astype(float), 10, 0), 10, 1)
    part = fine[10 * y : 10 * y + 160, 10 * x : 10 * x + 160]
    wanted = part.reshape(10, 16, 10, 16).mean((1, 3))
    assert np.abs(item["image"][0].numpy() - wanted).max() < 0.51


def test_a_region_of_that_pixel_size_is_what_the_store_reads(path: Path) -> None:
    """Equal to the bit: an item can be read again from what it says of itself."""
    dataset = SlideDataset(path, patch=UniformPatches(24, per_case=3, mpp=0.8))
    store = dataset._source.store
    for item in one_by_one(dataset, range(len(dataset))):
        again = store.read_mpp(store.index_of(item["slide"]), item["x"], item["y"], 24, item["mpp"])
        assert np.array_equal(item["image"].permute(1, 2, 0), again)


@pytest.mark.parametrize(
    ("fill", "wanted"), [(None, (243, 243, 243)), (7, (7, 7, 7)), ((1, 2, 3), (1, 2, 3))], ids=str
)
def test_what_is_outside_is_background(path: Path, fill: Any, wanted: Any) -> None:
    """That of the slide, or what is asked for; a patch is put around a slide that is smaller."""
    item = SlideDataset(path, patch=GridPatches(80), fill=fill).of_slide("slide3")[0]
    assert (item["y"], item["x"]) == (-15, -10)
    assert item["image"][:, 0, 0].tolist() == list(wanted)
    inside = item["image"][:, 15:65, 10:70].permute(1, 2, 0)
    assert np.array_equal(inside, slides()["slide3"].image)


def test_slides_of_other_dtypes_and_channels(tmp_path: Path) -> None:
    """16 bits stay 16 bits; slides that differ make no whole batches, but items."""
    deep = np.arange(90 * 80 * 5, dtype=np.uint16).reshape(90, 80, 5)
    plain = Slide(image=picture(90, 80))
    write_slides(
        tmp_path / "x.lmdb",
        {"a": Slide(image=deep, mpp=None, background=None), "b": plain},
        chunk=(32, 32, 8),
    )
    dataset = SlideDataset(tmp_path / "x.lmdb", patch=GridPatches(40))
    item = dataset[0]
    assert item["image"].dtype == torch.uint16
    assert np.array_equal(item["image"].permute(1, 2, 0), deep[:40, :40])
    assert np.isnan(item["mpp"])
    assert item["tissue"].isnan()
    assert "label" not in item
    assert not dataset.makes_batches
    with pytest.raises(SchemaError, match="no whole batches"):
        dataset.load_batch([0], empty)


def test_a_plane_of_a_focus_stack_is_chosen(tmp_path: Path) -> None:
    """Another slide without such planes refuses it, by name."""
    stack = np.stack([picture(70, 60, seed=n) for n in range(3)])
    write_slides(tmp_path / "x.lmdb", {"a": Slide(image=stack)}, chunk=(32, 32, 3))
    item = SlideDataset(tmp_path / "x.lmdb", patch=UniformPatches(16), plane=2)[0]
    y, x = item["y"], item["x"]
    assert np.array_equal(item["image"].permute(1, 2, 0), stack[2, y : y + 16, x : x + 16])
    with pytest.raises(OptionError, match="'a' has no plane 3"):
        SlideDataset(tmp_path / "x.lmdb", patch=UniformPatches(16), plane=3)


# --- which items there are -----------------------------------------------------------------------


def test_lengths_are_exact(path: Path) -> None:
    """Items of a grid, of tissue, and so many of each slide."""
    assert len(SlideDataset(path, patch=UniformPatches(30, per_case=5))) == 20
    assert len(SlideDataset(path, patch=GridPatches(64))) == 4 * 5 + 3 * 3 + 5 * 2 + 1
    dataset = SlideDataset(path, patch=TissuePatches(32))
    assert len(list(dataset)) == len(dataset)


@pytest.mark.parametrize("kind", PATCHES)
def test_items_stand_slide_by_slide(path: Path, kind: str) -> None:
    """But for classes, where they do so in each class; groups name the slide of each."""
    dataset = SlideDataset(path, patch=PATCHES[kind])
    groups = [item["slide"] for item in one_by_one(dataset, range(len(dataset)))]
    assert groups == dataset.groups
    if kind != "by class":
        assert groups == sorted(groups)


def test_no_slide_is_in_two_parts(path: Path) -> None:
    """Of a split by slides; with other patches a part has the same slides."""
    dataset = SlideDataset(path, patch=TissuePatches(32))
    train, val = dataset.split((0.5, 0.5), seed=1, groups=dataset.groups)
    assert len(train) + len(val) == len(dataset)
    assert not set(train.slides) & set(val.slides)
    cover = val.with_patch(GridPatches(64))
    assert set(cover.slides) == set(val.slides)
    assert all(item["slide"] in val.slides for item in cover)


def test_parts_can_be_joined(path: Path) -> None:
    """And read as one; whole batches mix them."""
    dataset = SlideDataset(path, patch=TissuePatches(32))
    one, other = dataset.of_slide("slide2"), dataset.of_slide("slide0")
    both = one + other
    made = both.load_batch([0, len(one), 1], empty)
    assert made["slide"] == ["slide2", "slide0", "slide2"]
    assert same(made, default_collate([both[0], both[len(one)], both[1]]))


def test_slides_can_be_left_out(path: Path) -> None:
    """The rest is in the order that was asked for."""
    dataset = SlideDataset(path, patch=UniformPatches(16), slides=["slide3", "slide1"])
    assert dataset.slides == ("slide3", "slide1")
    assert [item["slide"] for item in dataset] == ["slide3", "slide1"]
    with pytest.raises(SampleIndexError, match="slide0"):
        dataset.of_slide("slide0")
    with pytest.raises(SampleKeyError, match="nobody"):
        SlideDataset(path, patch=UniformPatches(16), slides=["nobody"])


def test_items_of_slides_with_polygons_are_known(path: Path) -> None:
    """The others have no shares of classes."""
    dataset = SlideDataset(path, patch=TissuePatches(32))
    labelled = dataset.subset(dataset.with_label())
    assert set(labelled.slides) == {"slide0", "slide2", "slide3"}
    assert dataset.class_names == ("tumour", "stroma")


def test_keys_name_slides(path: Path) -> None:
    """And the place among those of the slide, where it is fixed."""
    dataset = SlideDataset(path, patch=TissuePatches(32))
    first = dataset.groups.index("slide1")
    assert dataset.key(first) == "slide1[0]"
    assert SlideDataset(path, patch=UniformPatches(32)).key(2) == "slide2"


def test_a_fingerprint_follows_what_items_are(path: Path) -> None:
    """Other patches, other slides; not other transforms."""
    made = [
        SlideDataset(path, patch=TissuePatches(32)),
        SlideDataset(path, patch=TissuePatches(32, jitter=True)),
        SlideDataset(path, patch=TissuePatches(32, level=1)),
        SlideDataset(path, patch=TissuePatches(32), slides=["slide0", "slide1"]),
    ]
    assert len({dataset.fingerprint for dataset in made}) == 4
    again = SlideDataset(path, patch=TissuePatches(32), transform=bool)
    assert again.fingerprint == made[0].fingerprint


# --- what is refused -----------------------------------------------------------------------------


def test_a_pixel_size_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    """With the slide; it can be left out by its name."""
    made = {"a": Slide(image=picture(60, 60)), "b": Slide(image=picture(60, 60), mpp=None)}
    write_slides(tmp_path / "x.lmdb", made)
    with pytest.raises(OptionError, match="'b' does not say how large its pixels are"):
        SlideDataset(tmp_path / "x.lmdb", patch=UniformPatches(8, mpp=1))
    assert len(SlideDataset(tmp_path / "x.lmdb", patch=UniformPatches(8, mpp=1), slides=["a"])) == 1


@pytest.mark.parametrize("mpp", [1e-6, 1e308])
def test_a_patch_is_not_made_of_billions_of_pixels(tmp_path: Path, mpp: float) -> None:
    """A slide that lies about the size of its pixels costs no memory."""
    write_slides(tmp_path / "x.lmdb", {"a": Slide(image=picture(60, 60), mpp=mpp)})
    with pytest.raises(OptionError, match=r"'a'.*take a smaller mpp"):
        SlideDataset(tmp_path / "x.lmdb", patch=UniformPatches(224, mpp=0.5))


def test_a_map_that_does_not_fit_its_slide_is_refused(tmp_path: Path) -> None:
    """By name, with both shapes."""
    tissue = np.ones((60, 60), bool)
    made = Slide(image=picture(60, 60), tissue=tissue, labels=[tissue])
    write_slides(tmp_path / "x.lmdb", {"a": made})
    with pytest.raises(StoreFormatError, match=r"'a': its label is \(4, 4, 1\); \(4, 4, 2\) is"):
        SlideDataset(tmp_path / "x.lmdb", patch=TissuePatches(16))


def test_a_level_that_is_not_there_is_refused(path: Path) -> None:
    """With the slide, and how many it has."""
    with pytest.raises(OptionError, match="'slide0' has no level 3, it has 3"):
        SlideDataset(path, patch=UniformPatches(8, level=3))


@pytest.mark.parametrize("patch", [None, 64, ForegroundPatches(8), UniformPatches((8, 8, 4))])
def test_patches_of_volumes_are_refused(path: Path, patch: Any) -> None:
    """A slide has two axes; a cube stands for a square."""
    with pytest.raises(OptionError):
        SlideDataset(path, patch=patch)
    assert SlideDataset(path, patch=UniformPatches((8, 8, 8))).patch.size == (8, 8)


@pytest.mark.parametrize(
    "patch", [TissuePatches(8), UniformPatches((8, 8)), GridPatches(8, mpp=1.0)]
)
def test_volumes_have_no_patches_of_slides(tmp_path: Path, patch: Any) -> None:
    """The text says which dataset has."""
    with StoreWriter(tmp_path / "x.lmdb", schema={"image": "lz4"}) as writer:
        writer.add({"image": np.zeros((9, 9, 9), np.int16)}, key="a")
    with pytest.raises(OptionError, match=r"patch|SlideDataset"):
        VolumeDataset(tmp_path / "x.lmdb", patch=patch)


def test_a_store_of_pictures_is_refused(tmp_path: Path) -> None:
    """By what it has, and what makes slides."""
    with StoreWriter(tmp_path / "x.lmdb", schema={"image": "png"}) as writer:
        writer.add({"image": picture(9, 9)}, key="a")
    with pytest.raises(OptionError, match=r"image: png.*--kind slide"):
        SlideDataset(tmp_path / "x.lmdb", patch=UniformPatches(4))


@pytest.mark.parametrize(
    "options", [{"plane": -1}, {"plane": True}, {"fill": "white"}, {"cache_tiles": "much"}], ids=str
)
def test_options_are_checked(path: Path, options: dict[str, Any]) -> None:
    """With the value."""
    with pytest.raises(OptionError):
        SlideDataset(path, patch=UniformPatches(8), **options)


# --- the same however it is loaded ---------------------------------------------------------------


@pytest.mark.parametrize("kind", PATCHES)
def test_a_whole_batch_is_what_torch_makes_of_its_items(path: Path, kind: str) -> None:
    """Equal to the bit, random places included."""
    dataset = SlideDataset(path, patch=PATCHES[kind])
    last = len(dataset) - 1
    indices = [last // 2, 0, last, last // 2, 1]
    make = batch_maker(dataset)
    assert make is not None
    with using_keys(keys(indices)):
        made = make(indices, empty)
    assert same(made, default_collate(one_by_one(dataset, indices)))


def test_items_of_a_plain_loader_are_read_together(path: Path) -> None:
    """With the seed of torch; the same as one by one."""
    dataset = SlideDataset(path, patch=UniformPatches(16, per_case=4))
    torch.manual_seed(3)
    wanted = default_collate([dataset[index] for index in range(16)])
    torch.manual_seed(3)
    assert same(default_collate(dataset.__getitems__(list(range(16)))), wanted)
    assert len(list(DataLoader(dataset, batch_size=5))) == 4


class Noisy:
    """Adds noise from the generator of the sample."""

    dataset: SlideDataset

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Return another image."""
        noise = self.dataset.rng.normal(size=tuple(image.shape)).astype(np.float32)
        return image + torch.from_numpy(noise)


@pytest.mark.parametrize("kind", ["jitter", "scaled"])
def test_the_stream_does_not_depend_on_workers(path: Path, kind: str) -> None:
    """With none, one and two of them, processes and threads."""
    dataset = SlideDataset(path, patch=PATCHES[kind])
    assert_same_stream(dataset, workers=(0, 1, 2), batch_size=3, samples=12, epochs=1)


def test_augmentation_does_not_depend_on_workers(path: Path) -> None:
    """What a transform draws belongs to the sample."""
    transform = Noisy()
    dataset = SlideDataset(path, patch=PATCHES["by slide"], transform=transform)
    transform.dataset = dataset
    assert_same_stream(dataset, workers=(0, 2), batch_size=3, samples=9, epochs=1)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_goes_on_where_it_was(path: Path, workers: int) -> None:
    """In the middle of an epoch; patches are those that would have come."""
    dataset = SlideDataset(path, patch=PATCHES["jitter"])
    options: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 3}
    loader = build_loader(dataset, num_workers=0, **options)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    rest = list(batches)
    resumed = build_loader(dataset, num_workers=workers, **options)
    resumed.load_state_dict(state)
    assert all(same(*pair) for pair in zip(rest, resumed, strict=True))


@pytest.mark.parametrize("kind", ["tissue", "scaled grid"])
def test_tiles_are_asked_for_before_items_are_read(
    path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are read then, where code runs for each item; whole batches ask by themselves."""
    asked: list[list[int]] = []
    monkeypatch.setattr(OpenedStore, "advise", lambda _, numbers: asked.append(list(numbers)))
    dataset = SlideDataset(path, patch=PATCHES[kind], transform=torch.clone)
    dataset.advise([5])
    _ = dataset[5]
    assert len(asked) == 2
    assert asked[0] == asked[1] != []
    SlideDataset(path, patch=PATCHES[kind]).advise([5])
    assert len(asked) == 2


@pytest.mark.parametrize("codec", ["jpeg", "png", "webp", "zstd"])
def test_tiles_of_every_kind(tmp_path: Path, codec: str) -> None:
    """Items are what the store reads, from tiles that are coded as pictures as well."""
    y, x = np.mgrid[0:200, 0:300]
    smooth = np.stack([y, x * 0.8, (x + y) / 3], -1).astype(np.uint8)
    write_slides(tmp_path / "x.lmdb", {"a": Slide(image=smooth)}, codec=codec)
    dataset = SlideDataset(tmp_path / "x.lmdb", patch=GridPatches(48, level=1))
    array = Store(tmp_path / "x.lmdb").array(0, "image").level(1)
    batch = dataset.load_batch(list(range(len(dataset))), empty)
    for number, item in enumerate(dataset):
        y0, x0 = item["y"] // 2, item["x"] // 2
        assert np.array_equal(item["image"].permute(1, 2, 0), array[y0 : y0 + 48, x0 : x0 + 48])
        assert torch.equal(batch["image"][number], item["image"])
    assert np.abs(array[:].astype(int) - halved(smooth)).max() < 12


def test_an_error_of_a_transform_names_the_slide(path: Path) -> None:
    """And the sample."""
    dataset = SlideDataset(path, patch=UniformPatches(8), transform=lambda image: image[9, 9, 9])
    with pytest.raises(IndexError) as told:
        dataset[1]
    assert told.value.__notes__ == ["while transforming sample 1 ('slide1')"]


# --- what it costs -------------------------------------------------------------------------------


def many(path: Path, count: int) -> Path:
    """Write slides of noise that does not shrink, 0.2 MB each."""
    tissue = np.ones((256, 256), bool)
    base = picture(256, 256)
    made = {
        f"{number:03d}": Slide(image=np.roll(base, number, 0), tissue=tissue, levels=1)
        for number in range(count)
    }
    return write_slides(path, made, chunk=(128, 128, 3))


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 200 slides."""
    return many(tmp_path_factory.mktemp("slides") / "many.lmdb", 200)


@pytest.mark.parametrize(
    "patch",
    [TissuePatches(16), TissuePatches(16, balance="slides", jitter=True),
     GridPatches(8, overlap=4), UniformPatches(16, per_case=1000, mpp=0.7)],
    ids=["tissue", "balanced", "grid", "scaled"],
)  # fmt: skip
def test_a_pickle_is_small(crowd: Path, patch: Any) -> None:
    """Though there are 50,000 places or more of 200 slides; it gives the same items."""
    dataset = SlideDataset(crowd, patch=patch)
    stored = pickle.dumps(dataset)
    assert len(stored) < 60_000
    again = pickle.loads(stored)
    assert len(again) == len(dataset) > 50_000
    last = len(dataset) - 1
    assert same(one_by_one(again, [last]), one_by_one(dataset, [last]))


def held(dataset: SlideDataset) -> list[int]:
    """Return what this process holds after patches of a few slides, and after those of all."""
    found = []
    count = len(dataset)
    for indices in (range(count // 20), range(count)):
        for first in range(0, len(indices), 16):
            dataset.load_batch(list(indices[first : first + 16]), _memory)
        gc.collect()
        give_back()  # what is freed and waits in the heap is no growth
        found.append(process_memory().uss or 0)
    return found


def _memory(shape: Any, dtype: torch.dtype, *, channels_last: bool = False) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype).contiguous(memory_format=torch.channels_last)


@pytest.mark.memory
def test_memory_does_not_grow_with_the_slides_that_were_read(crowd: Path) -> None:
    """40 MB of tiles were decoded, of a store of as many; a cache of 2 MB is full at once."""
    dataset = SlideDataset(crowd, patch=TissuePatches(64, jitter=True), cache_tiles="2MB")
    few, all_of_them = in_process("spawn", held, dataset)
    assert all_of_them - few < 5 * MB, (few, all_of_them)


@pytest.mark.parametrize("kind", ["jitter"])
def test_a_pickle_that_was_kept_opens_later(path: Path, kind: str) -> None:
    """In a process that begins after its maker has ended: candidates are found again."""
    made = python(
        "import pickle, sys\n"
        "patch = pickle.loads(bytes.fromhex(sys.argv[2]))\n"
        "from sharedds.datasets.slides import SlideDataset\n"
        "print(pickle.dumps(SlideDataset(sys.argv[1], patch=patch)).hex())",
        path,
        pickle.dumps(PATCHES[kind]).hex(),
    )
    dataset = pickle.loads(bytes.fromhex(made.stdout.strip()))
    again = SlideDataset(path, patch=PATCHES[kind])
    assert dataset.fingerprint == again.fingerprint
    last = len(again) - 1
    assert same(one_by_one(dataset, [last]), one_by_one(again, [last]))


def test_memory_for_a_sample_is_known(path: Path) -> None:
    """Exactly what a batch takes, for planning."""
    for patch in PATCHES.values():
        dataset = SlideDataset(path, patch=patch)
        batch = dataset.load_batch([0, 1], empty)
        tensors = [value for value in batch.values() if isinstance(value, torch.Tensor)]
        assert dataset.sample_nbytes == sum(each.nbytes for each in tensors) // 2
