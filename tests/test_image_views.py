"""ImageDataset with a view: the pixels are those of a whole decode, cropped and scaled."""

from __future__ import annotations

import io
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
import torch.nn.functional as F  # noqa: N812
from pictures import noise, orientation_block, save, smooth
from PIL import Image

from sharedds.codecs import decode
from sharedds.datasets import ImageDataset
from sharedds.errors import CorruptDataError, DecodeError, OptionError
from sharedds.ingest import pack
from sharedds.order import SampleKey, using_key
from sharedds.order.uniforms import uniforms
from sharedds.store import StoreWriter
from sharedds.views import CenterCrop, Full, RandomCrop, RandomResizedCrop, Resize, View

KEY = SampleKey(1, 2, 0)


def chosen(view: View, size: tuple[int, int], key: SampleKey = KEY) -> Any:
    """Return box, flips and output of the sample with this key, found without the dataset."""
    numbers = uniforms(np.array([key.number("view")], np.uint64), 0, view.uniforms)
    places = view.places(np.array([size]), numbers)
    return places.boxes[0].tolist(), places.flips[0].tolist(), tuple(places.outputs[0].tolist())


def shown(
    whole: np.ndarray[Any, Any], view: View, key: SampleKey = KEY, *, antialias: bool = True
) -> np.ndarray[Any, Any]:
    """Return what torch makes of a whole picture (H, W, C): cropped, scaled, then mirrored."""
    (top, left, height, width), (across, down), output = chosen(view, whole.shape[:2], key)
    part = whole[top : top + height, left : left + width]
    pixels = torch.from_numpy(np.ascontiguousarray(part)[None]).permute(0, 3, 1, 2)
    if whole.dtype != np.uint8:
        pixels = pixels.to(torch.float32)
    scaled = F.interpolate(pixels, output, mode="bilinear", antialias=antialias)
    found = scaled[0].permute(1, 2, 0).numpy()
    if whole.dtype != np.uint8:
        found = np.rint(found).astype(whole.dtype)
    return found[:: -1 if down else 1, :: -1 if across else 1]


def made(dataset: ImageDataset, key: SampleKey = KEY) -> np.ndarray[Any, Any]:
    """Return a sample as (H, W, C)."""
    with using_key(key):
        sample = dataset[key.index]
    image = sample[0] if isinstance(sample, tuple) else sample
    pixels: np.ndarray[Any, Any] = image.permute(1, 2, 0).numpy()
    return pixels


def one(folder: Path, data: bytes, name: str = "0.jpg", **options: Any) -> ImageDataset:
    """Return a dataset of one file."""
    (folder / name).write_bytes(data)
    return ImageDataset(folder, **options)


