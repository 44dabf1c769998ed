"""How published names of π0 and π0.5 stand to the networks'."""

from rlvla3.policies.pretrained.loading import Names
from rlvla3.policies.publishing import NOISE_NET, VALUE_HEAD

_EMBEDDING = "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
_OUTPUT = "paligemma_with_expert.paligemma.lm_head.weight"
NAMES = Names(
    own=(NOISE_NET, VALUE_HEAD, "state_normaliser.", "action_normaliser."),
    unused=("lm_head.weight",),
    # Output and input embeddings are one tensor, of which files keep either name.
    tied={_EMBEDDING: _OUTPUT},
)
