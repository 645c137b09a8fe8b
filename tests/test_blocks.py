"""Blocks of numbers as bytes, both ways."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs import LZ4, Blosc, Shuffle, Zstd

from sharedds.codecs import BLOCK_CODECS, BlockDecoder, decode_block, encode_block
from sharedds.errors import DecodeError, OptionError

COMPRESSED = ("lz4", "zstd", "blosc")
DTYPES = ("u1", "i1", "<u2", ">i2", "<i4", "<f4", "<f8", "?", "<c8")


def block(dtype: str = "<i2", shape: tuple[int, ...] = (5, 6, 7)) -> np.ndarray[Any, Any]:
    """Return numbers that compress well."""
    count = int(np.prod(shape))
    return (np.arange(count) // 3).astype(dtype).reshape(shape)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("codec", BLOCK_CODECS)
def test_every_block_comes_back_as_it_was(codec: str, dtype: str, shuffle: bool) -> None:
    """Values, dtype and shape survive each codec, shuffled or not."""
    array = block(dtype)
    data = encode_block(array, codec, shuffle=shuffle)
    again = decode_block(data, codec, dtype=dtype, shape=array.shape, shuffle=shuffle)
    np.testing.assert_array_equal(again, array)
    assert (again.dtype, again.flags.c_contiguous) == (array.dtype, True)


@pytest.mark.parametrize("codec", BLOCK_CODECS)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,)])
def test_blocks_without_sides_or_elements(codec: str, shape: tuple[int, ...]) -> None:
    """Scalars and empty arrays are blocks as well."""
    array = np.zeros(shape, "<f4")
    data = encode_block(array, codec, shuffle=True)
    assert decode_block(data, codec, dtype="<f4", shape=shape, shuffle=True).shape == shape


@pytest.mark.parametrize("codec", BLOCK_CODECS)
def test_views_of_any_layout_are_encoded_in_c_order(codec: str) -> None:
    """Transposed and strided arrays are stored by value."""
    array = block().transpose(2, 0, 1)[::2]
    data = encode_block(array, codec, shuffle=True)
    again = decode_block(data, codec, dtype=array.dtype, shape=array.shape, shuffle=True)
    np.testing.assert_array_equal(again, array)


def test_shuffle_makes_smooth_blocks_smaller() -> None:
    """Grouping bytes by significance is worth its time where values change slowly."""
    array = (1100 + np.random.default_rng(0).integers(0, 50, (32, 32, 32))).astype("<i4")
    plain, shuffled = (len(encode_block(array, "lz4", shuffle=s)) for s in (False, True))
    assert shuffled < 0.8 * plain


@pytest.mark.parametrize("dtype", ["<i2", "<f4", "<f8"])
def test_shuffled_bytes_have_the_usual_order(dtype: str) -> None:
    """Other programs undo the shuffle as they know it: the bytes are those of numcodecs."""
    array = block(dtype)
    expected = Shuffle(array.itemsize).encode(array).tobytes()
    assert encode_block(array, "raw", shuffle=True) == expected


def test_a_raw_block_is_a_view_that_cannot_be_written() -> None:
    """Raw blocks are handed out without a copy, and never let the caller change the store."""
    data = bytearray(encode_block(block(), "raw", shuffle=False))
    array = decode_block(data, "raw", dtype="<i2", shape=(5, 6, 7), shuffle=False)
    assert np.shares_memory(array, np.frombuffer(data, np.uint8))
    assert not array.flags.writeable


def test_a_raw_block_at_an_odd_address_is_copied() -> None:
    """Arrays are always aligned, wherever their bytes lie."""
    data = memoryview(b"x" + encode_block(block("<f8"), "raw", shuffle=False))[1:]
    array = decode_block(data, "raw", dtype="<f8", shape=(5, 6, 7), shuffle=False)
    assert array.flags.aligned
    np.testing.assert_array_equal(array, block("<f8"))


@pytest.mark.parametrize("codec", COMPRESSED)
def test_decoded_blocks_belong_to_the_caller(codec: str) -> None:
    """Compressed blocks become new arrays that may be changed."""
    data = encode_block(block(), codec, shuffle=True)
    assert decode_block(data, codec, dtype="<i2", shape=(5, 6, 7), shuffle=True).flags.writeable


@pytest.mark.parametrize("codec", BLOCK_CODECS)
def test_a_block_of_another_size_is_refused(codec: str) -> None:
    """More or fewer bytes than the shape asks for is damage, and both numbers are named."""
    data = encode_block(block(), codec, shuffle=False)
    for shape, expected in (((5, 6, 6), "360"), ((5, 6, 8), "480"), ((1000, 1000), "2,000,000")):
        with pytest.raises(DecodeError, match=f"420 bytes, expected {expected}"):
            decode_block(data, codec, dtype="<i2", shape=shape, shuffle=False)


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("size", [0, 1, 4, 5, 6, 9, 20, -1])
def test_a_cut_block_is_refused(codec: str, size: int) -> None:
    """Every cut of a compressed block is an error."""
    data = encode_block(block(), codec, shuffle=False)[:size]
    with pytest.raises(DecodeError, match=codec):
        decode_block(data, codec, dtype="<i2", shape=(5, 6, 7), shuffle=False)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_hostile_length_allocates_nothing(codec: str) -> None:
    """A block that claims two gigabytes costs no memory; the library alone would allocate them."""
    if codec == "lz4":
        data = struct.pack("<I", 0x7FFF_FFFF) + LZ4().encode(bytes(100))[4:]
    elif codec == "blosc":
        data = struct.pack("<BBBBIII", 2, 1, 33, 1, 0x7FFF_FFFF, 0x7FFF_FFFF, 120) + bytes(104)
    else:
        data = b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", 0x7FFF_FFFF) + bytes(20)
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="claims 2,147,483,647 bytes"):
            decode_block(data, codec, dtype="u1", shape=(100,), shuffle=True)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_zstd_lengths_of_every_width_are_read() -> None:
    """The frame header stores the length in one, two, four or eight bytes."""
    for count in (1, 255, 256, 65_791, 65_792, 200_000):
        array = np.zeros(count, np.uint8)
        data = Zstd().encode(array)
        assert decode_block(data, "zstd", dtype="u1", shape=(count,), shuffle=False).size == count
    wide = b"\x28\xb5\x2f\xfd\xc0\x58" + struct.pack("<Q", 2**60) + bytes(9)
    with pytest.raises(DecodeError, match="claims 1,152,921,504,606,846,976"):
        decode_block(wide, "zstd", dtype="u1", shape=(4,), shuffle=False)


@pytest.mark.parametrize("data", [b"\x28\xb5\x2f\xfd\x00\x58\x01\x00\x00", b"\x50\x2a\x4d\x18" * 3])
def test_zstd_without_a_length_is_refused(data: bytes) -> None:
    """Streams that do not declare their size, and skippable frames, are not blocks."""
    with pytest.raises(DecodeError, match="zstd block"):
        decode_block(data, "zstd", dtype="u1", shape=(4,), shuffle=False)


@given(codec=st.sampled_from(COMPRESSED), at=st.integers(0, 10**6), byte=st.integers(0, 255))
@settings(max_examples=300, deadline=None)
def test_changed_blocks_decode_or_are_refused(codec: str, at: int, byte: int) -> None:
    """Whatever byte is changed, the answer is an array of the right shape or a DecodeError."""
    data = bytearray(encode_block(block(), codec, shuffle=True))
    data[at % len(data)] = byte
    try:
        array = decode_block(data, codec, dtype="<i2", shape=(5, 6, 7), shuffle=True)
    except DecodeError:
        return
    assert (array.shape, array.dtype) == ((5, 6, 7), np.dtype("<i2"))


@given(codec=st.sampled_from(BLOCK_CODECS), data=st.binary(max_size=200), shuffle=st.booleans())
@settings(max_examples=300, deadline=None)
def test_garbage_is_refused(codec: str, data: bytes, shuffle: bool) -> None:
    """Random bytes never raise anything but DecodeError."""
    try:
        decode_block(data, codec, dtype="<i4", shape=(3, 4), shuffle=shuffle)
    except DecodeError:
        return
    assert codec != "raw" or len(data) == 48


# --- frames ---------------------------------------------------------------------------------------

FRAME = bytes.fromhex(
    "020121028001000080010000e700000014000000c000000000000001010102020203030304040405"
    "05050606060707070808080909090a0a0a0b0b0b0c0c0c0d0d0d0e0e0e0f0f0f1010101111111212"
    "121313131414141515151616161717171818181919191a1a1a1b1b1b1c1c1c1d1d1d1e1e1e1f1f1f"
    "2020202121212222222323232424242525252626262727272828282929292a2a2a2b2b2b2c2c2c2d"
    "2d2d2e2e2e2f2f2f3030303131313232323333333434343535353636363737373838383939393a3a"
    "3a3b3b3b3c3c3c3d3d3d3e3e3e3f3f3f0b0000001f000100a7500000000000"
)


def test_a_frame_of_today_is_read_for_ever() -> None:
    """What was written once decodes to the same numbers."""
    found = decode_block(FRAME, "blosc", dtype="<i2", shape=(12, 16), shuffle=True)
    np.testing.assert_array_equal(found, (np.arange(192) // 3).reshape(12, 16))


@pytest.mark.parametrize("shape", [(3,), (5, 6, 7), (70, 70, 70)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_frames_are_those_of_blosc(shape: tuple[int, ...], *, shuffle: bool) -> None:
    """Any program with Blosc reads them, and says itself whether they are shuffled."""
    array = block(shape=shape)
    data = encode_block(array, "blosc", shuffle=shuffle, effort=5)
    assert np.array_equal(np.frombuffer(Blosc().decode(data), "<i2"), array.reshape(-1))


@pytest.mark.parametrize(
    "given",
    [
        Blosc("zstd", shuffle=1),
        Blosc("blosclz", shuffle=1),
        Blosc("lz4", shuffle=2),
    ],
    ids=["zstd", "blosclz", "bits"],
)
def test_frames_of_another_kind_are_refused(given: Blosc) -> None:
    """What is read is what is written: LZ4, and bytes that are shuffled whole."""
    array = block(shape=(16, 16, 16))
    with pytest.raises(DecodeError, match="header"):
        decode_block(given.encode(array), "blosc", dtype="<i2", shape=array.shape, shuffle=True)


@pytest.mark.parametrize("at", range(16))
def test_a_header_that_differs_from_the_one_before_is_looked_at(at: int) -> None:
    """Headers that are alike are checked once, and no other one is taken for them."""
    array = block(shape=(16, 16, 16))
    good = encode_block(array, "blosc", shuffle=True, effort=5)
    decoder = BlockDecoder("blosc", "<i2", shuffle=True)
    for change in (0x01, 0x10, 0x80, 0xFF):
        bad = bytearray(good)
        bad[at] ^= change
        try:
            for found in decoder.decode_all([good, bytes(bad)], [array.shape] * 2):
                assert found.shape == array.shape
        except DecodeError:
            continue
        assert at == 2, "only a flag may be another one"


def test_options_that_do_not_exist_are_named() -> None:
    """An unknown codec, a dtype of objects and a negative side are mistakes of the caller."""
    with pytest.raises(OptionError, match="codec='gzip': blocks are coded as raw, lz4, zstd"):
        encode_block(block(), "gzip", shuffle=False)
    with pytest.raises(OptionError, match="codec='gzip'"):
        decode_block(b"", "gzip", dtype="u1", shape=(1,), shuffle=False)
    with pytest.raises(OptionError, match="object"):
        encode_block(np.array([None]), "raw", shuffle=False)
    with pytest.raises(OptionError, match="negative"):
        decode_block(b"", "raw", dtype="u1", shape=(-1, -1), shuffle=False)


_CODED = """
import sys, numpy as np
from sharedds.codecs import decode_block, encode_block
array = (np.arange(9 << 16) // 7).astype("<i2")
for codec in ("lz4", "blosc"):
    data = encode_block(array, codec, shuffle=True, effort=5)
    again = decode_block(data, codec, dtype="<i2", shape=array.shape, shuffle=True)
    print(np.array_equal(again, array))
"""


@pytest.mark.parametrize(
    "variable", ["BLOSC_SHUFFLE=BITSHUFFLE", "BLOSC_COMPRESSOR=zstd", "BLOSC_TYPESIZE=4"]
)
def test_variables_of_the_environment_change_no_block(variable: str) -> None:
    """Numcodecs would let them: blocks of other kinds, decoded to other numbers or refused."""
    name, value = variable.split("=")
    command = [sys.executable, "-c", _CODED]
    done = subprocess.run(
        command, env={**os.environ, name: value}, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_a_long_block_is_always_the_same_bytes() -> None:
    """Also one of several parts, which threads of Blosc would put in any order."""
    array = np.random.default_rng(0).integers(0, 30, 1 << 21, np.uint8)
    assert len({encode_block(array, "blosc", shuffle=True, effort=5) for _ in range(12)}) == 1