def photo(width: int = 300, height: int = 200) -> Image.Image:
    """Return a picture with edges and fine structure that JPEG keeps."""
    grain = Image.fromarray(noise(height // 8, width // 8, 3))
    coarse = np.asarray(grain.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    fine = noise(height, width, 1).astype(int) // 8
    return Image.fromarray(np.clip(coarse + fine, 0, 255).astype(np.uint8))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes that JPEG files were decoded to."""
    shapes: list[tuple[int, ...]] = []
    original = simplejpeg.decode_jpeg

    def spy(data: Any, **options: Any) -> Any:
        shapes.append(options["buffer"].shape)
        return original(data, **options)

    monkeypatch.setattr("sharedds.codecs.jpeg.simplejpeg.decode_jpeg", spy)
    return shapes


VIEWS: list[View] = [
    RandomResizedCrop(110, scale=(0.3, 1), flip=0.5),
    RandomResizedCrop((110, 160), flip=1, flip_vertical=1),
    RandomCrop(100, flip_vertical=0.5),
    RandomCrop(220, flip=1),
    CenterCrop((90, 120)),
    CenterCrop(90, resize=110),
    Resize(120, flip=0.5),
    Resize((150, 160), flip=1),
    Full(flip=1),
    Full(),
]


@pytest.mark.parametrize("view", VIEWS, ids=repr)
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_pixels_are_those_of_torch_on_the_whole_picture(
    tmp_path: Path, view: View, kind: str, decoded: list[Any]
) -> None:
    """To the bit, for many samples, where no smaller scale is used."""
    data = save(photo(), kind, **({"quality": 92} if kind == "JPEG" else {}))
    dataset = one(tmp_path, data, view=view)
    whole = decode(data)
    for draw in range(6):
        key = SampleKey(0, 0, 0, draw)
        assert np.array_equal(made(dataset, key), shown(whole, view, key))
    assert all(shape[1] == 300 for shape in decoded)


def test_flips_change_the_picture() -> None:
    """The reference above would not notice a view that never flips, were flips not in it."""
    view = RandomResizedCrop(64, flip=1)
    whole = np.asarray(photo())
    plain = shown(whole, RandomResizedCrop(64))
    assert np.array_equal(shown(whole, view), plain[:, ::-1])
    assert not np.array_equal(shown(whole, view), plain)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "keep"])
@pytest.mark.parametrize("stored", ["RGB", "L", "LA", "RGBA", "P"])
def test_every_mode_has_its_channels(tmp_path: Path, mode: Any, stored: str) -> None:
    """One, two, three or four channels are cropped and scaled alike."""
    data = save(photo(64, 48).convert(stored), "PNG")
    view = RandomResizedCrop(24, flip=0.5)
    dataset = one(tmp_path, data, view=view, mode=mode)
    whole = made(ImageDataset(tmp_path, mode=mode))
    assert np.array_equal(made(dataset), shown(whole, view))


@pytest.mark.parametrize("flip", [0, 1])
def test_sixteen_bits_are_scaled_as_numbers(tmp_path: Path, flip: int) -> None:
    """In float32, rounded; torch itself has no such resize for uint16."""
    pixels = noise(60, 70, dtype="u2")
    view = RandomResizedCrop(24, flip=flip)
    dataset = one(tmp_path, save(Image.fromarray(pixels), "PNG"), view=view, mode="L")
    found = made(dataset)
    assert found.dtype == np.uint16
    assert np.array_equal(found, shown(pixels[:, :, None], view))


def test_floats_stay_floats(tmp_path: Path) -> None:
    """A 32-bit TIFF is scaled without rounding."""
    pixels = np.random.default_rng(0).random((30, 40), np.float32) * 1000
    data = save(Image.fromarray(pixels), "TIFF")
    view = Resize((15, 20))
    found = made(one(tmp_path, data, "0.tif", view=view, mode="L"))
    assert found.dtype == np.float32
    part = torch.from_numpy(pixels)[None, None]
    wanted = F.interpolate(part, (15, 20), mode="bilinear", antialias=True)
    assert np.allclose(found[..., 0], wanted[0, 0].numpy(), rtol=1e-5)


def test_without_antialiasing_pixels_are_picked(tmp_path: Path, decoded: list[Any]) -> None:
    """As torch without antialiasing, on the full decode."""
    data = save(photo(), "JPEG", quality=92)
    view = RandomResizedCrop(32, antialias=False)
    dataset = one(tmp_path, data, view=view)
    assert np.array_equal(made(dataset), shown(decode(data), view, antialias=False))
    assert not np.array_equal(made(dataset), shown(decode(data), view))
    assert {shape[1] for shape in decoded} == {300}


@pytest.mark.parametrize("dtype", ["u1", "u2"])
def test_a_mask_is_never_blended(tmp_path: Path, dtype: str) -> None:
    """Only values of the mask come out, those that torch calls nearest-exact."""
    mask = np.kron(noise(9, 11, dtype=dtype), np.ones((5, 5), dtype))
    view = RandomResizedCrop((20, 13), flip=1)
    dataset = one(tmp_path, save(Image.fromarray(mask), "PNG"), view=view, mode="index")
    found = made(dataset)
    (top, left, height, width), _, output = chosen(view, mask.shape)
    part = torch.from_numpy(mask[top : top + height, left : left + width].astype(np.int64))
    nearest = F.interpolate(part[None, None].double(), output, mode="nearest-exact")
    assert np.array_equal(found[..., 0], nearest[0, 0].numpy()[:, ::-1])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_part_is_that_of_the_upright_picture(tmp_path: Path, orientation: int) -> None:
    """All eight EXIF orientations: the box is in upright coordinates, the pixels exact."""
    exif = orientation_block(orientation)
    data = save(photo(90, 60), "JPEG", quality=92, exif=exif)
    view = RandomResizedCrop((40, 30), scale=(0.5, 1), flip=0.5)
    dataset = one(tmp_path, data, view=view)
    whole = made(ImageDataset(tmp_path))
    assert whole.shape[:2] == ((90, 60) if orientation >= 5 else (60, 90))
    for draw in range(6):
        key = SampleKey(0, 0, 0, draw)
        assert np.array_equal(made(dataset, key), shown(whole, view, key))


# --- smaller scales


@pytest.mark.parametrize(
    ("output", "factor"),
    [(400, 1), (201, 1), (200, 2), (101, 2), (100, 4), (51, 4), (50, 8), (7, 8)],
)
def test_the_smallest_scale_that_loses_nothing_is_used(
    tmp_path: Path, output: int, factor: int, decoded: list[Any]
) -> None:
    """As many pixels as are shown are left in both directions, and never fewer."""
    view = Resize((output, output))
    made(one(tmp_path, save(smooth(400, 400), "JPEG"), view=view))
    assert decoded == [(400 // factor, 400 // factor, 3)]


@pytest.mark.parametrize("orientation", [1, 6])
def test_both_sides_count(tmp_path: Path, orientation: int, decoded: list[Any]) -> None:
    """Half as high would do, half as wide would not; also where the picture is turned."""
    data = save(smooth(400, 300), "JPEG", exif=orientation_block(orientation))
    stored = (100, 300)
    view = Resize(stored if orientation == 1 else stored[::-1])
    made(one(tmp_path, data, view=view))
    assert decoded == [(300, 400, 3)]


@pytest.mark.parametrize("output", [24, 48, 96])
def test_a_smaller_scale_differs_little(tmp_path: Path, output: int) -> None:
    """By less than 5 levels, of rough noise, from the part moved to whole pixels of that scale."""
    data = save(photo(801, 603), "JPEG", quality=92)
    view = RandomResizedCrop(output, scale=(0.2, 1))
    dataset = one(tmp_path, data, view=view)
    whole = decode(data)
    for draw in range(8):
        key = SampleKey(0, 0, 0, draw)
        (top, left, height, width), _, _ = chosen(view, (603, 801), key)
        factor = next(f for f in (8, 4, 2, 1) if min(height, width) >= f * (output + 0.5))
        edges = (top, left, top + height, left + width)
        top, left, bottom, right = (round(edge / factor + 1e-9) * factor for edge in edges)
        moved = whole[top:bottom, left:right]
        wanted = shown(moved, Resize((output, output)), key).astype(int)
        found = made(dataset, key).astype(int)
        assert np.abs(found - wanted).mean() < 5
        assert np.abs(found - np.roll(wanted, 1, 0)).mean() > 10  # a shift would be seen


@pytest.mark.parametrize("orientation", [3, 5, 8])
def test_a_turned_picture_is_shrunk_where_it_is_shown(tmp_path: Path, orientation: int) -> None:
    """The part is the right one: another orientation of the same box is far away."""
    data = save(smooth(800, 600), "JPEG", quality=95, exif=orientation_block(orientation))
    view = RandomResizedCrop(48, scale=(0.2, 0.5), flip=0.5)
    dataset = one(tmp_path, data, view=view)
    whole = made(ImageDataset(tmp_path))
    for draw in range(8):
        key = SampleKey(0, 0, 0, draw)
        found = made(dataset, key)[..., :2].astype(int)  # the third channel has edges
        wanted = shown(whole, view, key)[..., :2].astype(int)
        assert np.abs(found - wanted).mean() < 2
        assert np.abs(found - wanted[::-1]).mean() > 6


def test_kinds_that_cannot_shrink_are_cropped_all_the_same(tmp_path: Path) -> None:
    """CMYK is decoded whole, whatever is shown of it."""
    data = save(photo(320, 320).convert("CMYK"), "JPEG", quality=92)
    view = RandomResizedCrop(32)
    dataset = one(tmp_path, data, view=view)
    assert np.array_equal(made(dataset), shown(decode(data), view))


# --- memory


def test_a_huge_picture_leaves_no_memory_behind(tmp_path: Path) -> None:
    """What is used again and again stays small, whatever has passed."""
    (tmp_path / "0.jpg").write_bytes(save(smooth(4000, 3000), "JPEG"))
    (tmp_path / "1.jpg").write_bytes(save(smooth(400, 300), "JPEG"))
    dataset = ImageDataset(tmp_path, view=RandomCrop(2500))
    made(dataset)
    made(dataset, SampleKey(0, 0, 1))
    kept = [scratch._kept.nbytes for scratch in dataset._pictures._scratch]
    assert max(kept) <= 8 << 20
    assert min(kept) > 0


def test_threads_do_not_share_their_memory(tmp_path: Path) -> None:
    """Eight threads at once make what one makes alone."""
    for number in range(16):
        data = save(photo(200 + number, 150), "JPEG", quality=90)
        (tmp_path / f"{number:02}.jpg").write_bytes(data)
    dataset = ImageDataset(tmp_path, view=RandomResizedCrop(64, flip=0.5))
    keys = [SampleKey(0, 0, index) for index in range(16)]
    wanted = [made(dataset, key) for key in keys]
    wrong: list[int] = []
    together = threading.Barrier(8)

    def check(first: int) -> None:
        together.wait()
        for _ in range(5):
            wrong.extend(
                key.index
                for key in keys[first:] + keys[:first]
                if not np.array_equal(made(dataset, key), wanted[key.index])
            )

    threads = [threading.Thread(target=check, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_samples_are_independent_tensors(tmp_path: Path) -> None:
    """A sample that is kept does not change when others are made."""
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(save(photo(100, 90 + number), "JPEG"))
    for view in (RandomResizedCrop(32, flip=1), RandomCrop(80), Full(), None):
        dataset = ImageDataset(tmp_path, view=view)
        kept = made(dataset)
        copy = kept.copy()
        for index in (1, 2):
            made(dataset, SampleKey(0, 0, index))
        assert np.array_equal(kept, copy)


# --- the dataset


def test_a_sample_is_channels_last(tmp_path: Path) -> None:
    """(C, H, W) uint8, and that is what a transform sees."""
    seen: list[Any] = []

    def transform(image: torch.Tensor) -> torch.Tensor:
        seen.append((image.shape, image.stride(), image.dtype))
        return image.float()

    dataset = one(tmp_path, save(photo(), "JPEG"), view=CenterCrop(64), transform=transform)
    assert dataset[0].dtype == torch.float32
    assert seen == [((3, 64, 64), (1, 192, 3), torch.uint8)]


def test_two_pictures_of_one_sample_show_different_parts(tmp_path: Path) -> None:
    """Two views of the same picture, as contrastive training wants them."""
    dataset = one(tmp_path, save(photo(), "JPEG"), view=RandomResizedCrop(32))
    with using_key(KEY):
        first, second = dataset[0], dataset[0]
    assert not torch.equal(first, second)
    with using_key(KEY):
        assert torch.equal(first, dataset[0])


def test_outside_a_loader_torch_decides(tmp_path: Path) -> None:
    """manual_seed repeats a sample; without it the next one is another."""
    dataset = one(tmp_path, save(photo(), "JPEG"), view=RandomResizedCrop(32))
    torch.manual_seed(3)
    first = dataset[0]
    assert not torch.equal(first, dataset[0])
    torch.manual_seed(3)
    assert torch.equal(first, dataset[0])


def test_a_view_is_pickled_with_its_dataset(tmp_path: Path) -> None:
    """A worker shows what the trainer would, after both have read."""
    dataset = one(tmp_path, save(photo(), "JPEG"), view=RandomResizedCrop(32, flip=0.5))
    before = made(dataset)
    data = pickle.dumps(dataset)
    assert len(data) < 4_000
    assert np.array_equal(made(pickle.loads(data)), before)


def test_what_is_no_view_is_refused(tmp_path: Path) -> None:
    """A number alone does not say what to do with it."""
    wrong: Any = 224
    with pytest.raises(OptionError, match="224"):
        one(tmp_path, save(photo(), "JPEG"), view=wrong)


def test_a_bad_picture_is_named_with_a_view_too(tmp_path: Path) -> None:
    """Whatever part of it would be shown: a truncated file is refused."""
    data = save(photo(), "JPEG")
    dataset = one(tmp_path, data[: len(data) * 2 // 3], "bad.jpg", view=RandomCrop(40))
    for draw in range(10):
        with using_key(SampleKey(0, 0, 0, draw)), pytest.raises(DecodeError, match=r"bad\.jpg"):
            dataset[0]


# --- finished pixels


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A store of 12 pictures of 96 x 80 finished pixels, in two classes."""
    for number in range(12):
        folder = tmp_path / "src" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = Image.fromarray(noise(96, 80, 3, seed=number))
        (folder / f"{number:02}.png").write_bytes(save(pixels, "PNG"))
    pack(tmp_path / "src", tmp_path / "raw.lmdb", codec="raw", size=(96, 80), progress=False)
    return tmp_path / "raw.lmdb"


@pytest.mark.parametrize("view", VIEWS, ids=repr)
def test_finished_pixels_are_cropped_and_scaled_alike(raw: Path, view: View) -> None:
    """As pixels that were decoded."""
    dataset = ImageDataset(raw, view=view)
    for index in range(12):
        key = SampleKey(0, 0, index)
        assert np.array_equal(made(dataset, key), shown(made(ImageDataset(raw), key), view, key))


def test_damage_beside_the_part_that_is_shown_is_found(raw: Path, tmp_path: Path) -> None:
    """The checksum is that of the whole row."""
    data = bytearray(raw.read_bytes())
    at = data.find(np.ascontiguousarray(made(ImageDataset(raw), SampleKey(0, 0, 5))).tobytes())
    data[at] ^= 1
    (tmp_path / "bad.lmdb").write_bytes(data)
    with pytest.raises(CorruptDataError, match="sample 5"):
        ImageDataset(tmp_path / "bad.lmdb", view=CenterCrop(8))[5]


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1), ("keep", 1), ("index", 1)])
def test_grey_pixels_follow_the_mode(tmp_path: Path, mode: Any, channels: int) -> None:
    """Replicated where colours are asked for."""
    grey = noise(8, 9, 1)
    with StoreWriter(tmp_path / "x.lmdb", schema={"image": "uint8[8,9,1]"}) as writer:
        writer.add({"image": grey})
    found = made(ImageDataset(tmp_path / "x.lmdb", mode=mode, view=Full(flip=1)))
    assert np.array_equal(found, np.repeat(grey[:, ::-1], channels, axis=2))


