"""Datasets of other formats become stores: the same bytes, labels and columns, in their order."""

import csv
import io
import json
import os
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from foreign_datasets import jpeg, tar_of, wds_members

from sharedds import Store, pack
from sharedds.doors.recognise import recognise
from sharedds.doors.tar_members import expand
from sharedds.errors import DecodeError, MissingExtraError, OptionError, SourceError


def test_a_webdataset_keeps_bytes_labels_and_columns(tmp_path: Path) -> None:
    """Every member of a sample is a field: the picture byte for byte, .cls the label, JSON read."""
    tar_of(tmp_path / "a.tar", wds_members(4))
    report = pack(tmp_path / "a.tar", tmp_path / "a.lmdb")
    store = Store(tmp_path / "a.lmdb")
    assert (report.samples, report.failed_count, report.layout) == (4, 0, "webdataset")
    assert [bytes(store.read("image", i)) for i in range(4)] == [jpeg(i) for i in range(4)]
    assert [store[i]["label"] for i in range(4)] == [0, 1, 2, 0]
    assert store[3]["json"] == {"n": 3}
    assert store[3]["txt"] == "caption 3"
    np.testing.assert_array_equal(store[3]["boxes"], np.full((3, 4), 3, np.float32))
    assert store.key(3) == "d/0003.jpg"


def test_a_compressed_tar_is_read_as_a_plain_one(tmp_path: Path) -> None:
    """Compression changes nothing but the reading."""
    tar_of(tmp_path / "a.tar", wds_members(3))
    tar_of(tmp_path / "b.tar.gz", wds_members(3), mode="w:gz")
    digests = {pack(tmp_path / n, tmp_path / f"{n}.lmdb").samples for n in ("a.tar", "b.tar.gz")}
    assert digests == {3}
    one, two = Store(tmp_path / "a.tar.lmdb"), Store(tmp_path / "b.tar.gz.lmdb")
    assert [bytes(one.read("image", i)) for i in range(3)] == [
        bytes(two.read("image", i)) for i in range(3)
    ]


def test_equal_keys_of_two_shards_are_told_apart(tmp_path: Path) -> None:
    """Shards that count from 0 each keep all samples: the name of the shard comes first."""
    for name in ("s-0.tar", "s-1.tar"):
        tar_of(tmp_path / name, wds_members(2))
    report = pack(f"{tmp_path}/s-{{0..1}}.tar", tmp_path / "out.lmdb")
    store = Store(tmp_path / "out.lmdb")
    assert [store.key(i) for i in range(4)] == [
        f"s-{shard}/d/000{number}.jpg" for shard in (0, 1) for number in (0, 1)
    ]
    assert "several tars" in report.warnings[0]


