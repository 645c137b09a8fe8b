"""Batches on a device: what becomes of them, in which order, and that nothing is counted early."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pickle
import subprocess
import sys
import time
import warnings
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import unmeasured
from streams import Augmented, fork, same
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader, Dataset

import sharedds
from sharedds.errors import OptionError, SampleError, WorkerDiedError, WorkerError
from sharedds.host.accelerator import Accelerator
from sharedds.loader import device as device_module
from sharedds.loader.conversion import Conversion
from sharedds.loader.device import DeviceLoader, SideStream, find_device

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CPU = torch.device("cpu")


class Pictures(Dataset[Any]):
    """Noise of shape (3, 4, 6) and its number."""

    def __init__(self, count: int = 10, dtype: torch.dtype = torch.uint8) -> None:
        self.count = count
        self.dtype = dtype

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return noise((3, 4, 6), self.dtype, seed=index), index


class Made(Dataset[int]):
    """Numbers, for loaders whose ``collate_fn`` makes the batch."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def noise(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Random values of the whole range of whole numbers, from 0 to 1 of others."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.rand(shape, generator=generator, dtype=torch.float64).to(dtype)
    top = torch.iinfo(dtype).max + 1
    return torch.randint(0, top, shape, generator=generator).to(dtype)


def converted(batch: Any, **options: Any) -> Any:
    """A batch after conversion on the CPU."""
    return Conversion(**options)(batch, CPU)


def loader_of(batch: Any, **options: Any) -> Any:
    """A loader that hands out this very batch, whatever it reads."""
    return fork(Made(), batch_size=2, collate_fn=lambda samples: batch, **options)


# --- a made-up accelerator -----------------------------------------------------------------------


class Event:
    """Is over when a test says so."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_over = True

    def query(self) -> bool:
        """Whether it is over."""
        return self.is_over


class Stream:
    """Notes what is asked of it."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self._log = log
        self.events: list[Event] = []

    def record_event(self) -> Event:
        """Note where it is."""
        self.events.append(Event(len(self.events)))
        self._log.append(f"{self.name} records {len(self.events) - 1}")
        return self.events[-1]

    def wait_event(self, event: Event) -> None:
        """Go on after the event."""
        self._log.append(f"{self.name} waits for {event.number}")


