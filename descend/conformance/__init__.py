"""Conformance: does an optimizer, ours or anybody's, do what its name says, and treat weights and state well?

    print(descend.conformance.examine(torch.optim.Adam, lr=1e-3))

The expectations are those of the published rules, written again in float64 in `published`, and of
`docs/conformance.md`.
"""

from descend.conformance.candidate import arguments, load
from descend.conformance.examine import examine, survey
from descend.conformance.published import PUBLISHED, Published
from descend.conformance.report import CheckFinding, Report, Verdict

__all__ = ["PUBLISHED", "CheckFinding", "Published", "Report", "Verdict", "arguments", "examine", "load", "survey"]
