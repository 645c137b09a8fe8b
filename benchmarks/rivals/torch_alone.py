"""What a process takes that has imported torch, and nothing else."""

from __future__ import annotations

import json

from harness.figures import OWN, TOTAL
from harness.weigh import weigh
from reading import need

need("torch.utils.data")
print(json.dumps(dict(zip((TOTAL, OWN), weigh(), strict=True))))