class MadeUp:
    """Streams of the CPU, which has none: all that is asked of them is noted."""

    device = CPU

    def __init__(self) -> None:
        self.log: list[str] = []
        self.side = Stream("side", self.log)
        self.training = Stream("training", self.log)
        self.is_beside = False

    @contextlib.contextmanager
    def beside(self) -> Iterator[Stream]:
        """Work of the stream beside."""
        self.is_beside = True
        try:
            yield self.side
        finally:
            self.is_beside = False

    def current(self) -> Stream:
        """The stream of training."""
        return self.training

    def keep(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Note for whom a tensor is kept."""
        self.log.append(f"{tuple(tensor.shape)} kept for {stream.name}")


def ahead(loader: Any, streams: MadeUp | None = None, **options: Any) -> DeviceLoader:
    """A loader that is one batch ahead, without an accelerator."""
    return DeviceLoader(loader, CPU, Conversion(**options), streams=streams or MadeUp())


# --- the formula ---------------------------------------------------------------------------------


@pytest.mark.parametrize("to", [None, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "given", [torch.uint8, torch.uint16, torch.float32, torch.float16, torch.bfloat16]
)
def test_pictures_become_what_the_plain_formula_says(
    given: torch.dtype, to: torch.dtype | None
) -> None:
    """To the bit: scaled by what stands for 1.0, less mean, over std, rounded once."""
    x = noise((2, 3, 4, 5), given)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    tops: dict[torch.dtype, float] = {torch.uint8: 255.0, torch.uint16: 65535.0}
    v = x.to(torch.float32) / tops[given] if given in tops else x.to(torch.float32)
    expected = ((v - mean) / std).to(to or (torch.float32 if given in tops else given))
    made = converted(x, dtype=to, mean=MEAN, std=STD)
    assert made.dtype == expected.dtype
    assert torch.equal(made, expected)


def test_normalising_in_half_precision_would_be_another_result() -> None:
    """So the last step rounds, and no other."""
    x = noise((2, 3, 4, 5), torch.uint8)
    half = (x.half() / 255 - 0.45) / 0.225
    assert not torch.equal(converted(x, dtype=torch.float16, mean=0.45, std=0.225), half)


def test_double_precision_stays_double() -> None:
    """Nothing is lost of float64."""
    x = noise((2, 3, 4, 5), torch.float64)
    assert torch.equal(converted(x, mean=0.1, std=0.3), (x - 0.1) / 0.3)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"dtype": torch.float32}, lambda v: v),
        ({"mean": 0.5}, lambda v: v - 0.5),
        ({"std": 0.25}, lambda v: v / 0.25),
        ({"mean": [0.5], "std": 0.25}, lambda v: (v - 0.5) / 0.25),
        ({"mean": 0.5, "std": STD}, lambda v: (v - 0.5) / torch.tensor(STD).view(1, 3, 1, 1)),
    ],
)
def test_mean_is_0_and_std_is_1_where_not_given(
    options: dict[str, Any], expected: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """One number counts for all channels; dtype alone scales to 0..1."""
    x = noise((2, 3, 4, 5), torch.uint8)
    assert torch.equal(converted(x, **options), expected(x.float() / 255))


def test_volumes_have_their_channels_in_dimension_1_too() -> None:
    """(N, C, D, H, W) is normalised channel by channel."""
    x = noise((2, 2, 3, 4, 5), torch.uint16)
    made = converted(x, mean=(0.25, 0.5), std=(1.0, 0.2))
    assert torch.equal(made[:, 1], (x[:, 1].float() / 65535 - 0.5) / torch.tensor(0.2))


def test_single_samples_have_their_channels_first() -> None:
    """With ``batch_size=None`` no dimension of samples comes before."""
    loader = fork(Pictures(2), batch_size=None)
    (first, _), _ = loader.to("cpu", mean=MEAN)
    expected = Pictures()[0][0].float() / 255 - torch.tensor(MEAN).view(3, 1, 1)
    assert torch.equal(first, expected)


def test_channels_last_stays() -> None:
    """What a convolution is fast with is not undone, nor copied to be so."""
    x = noise((2, 3, 4, 5), torch.uint8).contiguous(memory_format=torch.channels_last)
    made = converted(x, dtype=torch.float16, mean=MEAN, std=STD)
    assert made.is_contiguous(memory_format=torch.channels_last)


def test_what_the_dataset_keeps_is_not_changed() -> None:
    """A float picture is normalised in memory of its own, also where nothing moves."""
    x = noise((2, 3, 4, 5), torch.float32)
    before = x.clone()
    converted(x, mean=MEAN, std=STD)
    assert torch.equal(x, before)


def test_shapes_and_dtypes_on_another_device() -> None:
    """The meta device computes nothing, and checks all the rest."""
    loader = fork(Pictures(4), batch_size=2)
    for images, labels in loader.to("meta", dtype=torch.bfloat16, mean=MEAN, std=STD):
        assert (images.device.type, images.dtype, images.shape) == (
            "meta",
            torch.bfloat16,
            (2, 3, 4, 6),
        )
        assert (labels.device.type, labels.dtype) == ("meta", torch.int64)


# --- which tensors -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(4),
        torch.ones(4),
        torch.ones(4, 7),
        noise((4, 5, 6), torch.uint8),
        torch.ones(4, 1, 5, 6, dtype=torch.bool),
        torch.ones(4, 3, 5, 6, dtype=torch.int64),
        torch.ones(4, 3, 5, 6, dtype=torch.int16),
    ],
    ids=["labels", "targets", "features", "masks", "bool", "class numbers", "int16"],
)
def test_what_is_no_picture_is_left_alone(tensor: torch.Tensor) -> None:
    """The very same tensor comes out, though there is something to convert."""
    assert converted({"x": tensor}, dtype=torch.float16, mean=MEAN, std=STD)["x"] is tensor


def test_without_anything_to_do_nothing_is_copied() -> None:
    """On the CPU a batch is the same object, containers included."""
    batch = {"image": noise((2, 3, 4, 5), torch.uint8), "more": [torch.arange(2), "text"]}
    (first, _) = loader_of(batch).to("cpu")
    assert first is batch


Pair = namedtuple("Pair", ["image", "label"])


@dataclass
class Record:
    """An object of somebody's own."""

    image: torch.Tensor


def test_nested_batches_keep_their_shape() -> None:
    """Tuples, lists, mappings and named tuples are gone through; other objects are left alone."""
    image, label = noise((2, 3, 4, 5), torch.uint8), torch.arange(2)
    own = Record(image)
    batch: OrderedDict[str, Any] = OrderedDict(
        pair=Pair(image, label), views=[image, (image, "text")], own=own, nothing=None, array=b"1"
    )
    made = converted(batch, dtype=torch.float32)
    scaled = image.float() / 255
    assert type(made) is OrderedDict
    assert type(made["pair"]) is Pair
    assert torch.equal(made["pair"].image, scaled)
    assert made["pair"].label is label
    assert torch.equal(made["views"][0], scaled)
    assert torch.equal(made["views"][1][0], scaled)
    assert made["views"][1][1] == "text"
    assert made["own"] is own
    assert own.image is image
    assert batch["views"][0] is image  # the batch itself is as it was


def test_an_object_that_knows_how_to_move_moves_itself() -> None:
    """The lengths in a packed sequence belong to the CPU, though it is a named tuple."""
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    made = Conversion()([packed], torch.device("meta"))[0]
    assert isinstance(made, PackedSequence)
    assert made.data.device.type == "meta"
    assert made.batch_sizes.device.type == "cpu"


def test_only_names_the_pictures() -> None:
    """Masks that look like pictures stay, and pictures may have any shape."""
    batch = {
        "image": noise((2, 3, 4, 5), torch.uint8),
        "mask": noise((2, 1, 4, 5), torch.uint8),
        "signal": noise((2, 3, 9), torch.float32),
    }
    made = converted(batch, dtype=torch.float16, mean=MEAN, only=["image", "signal"])
    assert made["mask"] is batch["mask"]
    assert (made["image"].dtype, made["signal"].dtype) == (torch.float16, torch.float16)
    with pytest.raises(OptionError, match="1 channels"):  # without, the mask is taken for one
        converted(batch, mean=MEAN)


@pytest.mark.parametrize("only", [0, "image", (0, "image")])
def test_only_takes_positions_and_names(only: Any) -> None:
    """Of a named tuple either."""
    image = noise((2, 3, 4, 5), torch.uint8)
    made = converted(Pair(image, image), dtype=torch.float16, only=only)
    assert made.image.dtype == torch.float16
    assert made.label is image


# --- refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dtype": torch.int32}, "dtype=int32"),
        ({"dtype": torch.uint8}, "dtype=uint8"),
        ({"dtype": "float32"}, "dtype='float32'"),
        ({"mean": "0.5"}, "mean='0.5'"),
        ({"mean": []}, r"mean=\[\]"),
        ({"mean": True}, "mean=True"),
        ({"mean": [0.5, None]}, "mean="),
        ({"std": float("nan")}, "std=nan"),
        ({"std": (0.5, 0.0)}, r"std=\(0.5, 0.0\): numbers above 0"),
        ({"mean": (0.1, 0.2), "std": STD}, "different numbers of channels"),
        ({"dtype": torch.float32, "only": True}, "only=True"),
        ({"dtype": torch.float32, "only": []}, r"only=\[\]"),
        ({"only": "image"}, "nothing tells to what"),
    ],
)
def test_nonsense_is_refused_by_name(options: dict[str, Any], text: str) -> None:
    """Before anything is loaded."""
    with pytest.raises(OptionError, match=text):
        fork(Made()).to("cpu", **options)


