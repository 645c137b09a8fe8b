"""Which volumes of a folder belong together: images, their channels, and their labels.

All of it is decided by names alone, so it is a pure function of what a scan found. What names do
not settle is an error that says what was seen; nothing is guessed.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from sharedds.errors import OptionError
from sharedds.ingest.listing import in_order
from sharedds.ingest.volumes.cases import Case, Description, Entry, Layout
from sharedds.text import printable

__all__ = ["find_cases"]

_CHANNEL = re.compile(r"_(\d{4})\Z")
_IMAGE_FOLDERS = {
    "image", "images", "img", "imgs", "imagestr", "imagests", "scan", "scans", "volume", "volumes",
}  # fmt: skip
_LABEL_FOLDERS = {
    "label", "labels", "labelstr", "labelsts", "mask", "masks", "seg", "segs", "segmentation",
    "segmentations", "annotation", "annotations", "gt", "groundtruth", "target", "targets",
}  # fmt: skip
_TEST_FOLDERS = {"imagests", "labelsts"}
_LABEL_WORD = r"(?:seg|segs|label|labels|mask|masks|segmentation|segmentations|gt|groundtruth)"
_LABEL_SUFFIX = re.compile(rf"(?:^|[_.\-]){_LABEL_WORD}\Z", re.I)
_LABEL_AFFIX = re.compile(rf"^{_LABEL_WORD}[_.\-]|(?:^|[_.\-]){_LABEL_WORD}\Z", re.I)
_IMAGE_AFFIX = re.compile(
    r"^(?:image|img|volume|vol|scan|ct|mr)[_.\-]|[_.\-](?:image|img|volume|vol|scan|ct|mr)\Z", re.I
)
_MODALITIES = {
    "adc", "bold", "cbf", "ct", "cta", "dwi", "fa", "flair", "image", "img", "md", "mr", "mri",
    "pd", "pdw", "pet", "scan", "suv", "swi", "t1", "t1c", "t1ce", "t1gd", "t1n", "t1w", "t2",
    "t2f", "t2star", "t2w", "tof", "volume",
}  # fmt: skip
_AS_CSV = "name cases in a CSV file with the columns case,image,label (labels=, --labels)"
_TEST_IMAGES = "test images of nnU-Net, which have no labels; pack this folder by itself"
_NO_IMAGE = "a label without an image"


def find_cases(entries: Iterable[Entry], description: Description | None = None) -> Layout:
    """Find the cases among the volumes of a folder.

    Args:
        entries: The volumes.
        description: Of ``dataset.json``, where there is one.

    Raises:
        OptionError: Names allow for several readings; the text says which.
    """
    known = sorted(entries, key=lambda entry: in_order(entry.name))
    channels = description.channels if description is not None else ()
    layout = _by_folders(known, channels) or _by_patients(known) or _one_each(known)
    return _checked(layout)


def _checked(layout: Layout) -> Layout:
    """Put the cases in order, and refuse names that two of them have."""
    cases = sorted(layout.cases, key=lambda case: in_order(case.name))
    for one, other in itertools.pairwise(cases):
        if one.name == other.name:
            paths = " and ".join(printable(case.images[0].path) for case in (one, other))
            raise OptionError(
                f"{paths} would both be the case {printable(one.name)!r}; rename one, or {_AS_CSV}"
            )
    return Layout(kind=layout.kind, cases=tuple(cases), left_out=layout.left_out)


# --- image and label folders, nnU-Net ---


def _side(entry: Entry) -> tuple[str, str]:
    """Return the folder that says what a volume is, in lower case, and the path without it."""
    parts = entry.name.split("/")
    for at, part in enumerate(parts[:-1]):
        if part.lower() in _IMAGE_FOLDERS | _LABEL_FOLDERS:
            return part.lower(), "/".join(parts[:at] + parts[at + 1 :])
    return "", entry.name


def _by_folders(entries: Sequence[Entry], names: tuple[str, ...]) -> Layout | None:
    sides = [_side(entry) for entry in entries]
    found = {folder for folder, _ in sides}
    raw = "imagestr" in found
    if not raw and not (found & _IMAGE_FOLDERS and found & _LABEL_FOLDERS):
        return None
    images: dict[str, Entry] = {}
    labels: dict[str, Entry] = {}
    left_out: list[tuple[Entry, str]] = []
    for entry, (folder, key) in zip(entries, sides, strict=True):
        if raw and folder in _TEST_FOLDERS:
            left_out.append((entry, _TEST_IMAGES))
        elif not folder:
            left_out.append((entry, "in no folder of images or labels"))
        else:
            side = images if folder in _IMAGE_FOLDERS else labels
            if key in side:
                paths = " and ".join(printable(each.path) for each in (side[key], entry))
                raise OptionError(
                    f"{paths} would both be {printable(key)!r}; rename one, or {_AS_CSV}"
                )
            side[key] = entry
    grouped = _channels(images, labels, names, raw=raw)
    pairs, lonely = _pair(list(grouped), labels)
    if labels and not pairs:
        some, other = next(iter(labels.values())), next(iter(images.values()))
        raise OptionError(
            f"none of {len(labels):,} labels, such as {printable(some.path)}, goes with one of "
            f"{len(images):,} images, such as {printable(other.path)}; give them the same names, "
            f"or {_AS_CSV}"
        )
    cases = []
    for key, case in grouped.items():
        label = pairs.get(key)
        cases.append(
            Case(
                name=key,
                images=case.images,
                channels=case.channels,
                label=None if label is None else labels[label],
                problem=case.problem,
            )
        )
    left_out += [(labels[key], _NO_IMAGE) for key in lonely]
    kind = "nnU-Net raw" if raw else "folders of images and of labels"
    return Layout(kind=kind, cases=tuple(cases), left_out=tuple(left_out))


def _channels(
    images: Mapping[str, Entry], labels: Mapping[str, Entry], names: tuple[str, ...], *, raw: bool
) -> dict[str, Case]:
    """Put the files of one case together, where a number of four digits ends their names."""
    numbered = {key: match for key in images if (match := _CHANNEL.search(key)) is not None}
    whole = sum(key in labels for key in images)
    cut = sum(key[: match.start()] in labels for key, match in numbered.items())
    if not numbered or (not cut and (whole or not raw)):
        return {key: Case(name=key, images=(entry,)) for key, entry in images.items()}
    if len(numbered) != len(images):
        bare = next(entry for key, entry in images.items() if key not in numbered)
        some = images[next(iter(numbered))]
        raise OptionError(
            f"{printable(some.path)} ends in the number of a channel, {printable(bare.path)} does "
            f"not; name all in one way, or {_AS_CSV}"
        )
    groups: dict[str, dict[int, Entry]] = defaultdict(dict)
    for key, match in numbered.items():
        groups[key[: match.start()]][int(match[1])] = images[key]
    expected = sorted({number for group in groups.values() for number in group})
    titles = tuple(names[n] if n < len(names) else f"{n:04d}" for n in expected)
    if len(expected) == 1 and not names:
        titles = ()
    cases = {}
    for key, group in groups.items():
        missing = [f"{number:04d}" for number in expected if number not in group]
        problem = ""
        if missing:
            more = "s" if len(missing) > 1 else ""
            problem = f"channel{more} {', '.join(missing)} missing, which other cases have"
        files = tuple(group[number] for number in sorted(group))
        cases[key] = Case(name=key, images=files, channels=titles, problem=problem)
    return cases


def _pair(
    images: Sequence[str], labels: Mapping[str, Entry]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the label of each image that has one, and the labels that are left over."""
    pairs = {key: key for key in images if key in labels}

    def left() -> tuple[list[str], list[str]]:
        used = set(pairs.values())
        return [k for k in images if k not in pairs], [k for k in labels if k not in used]

    def folder(key: str) -> str:
        return key.rpartition("/")[0]

    for bare in (_bare, folder):  # names without what only says "image" or "label"; one each
        free_images, free_labels = left()
        by_name: dict[str, list[str]] = defaultdict(list)
        for key in free_labels:
            by_name[bare(key)].append(key)
        counts = Counter(map(bare, free_images))
        for key in free_images:
            candidates = by_name.get(bare(key), [])
            if len(candidates) == 1 == counts[bare(key)] and (bare is _bare or folder(key)):
                pairs[key] = candidates[0]
    return pairs, tuple(left()[1])


