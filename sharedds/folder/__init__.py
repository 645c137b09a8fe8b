"""One scan of an image folder into an index of mapped files, for packing and for training.

``names`` says which names count, ``walk`` lists the folders, ``classes`` numbers the classes,
``rows`` keeps what was found, ``left_out`` accounts for the rest, ``index`` puts them together.
"""

from sharedds.folder.index import ClassLevel, FolderIndex, scan
from sharedds.folder.left_out import LeftOut

__all__ = ["ClassLevel", "FolderIndex", "LeftOut", "scan"]