def test_pictures_of_a_kept_store_are_shown_as_those_of_its_folder(tmp_path: Path) -> None:
    """Packing changes nothing, orientation included."""
    (tmp_path / "src").mkdir()
    for number in range(1, 9):
        data = save(photo(70, 50), "JPEG", exif=orientation_block(number))
        (tmp_path / "src" / f"{number}.jpg").write_bytes(data)
    pack(tmp_path / "src", tmp_path / "x.lmdb", progress=False)
    view = RandomResizedCrop(24, flip=0.5)
    loose, packed = (ImageDataset(tmp_path / name, view=view) for name in ("src", "x.lmdb"))
    for index in range(8):
        key = SampleKey(0, 0, index)
        assert np.array_equal(made(loose, key), made(packed, key))


@pytest.mark.parametrize(
    ("options", "is_short"),
    [
        (None, False),
        ({}, True),
        ({"codec": "jpeg"}, True),
        ({"check": "header"}, False),
    ],
    ids=["folder", "proved", "encoded", "trusted"],
)
def test_rows_are_left_out_of_files_that_were_proved(
    tmp_path: Path, options: dict[str, Any] | None, is_short: bool, decoded: list[Any]
) -> None:
    """Damage could hide in others: of these every row is decoded, whatever is shown."""
    source = tmp_path / "src"
    source.mkdir()
    (source / "0.jpg").write_bytes(save(photo(200, 300), "JPEG", quality=90))
    if options is not None:
        pack(source, tmp_path / "x.lmdb", progress=False, **options)
        source = tmp_path / "x.lmdb"
    whole = made(ImageDataset(source))
    decoded.clear()
    for draw in range(10):
        key, view = SampleKey(0, 0, 0, draw), RandomCrop(120)
        assert np.array_equal(made(ImageDataset(source, view=view), key), shown(whole, view, key))
    assert (min(shape[0] for shape in decoded) < 300) == is_short