def _bare(key: str) -> str:
    folder, _, stem = key.rpartition("/")
    for pattern in (_LABEL_AFFIX, _IMAGE_AFFIX):
        rest = pattern.sub("", stem)
        stem = rest or stem
    return f"{folder}/{stem}"


# --- one folder for each patient ---


def _roles(folder: str, entries: Sequence[Entry]) -> dict[str, Entry] | None:
    """Return what each volume of a patient's folder is called beyond the patient's name."""
    own = folder.rpartition("/")[2]
    stems = [entry.stem for entry in entries]
    prefix = ""
    if len(stems) > 1:
        same = itertools.takewhile(lambda at: len(set(at)) == 1, zip(*stems, strict=False))
        prefix = "".join(letters[0] for letters in same)
    cut = max((prefix.rfind(mark) for mark in "_-. "), default=-1) + 1
    roles = {}
    for entry in entries:
        role = entry.stem[cut:]
        if entry.stem.lower().startswith(own.lower()) and entry.stem[len(own) :].lstrip("_-. "):
            role = entry.stem[len(own) :]
        roles[role.lstrip("_-. ").lower()] = entry
    return roles if len(roles) == len(entries) else None


def _by_patients(entries: Sequence[Entry]) -> Layout | None:
    folders: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.folder:
            folders[entry.folder].append(entry)
    if not any(len(group) > 1 for group in folders.values()):
        return None
    roles = {folder: _roles(folder, group) for folder, group in folders.items()}
    seen = Counter(role for found in roles.values() for role in found or ())
    images = [role for role in seen if not _is_label(role)]
    known = [role for role in images if role in _MODALITIES]
    if None in roles.values() or not images or len(known) < len(images) / 2:
        return None
    strange = [
        role for role in images if role not in known and not 2 <= seen[role] >= len(folders) / 2
    ]
    if strange:
        raise OptionError(
            f"folders hold volumes that look like modalities of one patient "
            f"({printable(', '.join(sorted(known)[:5]))}) beside others "
            f"({printable(', '.join(strange[:5]))}); put these elsewhere, or {_AS_CSV}"
        )
    order = tuple(sorted(images))
    cases = [_patient(folder, found, order) for folder, found in roles.items() if found is not None]
    loose = [entry for entry in entries if not entry.folder]
    return Layout(
        kind="one folder for each patient",
        cases=tuple(cases),
        left_out=tuple((entry, "in no folder of a patient") for entry in loose),
    )


