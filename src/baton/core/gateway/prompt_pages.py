"""The pages of a prompt, as prefix caches know them (memory/prefix_cache.py), for every kind of
worker."""

from collections.abc import Sequence

import msgspec
import numpy as np

from baton.core.gateway.cache_index import PageId
from baton.core.ids import TokenId
from baton.core.memory.prefix_cache import PageHash, page_hashes, root_hash
from baton.core.messages import HASH_BYTES, Register


class PageKind(msgspec.Struct, frozen=True):
    """What two workers must have in common so that equal prompts have equal pages."""

    model: str
    weights: str
    tokens: int  # of a page
    # whether a prompt is computed on only from where an earlier one, or its answer, has ended: of
    # these workers only the last pages of those are known (memory/checkpoints.py)
    ends: bool = False


def page_kind(register: Register) -> PageKind:
    """Return the kind of a worker's pages."""
    manifest = register.manifest
    tokens = manifest.page_blocks * manifest.table.block_tokens
    # where prompts begin with checkpoints, no later prompt has the pages of one under way
    ends = not (register.caches or manifest.table.cacheable)
    return PageKind(manifest.model, manifest.weights, tokens, ends)


def page_ids(hashes: bytes) -> list[PageId]:
    """Return the beginnings of hashes that stand one after the other."""
    return list(map(PageId, np.frombuffer(hashes, dtype="<u8").tolist()))


class PromptPages:
    """The prompt of one request, with what was generated of its answer, and the pages of both. They
    are hashed when they are first asked for."""

    def __init__(self, context: Sequence[TokenId], salt: str) -> None:
        self._context, self._salt = context, salt
        self._chains: dict[PageKind, list[PageId]] = {}

    @property
    def tokens(self) -> int:
        """The number of its tokens."""
        return len(self._context)

    def chain(self, kind: PageKind) -> list[PageId]:
        """Return its complete pages before its last token, which is always computed."""
        found = self._chains.get(kind)
        if found is None:
            root: PageHash = root_hash(kind.model, kind.weights, self._salt)
            whole = (self.tokens - 1) // kind.tokens * kind.tokens
            hashes = page_hashes(root, self._context[:whole], kind.tokens)
            found = page_ids(b"".join(page[:HASH_BYTES] for page in hashes))
            self._chains[kind] = found
        return found