def test_channels_that_do_not_fit_name_the_tensor() -> None:
    """Which entry, its dtype and shape, and how many channels it has."""
    batch = {"views": [noise((2, 1, 4, 5), torch.uint8)]}
    text = r"batch\['views'\]\[0\] is uint8 of shape \(2, 1, 4, 5\), with 1 channels"
    with pytest.raises(OptionError, match=text):
        next(iter(loader_of(batch).to("cpu", mean=MEAN, std=STD)))
    with pytest.raises(OptionError, match=r"batch\.image is float32"):
        converted(Pair(noise((2, 4, 4, 5), torch.float32), 0), std=STD)


def test_a_mean_of_bytes_is_refused() -> None:
    """Means such as 123.7 belong to values from 0 to 255; the result would be one flat colour."""
    image = noise((2, 3, 4, 5), torch.uint8)
    with pytest.raises(OptionError, match="divide both by 255"):
        converted(image, mean=(123.7, 116.3, 103.5), std=(58.4, 57.1, 57.4))
    hounsfield = noise((2, 1, 4, 5), torch.float32)
    assert torch.equal(converted(hounsfield, mean=-500.0), hounsfield + 500)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16])
@pytest.mark.parametrize("std", [58.4, (0.2, 57.1, 0.2)])
def test_a_std_of_bytes_is_refused(dtype: torch.dtype, std: Any) -> None:
    """No values from 0 to 1 vary by more than 1; all pictures would be nearly the same."""
    top = torch.iinfo(dtype).max
    with pytest.raises(OptionError, match=rf"std=.*divide both by {top}"):
        converted(noise((2, 3, 4, 5), dtype), mean=MEAN, std=std)
    hounsfield = noise((2, 3, 4, 5), torch.float32)
    assert torch.equal(converted(hounsfield, std=400.0), hounsfield / 400)
    converted(noise((2, 3, 4, 5), dtype), mean=1, std=1)  # the last that are taken