def _is_label(role: str) -> bool:
    return _LABEL_SUFFIX.search(role) is not None


def _patient(folder: str, roles: Mapping[str, Entry], order: tuple[str, ...]) -> Case:
    labels = [entry for role, entry in roles.items() if _is_label(role)]
    if len(labels) > 1:
        paths = " and ".join(printable(entry.path) for entry in labels)
        raise OptionError(f"{paths} would both be the label; keep one, or {_AS_CSV}")
    missing = [name for name in order if name not in roles]
    return Case(
        name=folder,
        images=tuple(roles[name] for name in order if name in roles) or (labels[0],),
        channels=order if len(order) > 1 else (),
        label=labels[0] if labels else None,
        problem=f"{', '.join(missing)} missing, which other cases have" if missing else "",
    )


# --- one file for each case ---


def _one_each(entries: Sequence[Entry]) -> Layout:
    """Take each volume for a case, but those that are named as the label of another."""
    by_name = {entry.name: entry for entry in entries}
    folders: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        folders[entry.folder].append(entry)
    labels: dict[str, Entry] = {}
    lonely = []
    for entry in entries:
        match = _LABEL_SUFFIX.search(entry.stem)
        if match is None:
            continue
        partner = entry.name[: len(entry.name) - len(match[0])].rstrip("/")
        if partner not in by_name and match[0] == entry.stem:
            others = [e for e in folders[entry.folder] if not _LABEL_SUFFIX.search(e.stem)]
            partner = others[0].name if len(others) == 1 else ""
        if partner not in by_name or partner == entry.name:
            lonely.append(entry)
        elif partner in labels:
            paths = " and ".join(printable(each.path) for each in (labels[partner], entry))
            raise OptionError(f"{paths} would both be the label of {printable(partner)!r}; keep "
                              f"one, or {_AS_CSV}")  # fmt: skip
        else:
            labels[partner] = entry
    if not labels:
        lonely = []  # a folder of nothing but labels is packed as what it is
    aside = {entry.name for entry in (*labels.values(), *lonely)}
    return Layout(
        kind="one file for each case" if not labels else "labels beside their images",
        cases=tuple(
            Case(name=entry.name, images=(entry,), label=labels.get(entry.name))
            for entry in entries
            if entry.name not in aside
        ),
        left_out=tuple((entry, _NO_IMAGE) for entry in lonely),
    )
