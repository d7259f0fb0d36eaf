"""Everything that finds something in a harness, in one place, and what each of them needs.

    from whale_bench.harness.finders import holds_answers, whispered_gold

| finder | needs | domains | in `check_harness` | when a search examines | from an entry's records |
| --- | --- | --- | --- | --- | --- |
| `reaches` | the source | all | yes | as a check | yes |
| `holds_answers` | source, scored examples | all | yes | as a check | yes |
| `prompt_only` | source, the parent's | all | on request | as a check | yes |
| `check_source` | source; runs it | all | itself | as a check | yes |
| `parrot_canary` | source, examples; runs it | all | no: takes rollouts | yes | yes |
| `other_boards` | an open harness, puzzles | chess | on mini puzzles | on all examples | yes |
| `permuted_gold` | rollouts, examples | all | no: has no rollouts | yes | yes |
| `whispered_gold` | rollouts with messages, examples | all | no: has no rollouts | yes | with segments |
| `replay_calls` | source, its rollouts; runs it | all | no: has no rollouts | yes | with segments |

None of them calls a model or charges a rollout. Those that run a harness do so in a confined worker. All of
`whale_bench` and above may use them; harness files cannot import this module.

Not covered: what a finding means for a score, which is for whoever asks.
"""

from whale_bench.harness.answers import holds_answers
from whale_bench.harness.canaries import parrot_canary, parrot_hits, permuted_gold
from whale_bench.harness.check import check_harness, check_source
from whale_bench.harness.findings import Finding
from whale_bench.harness.other_boards import other_boards
from whale_bench.harness.prompt_only import prompt_only
from whale_bench.harness.reach import reaches
from whale_bench.harness.replaying import replay_calls
from whale_bench.harness.whispers import whispered_gold

__all__ = [
    "Finding",
    "check_harness",
    "check_source",
    "holds_answers",
    "other_boards",
    "parrot_canary",
    "parrot_hits",
    "permuted_gold",
    "prompt_only",
    "reaches",
    "replay_calls",
    "whispered_gold",
]