def test_a_cut_tar_gives_its_whole_samples_and_is_reported(tmp_path: Path) -> None:
    """What lies before the damage is packed; the tar itself is among the failures."""
    tar_of(tmp_path / "a.tar", wds_members(4))
    data = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(data[: len(data) // 2])
    report = pack(tmp_path / "a.tar", tmp_path / "out.lmdb")
    assert 0 < report.samples < 4
    assert [("a.tar" in name, "damaged tar" in why) for name, why in report.failed] == [
        (True, True)
    ]
    with pytest.raises(DecodeError, match="damaged tar"):
        pack(tmp_path / "a.tar", tmp_path / "strict.lmdb", on_error="raise")


def test_members_that_are_no_samples_lead_nowhere(tmp_path: Path) -> None:
    """Links and devices are passed over and counted; names that climb are only names."""
    members = wds_members(1)
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            member = tarfile.TarInfo(f"../../{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("evil.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    report = pack(path, tmp_path / "out" / "x.lmdb")
    assert report.samples == 1
    assert [item["reason"] for item in report.left_out] == ["links, devices and sparse files"]
    assert sorted(os.listdir(tmp_path)) == ["a.tar", "out"]


def test_a_member_that_claims_more_than_the_file_allocates_nothing(tmp_path: Path) -> None:
    """A header that says 7 GiB is refused as damage, not believed."""
    member = tarfile.TarInfo("a.jpg")
    member.size = 7 << 30
    (tmp_path / "a.tar").write_bytes(member.tobuf() + jpeg(0).ljust(4096, b"\0"))
    with pytest.raises(DecodeError, match="damaged tar"):
        pack(tmp_path / "a.tar", tmp_path / "out.lmdb")


def test_a_header_of_any_size_is_not_believed(tmp_path: Path) -> None:
    """Extended headers are read before a member is seen; one of gigabytes is damage."""
    header = tarfile.TarInfo("././@PaxHeader")
    header.type, header.size = tarfile.XHDTYPE, 3 << 30
    path = tmp_path / "a.tar"
    path.write_bytes(header.tobuf(tarfile.USTAR_FORMAT))
    os.truncate(path, 4 << 30)  # a hole: the bytes are there, and take no room
    with pytest.raises((DecodeError, SourceError)):
        pack(path, tmp_path / "out.lmdb")


def test_a_sample_without_label_or_picture_is_reported(tmp_path: Path) -> None:
    """Neither is filled in by guessing."""
    members = [m for m in wds_members(3) if m[0] not in ("d/0001.cls", "d/0002.jpg")]
    tar_of(tmp_path / "a.tar", members)
    report = pack(tmp_path / "a.tar", tmp_path / "out.lmdb")
    assert report.samples == 1
    reasons = [reason for _, reason in report.failed]
    assert reasons == ["its .cls is missing", "no picture among its members"]
    assert report.files == report.samples + report.failed_count


def test_an_interrupted_pack_of_tars_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run finds what the first one stored, and ends with the same digest."""
    from sharedds.doors.job import DoorJob
    from sharedds.store import writer

    tar_of(tmp_path / "a.tar", wds_members(6))
    whole = pack(tmp_path / "a.tar", tmp_path / "whole.lmdb").digest
    monkeypatch.setattr(writer, "_COMMIT", 1)
    take = DoorJob._take
    taken: list[None] = []

    def stop(*args: object) -> None:
        if len(taken) == 3:
            raise KeyboardInterrupt
        taken.append(take(*args))  # type: ignore[arg-type]

    monkeypatch.setattr(DoorJob, "_take", stop)
    with pytest.raises(KeyboardInterrupt):
        pack(tmp_path / "a.tar", tmp_path / "out.lmdb")
    monkeypatch.setattr(DoorJob, "_take", take)
    report = pack(tmp_path / "a.tar", tmp_path / "out.lmdb")
    assert (report.resumed, report.samples, report.digest) == (3, 6, whole)


def test_braces_stand_for_shards() -> None:
    """Ranges keep their zeros, lists their order, and several multiply."""
    assert expand("a-{08..10}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar"]
    assert expand("{x,y}-{0..1}") == ["x-0", "x-1", "y-0", "y-1"]


def _table(path: Path, rows: list[list[object]], mark: str = ",") -> None:
    with open(path, "w", newline="") as file:
        csv.writer(file, delimiter=mark).writerows(rows)


def _pictures(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"{number}.jpg").write_bytes(jpeg(number))


@pytest.mark.parametrize("mark", [",", "\t", ";"], ids=["comma", "tab", "semicolon"])
def test_the_columns_of_a_table_become_columns(tmp_path: Path, mark: str) -> None:
    """Whole numbers, measures and text each keep their kind; labels get numbers by name."""
    _pictures(tmp_path / "im", 3)
    rows: list[list[object]] = [
        [f"im/{n}.jpg", "dog" if n else "cat", n, n / 2, f"n{n}"] for n in range(3)
    ]
    _table(tmp_path / "t.csv", [["path", "label", "age", "dose", "note"], *rows], mark)
    report = pack(tmp_path / "t.csv", tmp_path / "out.lmdb")
    store = Store(tmp_path / "out.lmdb")
    assert (report.samples, list(store.classes or ())) == (3, ["cat", "dog"])
    sample = store[2]
    assert (sample["label"], sample["age"], sample["dose"], sample["note"]) == (1, 2, 1.0, "n2")
    assert bytes(store.read("image", 2)) == jpeg(2)


def test_a_table_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    """Paths that leave the folder, by dots or by a link, are refused; so is one named twice."""
    _pictures(tmp_path / "data", 1)
    _pictures(tmp_path / "secret", 1)
    (tmp_path / "data" / "link.jpg").symlink_to(tmp_path / "secret" / "0.jpg")
    names = ["0.jpg", "../secret/0.jpg", "link.jpg", str(tmp_path / "secret/0.jpg"), "./0.jpg"]
    _table(tmp_path / "data" / "t.csv", [["path", "label"], *([name, 1] for name in names)])
    report = pack(tmp_path / "data" / "t.csv", tmp_path / "out.lmdb")
    assert report.samples == 1
    assert [why.split(" ")[0] for _, why in report.failed] == ["lies"] * 3 + ["its"]


def _coco(root: Path, **changes: object) -> Path:
    _pictures(root / "train2017", 2)
    (root / "annotations").mkdir()
    content = {
        "images": [{"id": 7, "file_name": "1.jpg"}, {"id": 3, "file_name": "0.jpg"}],
        "annotations": [
            {"id": 1, "image_id": 3, "category_id": 18, "bbox": [1, 2, 3, 4], "area": 12.0},
            {"id": 2, "image_id": 3, "category_id": 1, "bbox": [0, 0, 5, 6], "iscrowd": 1},
        ],
        "categories": [{"id": 18, "name": "dog"}, {"id": 1, "name": "person"}],
        **changes,
    }
    path = root / "annotations" / "instances_train2017.json"
    path.write_text(json.dumps(content))
    return path


def test_boxes_of_coco_become_arrays(tmp_path: Path) -> None:
    """Corners instead of sizes, classes numbered from 0 by category id, pictures found beside."""
    _coco(tmp_path / "coco")
    pack(tmp_path / "coco", tmp_path / "out.lmdb")
    store = Store(tmp_path / "out.lmdb")
    assert list(store.classes or ()) == ["person", "dog"]
    assert store[0]["boxes"].shape == (0, 4)
    np.testing.assert_array_equal(store[1]["boxes"], [[1, 2, 4, 6], [0, 0, 5, 6]])
    np.testing.assert_array_equal(store[1]["box_labels"], [1, 0])
    np.testing.assert_array_equal(store[1]["box_crowd"], [0, 1])
    assert store[1]["image_id"] == 3
    assert bytes(store.read("image", 1)) == jpeg(0)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"annotations": [{"image_id": 99, "category_id": 1}]}, "image 99, which is not there"),
        ({"images": [{"id": 1, "file_name": "a"}, {"id": 1, "file_name": "b"}]}, "the same id"),
        ({"images": {"id": 1}}, "not annotations as COCO"),
    ],
    ids=["lost annotation", "id twice", "other types"],
)
def test_annotations_that_contradict_themselves_are_refused(
    tmp_path: Path, changes: dict[str, object], text: str
) -> None:
    """Rather than boxes on the wrong picture."""
    path = _coco(tmp_path / "coco", **changes)
    with pytest.raises(DecodeError, match=text):
        pack(path, tmp_path / "out.lmdb")


def test_json_of_huge_depth_is_refused(tmp_path: Path) -> None:
    """It neither overflows the stack nor passes."""
    path = _coco(tmp_path / "coco")
    deep = b"[" * 1_000_000
    path.write_bytes(b'{"images": [], "annotations": ' + deep)
    with pytest.raises(DecodeError):
        pack(path, tmp_path / "out.lmdb")


def _voc(root: Path, text: str = "") -> None:
    _pictures(root / "JPEGImages", 2)
    (root / "Annotations").mkdir()
    (root / "ImageSets" / "Main").mkdir(parents=True)
    (root / "ImageSets" / "Main" / "train.txt").write_text("1\n")
    for number in range(2):
        box = f"<xmin>{number}</xmin><ymin>2</ymin><xmax>9</xmax><ymax>8</ymax>"
        thing = f"<object><name>{'dog' if number else 'cat'}</name><difficult>1</difficult>"
        (root / "Annotations" / f"{number}.xml").write_text(
            f"{text}<annotation><filename>{number}.jpg</filename>{thing}"
            f"<bndbox>{box}</bndbox></object></annotation>"
        )


def test_boxes_of_voc_become_arrays(tmp_path: Path) -> None:
    """As the file has them; a split is one of its lists."""
    _voc(tmp_path / "voc")
    pack(tmp_path / "voc", tmp_path / "all.lmdb")
    store = Store(tmp_path / "all.lmdb")
    np.testing.assert_array_equal(store[1]["boxes"], [[1, 2, 9, 8]])
    assert (store[1]["box_labels"].tolist(), list(store.classes or ())) == ([1], ["cat", "dog"])
    assert store[0]["box_difficult"].tolist() == [1]
    assert pack(tmp_path / "voc", tmp_path / "one.lmdb", split="train").samples == 1
    with pytest.raises(OptionError, match="no such list"):
        pack(tmp_path / "voc", tmp_path / "two.lmdb", split="../../../etc/passwd")


def test_entities_in_annotations_are_refused(tmp_path: Path) -> None:
    """A document type is where XML bombs begin; annotations have none."""
    _voc(tmp_path / "voc", '<!DOCTYPE a [<!ENTITY b "c">]>')
    with pytest.raises(SourceError, match="document type"):
        pack(tmp_path / "voc", tmp_path / "out.lmdb")


def test_formats_are_told_by_content(tmp_path: Path) -> None:
    """A tar is one under any name; a file that is nothing known is refused with the choices."""
    tar_of(tmp_path / "whatever.bin", wds_members(1))
    assert recognise(str(tmp_path / "whatever.bin")) == "webdataset"
    (tmp_path / "x.tar").write_bytes(b"no tar at all")
    with pytest.raises(OptionError, match="webdataset, csv, coco"):
        recognise(str(tmp_path / "x.tar"))


def test_options_of_folders_are_refused_for_other_formats(tmp_path: Path) -> None:
    """And the other way round: nothing is ignored in silence."""
    tar_of(tmp_path / "a.tar", wds_members(1))
    with pytest.raises(OptionError, match="shuffle_seed is an option for folders"):
        pack(tmp_path / "a.tar", tmp_path / "out.lmdb", shuffle_seed=1)
    with pytest.raises(OptionError, match="allow_pickle has no meaning"):
        pack(tmp_path / "a.tar", tmp_path / "out.lmdb", allow_pickle=True)
    _pictures(tmp_path / "folder", 1)
    with pytest.raises(OptionError, match="split goes with datasets"):
        pack(tmp_path / "folder", tmp_path / "out.lmdb", split="train")


def test_a_dry_run_counts_and_writes_nothing(tmp_path: Path) -> None:
    """Its estimate is near what a run makes."""
    tar_of(tmp_path / "a.tar", wds_members(5))
    report = pack(tmp_path / "a.tar", tmp_path / "out.lmdb", dry_run=True)
    assert (report.samples, report.files) == (5, 5)
    assert os.listdir(tmp_path) == ["a.tar"]


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parquet without pyarrow: one line with the command that installs it."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pyarrow.compute", raising=False)
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    with pytest.raises(MissingExtraError, match=r"pip install 'sharedds\[arrow\]'"):
        pack(tmp_path / "a.parquet", tmp_path / "out.lmdb")
