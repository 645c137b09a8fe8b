"""MDS, LitData and LMDB of other programs: read whole, damaged, and hostile."""

import json
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from foreign_datasets import datum, jpeg, litdata_of, lmdb_of, mds_of, picture

from sharedds import Store, pack
from sharedds.codecs import decode
from sharedds.errors import DecodeError, OptionError, SourceError, StoreFormatError

_COLUMNS = [("image", "jpeg"), ("label", "int"), ("note", "str"), ("boxes", "ndarray:float32")]


def _mds_rows(count: int) -> list[list[bytes]]:
    return [
        [
            jpeg(number),
            struct.pack("<q", number % 2),
            f"n{number}".encode(),
            bytes([2 << 2, number + 1, 4]) + np.full((number + 1, 4), number, "<f4").tobytes(),
        ]
        for number in range(count)
    ]


def _bytes_of(path: Path) -> list[bytes]:
    store = Store(path)
    return [bytes(store.read("image", number)) for number in range(len(store))]


def test_mds_keeps_bytes_labels_and_columns(tmp_path: Path) -> None:
    """Numbers, text and arrays with their shape before them become columns."""
    mds_of(tmp_path / "mds", _mds_rows(3), _COLUMNS)
    report = pack(tmp_path / "mds", tmp_path / "out.lmdb")
    sample = Store(tmp_path / "out.lmdb")[2]
    assert (report.layout, report.samples) == ("mds", 3)
    assert _bytes_of(tmp_path / "out.lmdb") == [jpeg(number) for number in range(3)]
    assert (sample["label"], sample["note"]) == (0, "n2")
    np.testing.assert_array_equal(sample["boxes"], np.full((3, 4), 2, np.float32))


@pytest.mark.parametrize("at", [0, 4, 12, 20], ids=["count", "first", "third", "sizes"])
def test_a_shard_whose_numbers_lie_is_reported(tmp_path: Path, at: int) -> None:
    """Counts, offsets and sizes are held against the file before anything is read by them."""
    shard = mds_of(tmp_path / "mds", _mds_rows(3), _COLUMNS)
    data = bytearray(shard.read_bytes())
    data[at : at + 4] = b"\xf0\xff\xff\xff"
    shard.write_bytes(data)
    with pytest.raises((SourceError, DecodeError), match="damaged"):
        pack(tmp_path / "mds", tmp_path / "out.lmdb")


def test_a_shard_in_another_folder_is_refused(tmp_path: Path) -> None:
    """The index of a dataset names files of its own folder only."""
    mds_of(tmp_path / "mds", _mds_rows(1), _COLUMNS)
    index = json.loads((tmp_path / "mds" / "index.json").read_text())
    index["shards"][0]["raw_data"]["basename"] = "../../etc/passwd"
    (tmp_path / "mds" / "index.json").write_text(json.dumps(index))
    with pytest.raises(DecodeError, match="outside of its folder"):
        pack(tmp_path / "mds", tmp_path / "out.lmdb")


def test_litdata_keeps_bytes_labels_and_leaves(tmp_path: Path) -> None:
    """The keys of the dict are the names; bytes that are pictures are found by looking."""
    rows = [[jpeg(n), struct.pack("<q", n), struct.pack("<d", n / 2)] for n in range(3)]
    litdata_of(tmp_path / "lit", rows, [("picture", "bytes"), ("label", "int"), ("x", "float")])
    report = pack(tmp_path / "lit", tmp_path / "out.lmdb")
    sample = Store(tmp_path / "out.lmdb")[1]
    assert (report.layout, report.samples) == ("litdata", 3)
    assert _bytes_of(tmp_path / "out.lmdb") == [jpeg(number) for number in range(3)]
    assert (sample["label"], sample["x"]) == (1, 0.5)


def test_pixels_without_a_format_become_png(tmp_path: Path) -> None:
    """What has no file format is kept without loss, and sizes that lie are refused."""
    values = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    good = struct.pack("<3I", 3, 2, 3) + b"RGB" + values.tobytes()
    bad = struct.pack("<3I", 1 << 20, 1 << 20, 3) + b"RGB" + values.tobytes()
    litdata_of(tmp_path / "lit", [[good], [bad]], [("image", "pil")])
    report = pack(tmp_path / "lit", tmp_path / "out.lmdb")
    assert (report.samples, report.failed_count) == (1, 1)
    np.testing.assert_array_equal(decode(_bytes_of(tmp_path / "out.lmdb")[0]), values)


