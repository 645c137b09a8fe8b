"""Which volumes of a folder make a case: told by names, or refused with what was seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharedds.errors import OptionError, SourceError
from sharedds.ingest.volumes.cases import Case, Description, Entry, Layout, stem_of
from sharedds.ingest.volumes.layouts import find_cases
from sharedds.ingest.volumes.table import cases_of_table, load_description, read_table


def entries(*paths: str) -> list[Entry]:
    """Return volumes of these names; those without an extension are series."""
    return [Entry(stem_of(path), path, (path,)) for path in paths]


def told(layout: Layout) -> dict[str, tuple[tuple[str, ...], str | None]]:
    """Return the paths of the images, and of the label, of each case."""

    def label(case: Case) -> str | None:
        return None if case.label is None else case.label.path

    return {case.name: (tuple(e.path for e in case.images), label(case)) for case in layout.cases}


def left(layout: Layout) -> dict[str, str]:
    """Return why each volume is in no case."""
    return {entry.path: reason for entry, reason in layout.left_out}


@pytest.mark.parametrize(
    ("path", "stem"),
    [
        ("a/x.nii.gz", "a/x"),
        ("x.NII", "x"),
        ("x.v2.nrrd", "x.v2"),
        ("x.npz", "x"),
        ("series", "series"),
        ("x.dcm", "x.dcm"),
    ],
)
def test_extensions_of_volumes_are_no_part_of_a_name(path: str, stem: str) -> None:
    """Both parts of .nii.gz go; what is no extension of a volume stays."""
    assert stem_of(path) == stem


def test_one_file_is_one_case() -> None:
    """In any folders, named by its path; also series."""
    layout = find_cases(entries("b/y.nii", "a.nii.gz", "b/series"))
    assert told(layout) == {
        "a": (("a.nii.gz",), None),
        "b/series": (("b/series",), None),
        "b/y": (("b/y.nii",), None),
    }
    assert layout.kind == "one file for each case"


@pytest.mark.parametrize(
    ("images", "labels"),
    [("images", "labels"), ("image", "mask"), ("imagesTr", "labelsTr"), ("Scans", "Segmentations")],
)
def test_folders_of_images_and_of_labels_are_paired_by_name(images: str, labels: str) -> None:
    """The case is called as the file, without the folder; a missing label is no error."""
    layout = find_cases(
        entries(f"{images}/a.nii", f"{images}/b.mha", f"{labels}/a.nii.gz", f"{labels}/c.nii")
    )
    assert told(layout) == {
        "a": ((f"{images}/a.nii",), f"{labels}/a.nii.gz"),
        "b": ((f"{images}/b.mha",), None),
    }
    assert left(layout) == {f"{labels}/c.nii": "a label without an image"}


def test_folders_of_a_split_keep_its_name() -> None:
    """train/images/a goes with train/labels/a, and images/val/a with labels/val/a."""
    layout = find_cases(entries("train/images/a.nii", "train/labels/a.nii", "images/val/a.nii"))
    assert told(layout) == {
        "train/a": (("train/images/a.nii",), "train/labels/a.nii"),
        "val/a": (("images/val/a.nii",), None),
    }


def test_labels_may_have_a_word_more_in_their_names() -> None:
    """volume-1 goes with segmentation-1, x with x_seg."""
    layout = find_cases(
        entries("img/volume-1.nii", "seg/segmentation-1.nii", "img/x.nii", "seg/x_seg.nii")
    )
    assert told(layout) == {
        "volume-1": (("img/volume-1.nii",), "seg/segmentation-1.nii"),
        "x": (("img/x.nii",), "seg/x_seg.nii"),
    }


def test_the_only_image_and_label_of_a_folder_go_together() -> None:
    """Whatever they are called: one patient has one folder for each."""
    layout = find_cases(entries("p1/image/ct", "p1/mask/s.nii", "p2/image/ct", "p2/mask/t.nii"))
    assert told(layout) == {
        "p1/ct": (("p1/image/ct",), "p1/mask/s.nii"),
        "p2/ct": (("p2/image/ct",), "p2/mask/t.nii"),
    }


def test_labels_that_fit_no_image_are_an_error() -> None:
    """Nothing is paired by order; the text shows one of each and the way out."""
    with pytest.raises(OptionError, match=r"labels/p\.nii.*images/a\.nii.*--labels"):
        find_cases(entries("images/a.nii", "images/b.nii", "labels/p.nii", "labels/q.nii"))


def test_what_lies_beside_the_folders_is_reported() -> None:
    """It is in no case, and not lost."""
    layout = find_cases(entries("images/a.nii", "labels/a.nii", "atlas.nii"))
    assert left(layout) == {"atlas.nii": "in no folder of images or labels"}


RAW = [f"imagesTr/p_{n:03d}_{c:04d}.nii.gz" for n in (1, 2) for c in (0, 1)]


def test_nnunet_raw_has_channels_and_leaves_test_images_out() -> None:
    """Numbers at the end are channels, named by dataset.json; imagesTs has no labels."""
    description = Description(channels=("T2", "ADC"))
    layout = find_cases(
        entries(*RAW, "labelsTr/p_001.nii.gz", "labelsTr/p_002.nii.gz", "imagesTs/q_0000.nii.gz"),
        description,
    )
    assert told(layout) == {
        "p_001": (tuple(RAW[:2]), "labelsTr/p_001.nii.gz"),
        "p_002": (tuple(RAW[2:]), "labelsTr/p_002.nii.gz"),
    }
    assert [case.channels for case in layout.cases] == [("T2", "ADC")] * 2
    assert "test images" in left(layout)["imagesTs/q_0000.nii.gz"]
    assert layout.kind == "nnU-Net raw"


def test_numbers_of_patients_are_no_channels() -> None:
    """Where labels have the same four digits, they tell cases apart."""
    layout = find_cases(entries("images/p_0001.nii", "images/p_0002.nii", "labels/p_0001.nii"))
    assert list(told(layout)) == ["p_0001", "p_0002"]


def test_the_decathlon_has_folders_without_channel_numbers() -> None:
    """ImagesTr with whole names: each file is a case."""
    layout = find_cases(entries("imagesTr/la_003.nii.gz", "labelsTr/la_003.nii.gz"))
    assert told(layout) == {"la_003": (("imagesTr/la_003.nii.gz",), "labelsTr/la_003.nii.gz")}


def test_a_case_that_lacks_a_channel_is_refused() -> None:
    """A batch of cases with two and with one channel could not be collated."""
    layout = find_cases(entries(*RAW[:3], "labelsTr/p_001.nii.gz", "labelsTr/p_002.nii.gz"))
    assert [case.problem for case in layout.cases] == [
        "",
        "channel 0001 missing, which other cases have",
    ]


def test_some_names_with_a_channel_number_are_an_error() -> None:
    """Which of them is a channel, nobody can tell."""
    with pytest.raises(OptionError, match=r"ends in the number of a channel.*q\.nii"):
        find_cases(entries("imagesTr/p_0000.nii", "imagesTr/q.nii", "labelsTr/p.nii"))


def test_modalities_of_a_patient_become_channels() -> None:
    """In the order of their names; the segmentation is the label."""
    layout = find_cases(
        entries(*(f"p{n}/{m}.nii.gz" for n in (1, 2) for m in ("t2", "t1", "flair", "seg")))
    )
    assert told(layout)["p1"] == (
        ("p1/flair.nii.gz", "p1/t1.nii.gz", "p1/t2.nii.gz"),
        "p1/seg.nii.gz",
    )
    assert layout.cases[0].channels == ("flair", "t1", "t2")


@pytest.mark.parametrize("mark", ["_", "-"])
def test_names_of_brats_are_understood(mark: str) -> None:
    """Each file repeats the name of its folder."""
    names = [f"B{mark}00{n}" for n in (1, 2)]
    layout = find_cases(
        entries(*(f"set/{p}/{p}{mark}{m}.nii.gz" for p in names for m in ("t1c", "t1n", "seg")))
    )
    assert list(told(layout)) == [f"set/{name}" for name in names]
    assert layout.cases[0].channels == ("t1c", "t1n")


def test_a_series_beside_a_segmentation_of_its_folder() -> None:
    """DICOM files right in the patient's folder have the folder's name."""
    layout = find_cases(entries("p1", "p1/seg.nii.gz", "p2", "p2/mask.nrrd"))
    assert told(layout) == {"p1": (("p1",), "p1/seg.nii.gz"), "p2": (("p2",), "p2/mask.nrrd")}


def test_a_patient_who_lacks_a_modality_is_refused() -> None:
    """The reason names it."""
    layout = find_cases(entries("p1/t1.nii", "p1/t2.nii", "p2/t1.nii"))
    assert [case.problem for case in layout.cases] == ["", "t2 missing, which other cases have"]


def test_modalities_beside_other_volumes_are_an_error() -> None:
    """Half of a folder understood would be half of it lost."""
    with pytest.raises(OptionError, match=r"t1, t2.*beside others.*atlas"):
        find_cases(entries("p1/t1.nii", "p1/t2.nii", "p1/atlas.nii"))


def test_folders_of_sites_are_no_patients() -> None:
    """Files of the same unknown names in two folders stay cases of their own."""
    layout = find_cases(entries("be/i2.nii", "be/f4.nii", "le/i2.nii", "le/f4.nii"))
    assert list(told(layout)) == ["be/f4", "be/i2", "le/f4", "le/i2"]


def test_a_label_may_lie_beside_its_image() -> None:
    """x_label goes with x; one without an image is reported."""
    layout = find_cases(entries("x.nii", "x_label.nii.gz", "y.nii", "z-seg.nii"))
    assert told(layout) == {"x": (("x.nii",), "x_label.nii.gz"), "y": (("y.nii",), None)}
    assert left(layout) == {"z-seg.nii": "a label without an image"}


def test_two_labels_of_one_image_are_an_error() -> None:
    """Which of them counts, nobody can tell."""
    with pytest.raises(OptionError, match=r"x_mask\.nii and x_seg\.nii would both be the label"):
        find_cases(entries("x.nii", "x_seg.nii", "x_mask.nii"))


def test_two_files_of_one_name_are_an_error() -> None:
    """x.nii and x.nii.gz cannot both be the case x."""
    with pytest.raises(OptionError, match=r"both be the case 'x'"):
        find_cases(entries("x.nii", "x.nii.gz"))


# --- what somebody wrote down ---


def table(folder: Path, text: str) -> Path:
    """Write a CSV file."""
    path = folder / "cases.csv"
    path.write_text(text)
    return path


def test_a_csv_names_cases_labels_groups_and_channels(tmp_path: Path) -> None:
    """Rows of one case are its channels; paths may have their extension or not."""
    path = table(
        tmp_path,
        "case,image,label,group,channel\n"
        "one,a/x.nii,seg/1.nii,siteA,T1\n"
        "one,./a/y.nii,,siteA,T2\n"
        ",series,,siteB,CT\n",
    )
    known = entries("a/x.nii", "a/y.nii", "seg/1.nii", "series", "spare.nii")
    layout = cases_of_table(str(path), read_table(str(path)), "/src", known)
    assert told(layout) == {
        "one": (("a/x.nii", "a/y.nii"), "seg/1.nii"),
        "series": (("series",), None),
    }
    assert [case.channels for case in layout.cases] == [("T1", "T2"), ("CT",)]
    assert [case.group for case in layout.cases] == ["siteA", "siteB"]
    assert left(layout) == {"spare.nii": "not named in the labels file"}


def test_a_csv_that_names_what_is_not_there_fails_that_case_alone(tmp_path: Path) -> None:
    """The other cases are packed."""
    path = table(tmp_path, "image\nx.nii\ngone.nii\n")
    layout = cases_of_table(str(path), read_table(str(path)), "/src", entries("x.nii"))
    assert [case.name for case in layout.cases] == ["gone", "x"]
    assert "gone.nii" in layout.cases[0].problem
    assert layout.cases[1].problem == ""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("path,label\na,1\n", "must name the column image"),
        ("image\n", "no rows"),
        ("image,label\n,x\n", "line 2: an image is expected"),
        ("image,age\nx,3\n", "the column 'age'"),
        ("case,image,label\na,x.nii,1\na,y.nii,2\n", "two values of label"),
        ("image\nx.nii\nx.nii.gz\n", "lines 2 and 3: without a case"),
    ],
)
def test_a_csv_that_makes_no_sense_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    """With the line or column."""
    path = str(table(tmp_path, text))
    with pytest.raises((OptionError, SourceError), match=reason):
        cases_of_table(path, read_table(path), "/src", entries("x.nii", "y.nii"))


@pytest.mark.parametrize(
    ("text", "channels", "classes"),
    [
        ('{"channel_names": {"0": "CT"}, "labels": {"background": 0, "liver": 1}}',
         ("CT",), {0: "background", 1: "liver"}),
        ('{"modality": {"0": "T2", "1": "ADC"}, "labels": {"0": "background", "1": "PZ"}}',
         ("T2", "ADC"), {0: "background", 1: "PZ"}),
        ('{"labels": {"whole": [1, 2], "core": 2}}', (), {2: "core"}),
        ("[1]", (), {}),
    ],
)  # fmt: skip
def test_dataset_json_names_channels_and_classes(
    tmp_path: Path, text: str, channels: tuple[str, ...], classes: dict[int, str]
) -> None:
    """Both ways round; regions have no number of their own."""
    path = tmp_path / "dataset.json"
    path.write_text(text)
    found = load_description(str(path))
    assert (found.channels, dict(found.classes)) == (channels, classes)