@pytest.mark.parametrize("batch", [(torch.ones(2, 3, 4, 5),), torch.ones(2, 3, 4, 5)])
def test_only_must_be_there(batch: Any) -> None:
    """A name that is wrong would silently leave the pictures as they are."""
    with pytest.raises(OptionError, match=r"no entry 'image'; there are: 0|has no entries"):
        converted(batch, dtype=torch.float16, only="image")


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were two GPUs."""
    found = Accelerator(kind="cuda", count=2, name="Made-Up 1", reason="")
    monkeypatch.setattr(device_module, "accelerator", lambda: found)


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("cuda", "cuda"),
        ("cuda:1", "cuda:1"),
        (1, "cuda:1"),
        (torch.device("cuda", 0), "cuda:0"),
        ("cpu", "cpu"),
        ("cpu:0", "cpu"),
        ("meta", "meta"),
    ],
)
def test_a_device_is_named_as_torch_does(device: Any, expected: str) -> None:
    """By name, number or object."""
    assert find_device(device) == torch.device(expected)


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize("device", ["cuda:2", 2, -1, "mps", "xpu:0", "gpu", None, True, 1.5])
def test_a_device_that_is_not_there_is_refused(device: Any) -> None:
    """And what is there is said."""
    with pytest.raises(OptionError, match=r"'cuda:0' to 'cuda:1' \(Made-Up 1\) and 'cpu'"):
        find_device(device)


@pytest.mark.parametrize("device", ["cuda", 0, "mps"])
def test_without_an_accelerator_there_is_the_cpu(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text says so."""
    monkeypatch.setattr(device_module, "accelerator", lambda: None)
    with pytest.raises(OptionError, match="no accelerator, only 'cpu'"):
        fork(Made()).to(device)


# --- one ahead -----------------------------------------------------------------------------------


def test_training_waits_on_its_stream_before_memory_is_kept_for_it() -> None:
    """And the next batch is on its way before this one is handed out."""
    streams = MadeUp()
    batches = iter(ahead(fork(Pictures(6), batch_size=2), streams, dtype=torch.float32))
    assert streams.log == []  # nothing starts before the workers have
    next(batches)
    kept = ["(2, 3, 4, 6) kept for training", "(2,) kept for training"]
    assert streams.log[:3] == ["side records 0", "side records 1", "training waits for 0"]
    assert sorted(streams.log[3:]) == kept
    streams.log.clear()
    next(batches)
    assert streams.log[:2] == ["side records 2", "training waits for 1"]
    next(batches)
    with pytest.raises(StopIteration):
        next(batches)
    assert [line for line in streams.log if "records" in line] == ["side records 2"]


def test_samples_are_not_made_on_the_stream_beside() -> None:
    """A dataset that computes on the device does so on the stream of training."""
    streams = MadeUp()
    seen = []

    class Looks(Made):
        def __getitem__(self, index: int) -> int:
            seen.append(streams.is_beside)
            return index

    assert len(list(ahead(fork(Looks(), batch_size=1), streams))) == 4
    assert seen == [False] * 4


def test_what_was_computed_on_a_device_waits_for_its_turn() -> None:
    """Another stream may still be at work on it; sparse tensors have no memory to keep."""
    streams = MadeUp()
    batch = {"x": noise((2, 3, 4, 5), torch.uint8), "s": torch.eye(2).to_sparse()}
    made = next(iter(ahead(loader_of(batch), streams, dtype=torch.float32)))
    assert streams.log == []
    assert made["x"].dtype == torch.float32


class Closed:
    """A batch of somebody's own that moves itself; nobody sees its tensors."""

    __slots__ = ("beside", "streams")

    def __init__(self, streams: MadeUp) -> None:
        self.streams = streams
        self.beside: bool | None = None

    def pin_memory(self) -> Closed:
        """As torch asks for."""
        return self

    def to(self, device: torch.device) -> Closed:
        """Note on which stream it is moved."""
        self.beside = self.streams.is_beside
        return self


class Open(Closed):
    """Its tensors are attributes like any other."""

    def __init__(self, streams: MadeUp) -> None:
        super().__init__(streams)
        self.x = torch.ones(7)


@pytest.mark.parametrize(("kind", "is_beside"), [(Closed, False), (Open, True)])
def test_what_hides_its_tensors_moves_at_its_turn(kind: type[Closed], is_beside: bool) -> None:
    """They could not be kept for training, so their memory would be used again too early."""
    streams = MadeUp()
    part = kind(streams)
    (batch, *_) = ahead(loader_of({"deep": [part]}), streams)
    assert batch["deep"][0] is part
    assert part.beside is is_beside
    assert ("(7,) kept for training" in streams.log) is is_beside