def test_pickles_are_read_on_request_only(tmp_path: Path) -> None:
    """The refusal says why and how; with the flag plain pairs are read, and nothing else."""
    pairs = {f"{n:04}".encode(): pickle.dumps((jpeg(n), n)) for n in range(3)}
    lmdb_of(tmp_path / "l", {**pairs, b"__keys__": pickle.dumps(list(pairs))})
    with pytest.raises(OptionError, match=r"can run any code.*--allow-pickle"):
        pack(tmp_path / "l", tmp_path / "out.lmdb")
    report = pack(tmp_path / "l", tmp_path / "out.lmdb", allow_pickle=True)
    assert (report.samples, Store(tmp_path / "out.lmdb")[2]["label"]) == (3, 2)


def test_a_pickle_that_runs_code_is_refused_even_on_request(tmp_path: Path) -> None:
    """Naive: pickle.loads calls what the pickle names. Here nothing may be named."""
    marker = tmp_path / "ran"
    payload = b"cos\nsystem\n(S'touch " + str(marker).encode() + b"'\ntR."
    pickle.loads(payload)
    assert marker.exists()
    marker.unlink()
    lmdb_of(tmp_path / "l", {b"0": pickle.dumps((jpeg(0), 0)), b"1": b"\x80\x04" + payload})
    report = pack(tmp_path / "l", tmp_path / "out.lmdb", allow_pickle=True)
    assert (report.samples, report.failed_count) == (1, 1)
    assert "names os.system" in report.failed[0][1]
    assert not marker.exists()


def test_lmdb_of_pictures_under_any_keys(tmp_path: Path) -> None:
    """Keys are kept, with an ending; meta_info.txt of BasicSR says the names."""
    lmdb_of(tmp_path / "l", {b"0001": jpeg(0), b"0002": picture(1, "PNG")})
    assert pack(tmp_path / "l", tmp_path / "one.lmdb").layout == "lmdb"
    store = Store(tmp_path / "one.lmdb")
    assert [store.key(number) for number in range(2)] == ["0001.jpg", "0002.png"]
    (tmp_path / "l" / "meta_info.txt").write_text("0001.JPEG (20,24,3) 1\n0002.png (21,24,3) 1\n")
    pack(tmp_path / "l", tmp_path / "two.lmdb")
    assert Store(tmp_path / "two.lmdb").key(0) == "0001.JPEG"


def test_lmdb_of_pictures_with_texts(tmp_path: Path) -> None:
    """As text recognition has it: image-000000001 and label-000000001."""
    entries = {b"num-samples": b"2"}
    for number in (1, 2):
        entries[b"image-%09d" % number] = jpeg(number)
        entries[b"label-%09d" % number] = f"word{number}".encode()
    lmdb_of(tmp_path / "l", entries)
    assert pack(tmp_path / "l", tmp_path / "out.lmdb").samples == 2
    assert Store(tmp_path / "out.lmdb")[1]["text"] == "word2"


def test_lmdb_of_caffe(tmp_path: Path) -> None:
    """Coded pictures keep their bytes; pixels, blue first, become PNG with red first."""
    pixels = np.arange(3 * 2 * 4, dtype=np.uint8).reshape(3, 2, 4)
    entries = {b"0": datum(5, jpeg(0)), b"1": datum(300, pixels.tobytes(), (3, 2, 4))}
    lmdb_of(tmp_path / "l", entries)
    report = pack(tmp_path / "l", tmp_path / "out.lmdb")
    store = Store(tmp_path / "out.lmdb")
    assert [store[number]["label"] for number in range(2)] == [5, 300]
    assert bytes(store.read("image", 0)) == jpeg(0)
    shown = decode(bytes(store.read("image", 1)))
    np.testing.assert_array_equal(shown, pixels[::-1].transpose(1, 2, 0))
    assert "blue, green, red" in report.warnings[0]


def test_a_damaged_lmdb_is_refused(tmp_path: Path) -> None:
    """Its pages are checked as they are followed; liblmdb would end the process."""
    lmdb_of(tmp_path / "l", {f"{n:04}".encode(): jpeg(n) for n in range(20)})
    path = tmp_path / "l" / "data.mdb"
    data = bytearray(path.read_bytes())
    for page in range(2, len(data) // 4096):
        data[page * 4096 + 8 : page * 4096 + 16] = b"\xff" * 8
    path.write_bytes(data)
    with pytest.raises((DecodeError, StoreFormatError), match="damaged"):
        pack(tmp_path / "l", tmp_path / "out.lmdb")


def test_a_store_is_not_packed_as_foreign_lmdb(tmp_path: Path) -> None:
    """It is told from others, and what to do is said."""
    mds_of(tmp_path / "mds", _mds_rows(1), _COLUMNS)
    pack(tmp_path / "mds", tmp_path / "out.lmdb")
    with pytest.raises(OptionError, match="is a store already"):
        pack(tmp_path / "out.lmdb", tmp_path / "again.lmdb")