def test_damage_in_a_folder_is_found_whatever_is_shown(tmp_path: Path) -> None:
    """It shows at the end of the data, and so does not depend on the part."""
    data = bytearray(save(photo(), "JPEG", quality=90))
    at = data.find(b"\xff\xda") + 3000
    data[at : at + 8] = b"\xff\x00" * 4
    dataset = one(tmp_path, bytes(data), view=RandomCrop(60))
    for draw in range(10):
        with using_key(SampleKey(0, 0, 0, draw)), pytest.raises(DecodeError, match="damaged"):
            dataset[0]


# --- pictures that are kept


class Kept(dict[int, Any]):
    """A cache in a dict."""

    def get(self, index: int, default: Any = None, *, stamp: int = 0) -> Any:
        """Return a picture, if it is there."""
        return super().get(index, default)

    def put(self, index: int, array: np.ndarray[Any, Any], *, stamp: int) -> bool:
        """Keep a picture, read-only."""
        array = array.copy()
        array.flags.writeable = False
        self[index] = array
        return True


def test_a_kept_picture_is_decoded_once_and_whole(tmp_path: Path, decoded: list[Any]) -> None:
    """All its parts come from it, at full scale."""
    data = save(photo(400, 300), "JPEG", exif=orientation_block(6))
    view = RandomResizedCrop(32, flip=0.5)
    dataset = one(tmp_path, data, view=view)
    dataset._pictures.stored.cache = Kept()
    whole = decode(data)
    decoded.clear()
    for draw in range(5):
        key = SampleKey(0, 0, 0, draw)
        assert np.array_equal(made(dataset, key), shown(whole, view, key))
    assert decoded == [(300, 400, 3)]


def test_a_kept_picture_is_not_handed_out_for_writing(tmp_path: Path) -> None:
    """Without a view a sample is the whole picture, and may be changed."""
    data = save(photo(), "JPEG")
    dataset = one(tmp_path, data)
    dataset._pictures.stored.cache = Kept()
    for _ in range(2):
        image = dataset[0]
        image += 1
    assert np.array_equal(made(dataset), np.asarray(decode(data)))


def test_decoding_by_hand_agrees(tmp_path: Path) -> None:
    """The reference of these tests is Pillow's as well, on a format without loss."""
    data = save(photo(), "PNG")
    assert np.array_equal(decode(data), np.asarray(Image.open(io.BytesIO(data))))