def test_memory_that_is_read_is_held_until_it_was_read() -> None:
    """A worker would write its next batch where a copy is still under way."""
    streams = MadeUp()
    batches = iter(ahead(fork(Pictures(8), batch_size=2), streams, dtype=torch.float32))
    loaded: list[weakref.ref[torch.Tensor]] = []
    send = Conversion.__call__

    def note(self: Conversion, batch: Any, device: torch.device) -> Any:
        loaded.append(weakref.ref(batch[0]))
        streams.log.append("sent")
        return send(self, batch, device)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Conversion, "__call__", note)
        next(batches)
        streams.side.events[0].is_over = False
        next(batches)
        next(batches)
        assert loaded[0]() is not None
        streams.side.events[0].is_over = True
        next(batches)
        assert loaded[0]() is None


class Copied(torch.Tensor):
    """Notes how it is copied."""

    how: bool | None = None

    def to(self, *args: Any, **options: Any) -> Any:
        """Copy, and note it."""
        Copied.how = options["non_blocking"]
        return super().to(*args, **options)


@pytest.mark.parametrize("is_pinned", [True, False])
def test_only_pinned_memory_is_not_waited_for(
    is_pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other memory may change while it is read."""
    monkeypatch.setattr(Copied, "is_pinned", lambda self: is_pinned)
    Conversion()(torch.ones(2).as_subclass(Copied), torch.device("meta"))
    assert Copied.how is is_pinned


def test_the_side_stream_of_torch_is_left_as_it_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after an error, and on a device that is not the current one."""
    calls: list[Any] = []

    class Torch:
        Stream = staticmethod(lambda device: f"new on {device}")

        class accelerator:  # noqa: N801 - named as in torch
            current_device_index = staticmethod(lambda: 0)
            current_stream = staticmethod(lambda device: f"stream of {device}")
            set_stream = staticmethod(calls.append)
            set_device_index = staticmethod(calls.append)

        device = torch.device
        Tensor = torch.Tensor

    monkeypatch.setattr(device_module, "torch", Torch)
    assert SideStream(torch.device("cuda")).device == torch.device("cuda:0")
    streams = SideStream(torch.device("cuda:1"))
    with pytest.raises(ZeroDivisionError), streams.beside() as side:
        calls.append("work")
        raise ZeroDivisionError
    assert side == "new on cuda:1"
    assert calls == [side, "work", "stream of cuda:1", 0]


def test_without_a_number_each_loop_is_on_the_device_current_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found out when it begins; on the same device, loops share one stream beside."""
    current = 0

    class Torch:
        Stream = staticmethod(lambda device: object())
        device = torch.device

        class accelerator:  # noqa: N801 - named as in torch
            current_device_index = staticmethod(lambda: current)

    monkeypatch.setattr(device_module, "torch", Torch)
    loader = DeviceLoader(None, torch.device("cuda"), Conversion())
    fixed = DeviceLoader(None, torch.device("cuda:0"), Conversion())
    seen = []
    for current in (0, 0, 1):  # noqa: B007 - read by what stands for torch
        loader._stage()
        fixed._stage()
        seen.append((loader._streams, fixed._streams))
    (first, own), (second, same_own), (third, still_own) = seen
    assert first is second
    assert own is same_own is still_own
    devices = [each.device for each in (first, third) if each is not None]
    assert devices == [torch.device("cuda:0"), torch.device("cuda:1")]


# --- what is counted -----------------------------------------------------------------------------


def one_ahead(loader: Any) -> Iterator[Any]:
    """What people write: it asks the loader for the next batch before it hands out this one."""
    batches = iter(loader)
    ready = next(batches)
    for following in batches:
        yield ready
        ready = following
    yield ready


def test_a_plain_prefetcher_loses_a_batch_in_a_resume() -> None:
    """The loader counts what it has handed out, and the loop has not seen all of that."""
    loader = fork(Pictures(12), batch_size=3)
    batches = one_ahead(loader)
    next(batches)
    assert loader.state_dict()["consumed"] == 6
    moved = ahead(loader)
    next(iter(moved))
    assert moved.state_dict()["consumed"] == 3


WORKERS: dict[str, dict[str, Any]] = {
    "none": {},
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "engine": "thread"},
    "staying": {"num_workers": 2, "persistent_workers": True},
}


@pytest.mark.parametrize("asked", ["it", "its loader"])
@pytest.mark.parametrize("workers", WORKERS.values(), ids=WORKERS)
def test_a_run_can_be_resumed_at_every_step(workers: dict[str, Any], asked: str) -> None:
    """Of three epochs; what is on its way to the device does not count."""
    options: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 5}
    loader = fork(Augmented(10), **options, **workers)
    moved = ahead(loader)
    source = moved if asked == "it" else loader
    states, batches = [source.state_dict()], []
    for epoch in range(3):
        for step, batch in enumerate(moved):
            batches.append(batch)
            states.append(source.state_dict())
            assert source.epoch == epoch + (step == 3)
    plain = fork(Augmented(10), **options)
    assert same(batches, [batch for _ in range(3) for batch in plain])
    for step, state in enumerate(states):
        resumed = ahead(fork(Augmented(10), **options))
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        rest = [batch for _ in range(3 - step // 4) for batch in resumed]
        assert same(rest, batches[step:])


@pytest.mark.parametrize("workers", WORKERS.values(), ids=WORKERS)
def test_a_loop_that_is_left_goes_on_where_it_was(workers: dict[str, Any]) -> None:
    """In the same loader: the batch on its way is made again, and then the next epoch."""
    loader = ahead(fork(Pictures(10), batch_size=3, shuffle=True, **workers))
    for step, _ in enumerate(loader):
        if step == 1:
            break
    state = loader.state_dict()
    assert (state["epoch"], state["consumed"]) == (0, 6)
    loader.load_state_dict(state)
    plain = fork(Pictures(10), batch_size=3, shuffle=True)
    assert same(list(loader), list(plain)[2:])
    loader.set_epoch(4)
    plain.set_epoch(4)
    assert same(list(loader), list(plain))


def test_a_sampler_without_length_ends_as_without_a_device() -> None:
    """The loader learns of the end in advance; the loop does when it comes there."""
    order = type("Order", (), {"__iter__": lambda self: iter(range(5))})
    plain = fork(Pictures(5), batch_size=2, sampler=order())
    loader = ahead(fork(Pictures(5), batch_size=2, sampler=order()))
    for _, _ in zip(plain, loader, strict=True):
        assert loader.state_dict() == plain.state_dict()
    assert loader.state_dict() == plain.state_dict()
    with pytest.raises(TypeError, match="no length"):
        len(loader)


class Broken(Pictures):
    """Some samples cannot be loaded."""

    bad: tuple[int, ...] = (4,)

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise ValueError(f"{index} is no picture")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", WORKERS.values(), ids=WORKERS)
def test_an_error_comes_after_the_batches_before_it(workers: dict[str, Any]) -> None:
    """And the loop goes on after it, as one without a device does."""
    loader = ahead(fork(Broken(10), batch_size=2, **workers))
    batches = iter(loader)
    seen = [next(batches)[1].tolist(), next(batches)[1].tolist()]
    assert seen == [[0, 1], [2, 3]]
    assert loader.state_dict()["consumed"] == 4
    with pytest.raises(SampleError, match="4 is no picture"):
        next(batches)
    assert loader.state_dict()["consumed"] == 4  # a resume tries it again
    assert [batch[1].tolist() for batch in batches] == [[6, 7], [8, 9]]
    assert loader.state_dict()["epoch"] == 1


@pytest.mark.parametrize("workers", WORKERS.values(), ids=WORKERS)
def test_failures_are_told_when_their_batch_is_handed_out(workers: dict[str, Any]) -> None:
    """Not while it is on its way; a batch of which nothing is left is passed over."""

    class Worse(Broken):
        bad = (3, 4, 5)

    loader = ahead(fork(Worse(8), batch_size=2, on_error="skip", **workers))
    batches = iter(loader)
    next(batches)
    assert loader.failures == ()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert next(batches)[1].tolist() == [2]
        assert [failed.index for failed in loader.failures] == [3]
        assert loader.state_dict()["failed"] == 1
        assert next(batches)[1].tolist() == [6, 7]
        assert [failed.index for failed in loader.failures] == [3, 4, 5]
        assert list(batches) == []


def test_an_error_on_the_way_comes_at_its_batch() -> None:
    """A picture that does not fit is the third batch, and only the third one fails."""

    class Odd(Pictures):
        def __getitem__(self, index: int) -> Any:
            return noise((1 if index == 4 else 3, 4, 6), torch.uint8), index

    batches = iter(ahead(fork(Odd(7), batch_size=1), mean=MEAN, std=STD))
    seen = [int(next(batches)[1]) for _ in range(4)]
    with pytest.raises(OptionError, match=r"batch\[0\] is uint8 of shape \(1, 1, 4, 6\)"):
        next(batches)
    seen += [int(label) for _, label in batches]
    assert seen == [0, 1, 2, 3, 5, 6]


class Deadly(Pictures):
    """Its worker ends at a sample, after the batches before have arrived."""

    def __getitem__(self, index: int) -> Any:
        if index == 4:
            time.sleep(0.5)
            os._exit(3)
        return super().__getitem__(index)


def test_a_worker_that_dies_ends_the_loop_after_the_batches_before() -> None:
    """And the loop is broken from there on, not before."""
    loader = ahead(fork(Deadly(10), batch_size=2, num_workers=1))
    batches = iter(loader)
    assert [next(batches)[1].tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(WorkerDiedError, match="4"):
        next(batches)
    assert loader.state_dict()["consumed"] == 4
    with pytest.raises(WorkerError, match="ended with the error before"):
        next(batches)


class Interrupted(Pictures):
    """Ctrl-C comes while a sample is loaded, once."""

    def __init__(self) -> None:
        super().__init__(10)
        self.is_waiting = True

    def __getitem__(self, index: int) -> Any:
        if index == 4 and self.is_waiting:
            self.is_waiting = False
            raise KeyboardInterrupt
        return super().__getitem__(index)


def test_ctrl_c_is_not_kept_and_loses_no_batch_that_has_come() -> None:
    """It comes out at once, while the batch before is still here, and is handed out next."""
    loader = ahead(fork(Interrupted(), batch_size=2))
    batches = iter(loader)
    next(batches)
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert loader.state_dict()["consumed"] == 2
    assert next(batches)[1].tolist() == [2, 3]
    assert loader.state_dict()["consumed"] == 4
    assert next(batches)[1].tolist() == [6, 7]  # as without a device: what was at work is gone
    assert loader.state_dict()["consumed"] == 8


def test_ctrl_c_while_a_batch_is_handed_out_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accounts and batches stay together, whenever it comes."""
    streams = MadeUp()
    loader = ahead(fork(Pictures(8), batch_size=2), streams)
    batches = iter(loader)
    next(batches)
    with monkeypatch.context() as patch:

        def interrupt(event: Event) -> None:
            raise KeyboardInterrupt

        patch.setattr(streams.training, "wait_event", interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
    states = []
    for step, (_, labels) in enumerate(batches, 1):
        assert labels.tolist() == [2 * step, 2 * step + 1]
        states.append(loader.state_dict()["consumed"])
    assert states == [4, 6, 0]


def test_ctrl_c_while_a_batch_is_sent_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader has given it and will not give it again, so it is moved at its turn."""
    batches = iter(loader := ahead(fork(Pictures(8), batch_size=2)))
    next(batches)

    def interrupt(self: Conversion, batch: Any, device: torch.device) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Conversion, "__call__", interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
    states = []
    for step, (_, labels) in enumerate(batches, 1):
        assert labels.tolist() == [2 * step, 2 * step + 1]
        states.append(loader.state_dict()["consumed"])
    assert states == [4, 6, 0]


@pytest.mark.parametrize("follows", ["a batch", "the end", "an error"])
def test_a_loop_that_is_left_is_gone_at_once(follows: str) -> None:
    """With what was on its way, also an error: else workers would stay until a collection."""

    def collate(samples: list[Any]) -> Any:
        if follows == "an error" and samples[0][1] == 4:
            try:
                samples[0][1] // 0
            except ZeroDivisionError as error:
                raise ValueError("no batch") from error
        return samples

    count = 4 if follows == "the end" else 6
    gc.collect()
    gc.disable()
    try:
        loader = fork(Pictures(count), batch_size=2, collate_fn=collate)
        batches = iter(ahead(loader))
        next(batches)
        next(batches)
        gone = loader._newest
        assert gone is not None
        assert gone() is not None
        del batches
        assert gone() is None
    finally:
        gc.enable()


def test_an_error_that_was_kept_says_where_it_was_raised() -> None:
    """The lines of the user's own code, also those of its cause."""

    def collate(samples: list[Any]) -> Any:
        try:
            return samples[0][1] // 0
        except ZeroDivisionError as error:
            raise ValueError("no batch") from error

    batches = iter(ahead(fork(Pictures(4), batch_size=2, collate_fn=collate)))
    with pytest.raises(ValueError, match="no batch") as raised:
        next(batches)
    notes = "".join(raised.value.__notes__)
    assert 'raise ValueError("no batch") from error' in notes
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert "return samples[0][1] // 0" in "".join(raised.value.__cause__.__notes__)


def test_the_workers_end_with_the_loop() -> None:
    """Those of a loop that was broken off, while a batch was on its way."""
    loader = ahead(fork(Pictures(20), batch_size=2, num_workers=2))
    for _ in loader:
        workers = {use.role for use in loader.memory().processes}
        assert {"worker 0", "worker 1"} <= workers
        break
    assert not {use.role for use in loader.memory().processes} & {"worker 0", "worker 1"}


# --- what it costs -------------------------------------------------------------------------------


def test_figures_are_those_of_what_was_loaded_and_handed_out() -> None:
    """Bytes travel: float32 on the device is four times as many."""
    loader = ahead(fork(Pictures(6), batch_size=2), dtype=torch.float32)
    batches = iter(loader)
    images, _ = next(batches)
    stats = loader.stats()
    assert images.nbytes == 4 * 2 * 72
    assert (stats.batches, stats.samples, stats.bytes) == (1, 2, 2 * (72 + 8))
    assert len(list(batches)) == 2
    assert loader.stats().batches == 3


def test_a_meter_times_a_loop_over_it() -> None:
    """Waiting in ``next()`` has all of it: loading, and what is done on the way."""
    meter = sharedds.StallMeter(ahead(fork(Pictures(8), batch_size=2)))
    assert len([1 for _ in meter]) == len(meter) == 4
    assert meter.report().steps == 3
    assert meter.state_dict()["epoch"] == 1


def test_a_replay_keeps_batches_on_the_device() -> None:
    """They are moved once; a loop over them costs neither loading nor copying."""
    loader = fork(Pictures(8), batch_size=2).to("meta", dtype=torch.float16)
    kept = loader.replay(2)
    batches = list(kept)
    assert [batch[0].device.type for batch in batches] == ["meta"] * 4
    assert batches[0][0] is batches[2][0]
    assert batches[0][0].dtype == torch.float16
    assert loader.state_dict()["consumed"] == 0


# --- among others --------------------------------------------------------------------------------


def test_what_else_is_asked_the_loader_answers() -> None:
    """Length, plan, attributes of a DataLoader; and what is no attribute of either is none."""
    loader = fork(Pictures(7), batch_size=2)
    moved = loader.to("cpu", dtype=torch.float32)
    assert len(moved) == 4
    assert moved.plan is loader.plan
    assert moved.batch_size == 2
    assert moved.dataset is loader.dataset
    assert moved.device == CPU
    assert "DeviceLoader on cpu" in repr(moved)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = moved.nothing


def test_the_loader_is_still_one_of_torch() -> None:
    """Frameworks look for a DataLoader, which has no ``to`` of its own that would be hidden."""
    assert not hasattr(DataLoader, "to")
    assert isinstance(fork(Made()), DataLoader)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_it_can_be_copied_and_sent(copied: Callable[[Any], Any]) -> None:
    """Before a loop and after one; streams stay where they are."""
    moved = fork(Pictures(4), batch_size=2).to("cpu", dtype=torch.float32, mean=MEAN, std=STD)
    expected = list(moved)
    other = copied(moved)
    other.set_epoch(0)
    assert same(list(other), expected)


def test_a_look_whether_it_can_be_iterated_costs_nothing() -> None:
    """Lightning calls ``iter()`` on what is no DataLoader, and throws it away."""
    loader = fork(Pictures(4), batch_size=2, shuffle=True)
    moved = loader.to("cpu")
    iter(moved)
    assert loader.epoch == 0
    assert same(list(moved), list(fork(Pictures(4), batch_size=2, shuffle=True)))


GPU = Path(__file__).parents[1] / "benchmarks" / "gpu"


@pytest.mark.parametrize("name", ["overlap", "memory_reuse"])
def test_what_is_run_on_a_gpu_runs_on_a_cpu(name: str) -> None:
    """A few steps, so that it does not rot where there is no GPU."""
    command = [sys.executable, str(GPU / f"{name}.py"), "--device", "cpu", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=unmeasured())
    assert done.returncode == 0, done.stderr
    assert "cpu" in done.stdout


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("to", [torch.float32, torch.float16, torch.bfloat16])
def test_a_gpu_computes_the_same(to: torch.dtype) -> None:
    """Within the last bit or two: dividing by one number is multiplying there."""
    loader = fork(Pictures(64), batch_size=8, num_workers=2, start_method="forkserver")
    moved = loader.to("cuda", dtype=to, mean=MEAN, std=STD)
    for (images, labels), number in zip(moved, range(8), strict=True):
        assert images.device.type == "cuda"
        assert labels.tolist() == list(range(8 * number, 8 * number + 8))
        plain = torch.stack([Pictures()[label][0] for label in labels.tolist()])
        expected = converted(plain, dtype=to, mean=MEAN, std=STD)
        torch.testing.assert_close(images.cpu(), expected)
