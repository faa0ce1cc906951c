"""The class that vLLM loads. Its hooks call scheduler_side.py and rank_process.py."""

from types import MappingProxyType
from typing import Any

import msgspec
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
)
from vllm.distributed.parallel_state import get_tp_group
from vllm.version import __version__ as vllm_version

from baton.core.errors import ConfigError
from baton.vllm.guest_link import SchedulerEnd
from baton.vllm.identity import computation, weights_identity
from baton.vllm.layout import placement, require_one_group, state_table
from baton.vllm.memory import KVMemory, memory_of
from baton.vllm.parent import end_with_parent
from baton.vllm.rank_process import RankProcess, Served
from baton.vllm.scheduler_side import SchedulerSide, StepNotes
from baton.vllm.settings import settings_of

ROLES = MappingProxyType({"kv_producer": "prefill", "kv_consumer": "decode"})


class BatonMetadata(KVConnectorMetadata):
    """StepNotes as bytes, so that vLLM carries them to its ranks in any way it likes."""

    def __init__(self, notes: StepNotes) -> None:
        self.encoded = msgspec.msgpack.encode(notes)


class BatonHandshake(KVConnectorHandshakeMetadata):
    """Where the leader, in the process of rank 0, waits for the scheduler."""

    def __init__(self, address: str) -> None:
        self.address = address


class BatonConnector(KVConnectorBase_V1):
    """Hands KV cache over between two vLLM engines, verified block by block."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        said = vllm_config.kv_transfer_config
        if said.kv_role not in ROLES:
            raise ConfigError(
                f"kv_role {said.kv_role!r} is not supported: an engine is kv_producer (prefill) or "
                "kv_consumer (decode)"
            )
        require_tensor_parallel(vllm_config.parallel_config)
        group = require_one_group(kv_cache_config)
        self._settings = settings_of(said.kv_connector_extra_config)
        self._serves = ROLES[said.kv_role]
        self._scheduler = SchedulerSide(
            producer=self._serves == "prefill",
            block_tokens=group.kv_cache_spec.block_size,
            patience_s=self._settings.handoff_timeout_s,
        )
        self._rank: RankProcess | None = None
        self._memory: KVMemory | None = None
        self._decoder = msgspec.msgpack.Decoder(StepNotes)
        self._notes = StepNotes()

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """Return the layout in which a block is one byte range. vLLM takes it where its attention
        can."""
        return "BHLNC"

    # ---- the rank -------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Take the memory of the KV cache, and start the rank."""
        end_with_parent()
        config, cache = self._vllm_config, self._kv_cache_config
        first = next(iter(kv_caches.values()))
        self._memory = memory = memory_of(first)
        how = computation(config.model_config, config.cache_config, vllm_version)
        cell = f"{cell_name(first.device.type, cache)}; {how}"
        table = state_table(config, cache, cell=cell)
        tp, spec = (
            config.parallel_config.tensor_parallel_size,
            cache.kv_cache_groups[0].kv_cache_spec,
        )
        group = get_tp_group()
        served = Served(
            role=self._serves,
            model=self._settings.served_model_name or config.model_config.served_model_name,
            weights=weights_identity(config.model_config),
            dtype=str(config.model_config.dtype).removeprefix("torch."),
            max_model_len=config.model_config.max_model_len,
            placements=tuple(
                placement(table, cache, tp=tp, tp_rank=r, num_kv_heads=spec.num_kv_heads)
                for r in range(tp)
            ),
            rank=group.rank_in_group,
            pages=cache.num_blocks,
        )
        self._rank = RankProcess(self._settings, served, memory)
        self._rank.join(group.broadcast_object(self._rank.address))
        self._rank.start()

    def get_handshake_metadata(self) -> BatonHandshake | None:
        """Return where the leader waits for the scheduler."""
        link = self._rank.link if self._rank is not None else None
        return BatonHandshake(link.address) if link is not None else None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Do nothing: fetches begin when blocks are offered, not when a step begins."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: a request is scheduled when all its blocks are there."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Do nothing: blocks are sealed after the step."""

    def wait_for_save(self) -> None:
        """The step is computed: its prompts can be sealed."""
        assert self._rank is not None
        self._rank.require_alive()
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, BatonMetadata)
        self._notes = self._decoder.decode(metadata.encoded)
        if self._notes.computed:
            assert self._memory is not None
            self._rank.engine.computed(self._notes.computed, self._memory.fence())
        for key in self._notes.ended:
            self._rank.engine.forget(key)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Return the requests that are loaded, that cannot be loaded, and whose pages are free."""
        notes, self._notes = self._notes, StepNotes()
        return KVConnectorTransferResults(
            finished_sending=set(notes.released),
            finished_recving={*notes.loaded, *notes.failed},
            failed_recving=set(notes.failed),
        )

    def shutdown(self) -> None:
        """Stop the rank, and close the link."""
        if self._rank is not None:
            self._rank.close()
            self._rank = None
        self._scheduler.close()

    # ---- the scheduler --------------------------------------------------------------------------

    def set_xfer_handshake_metadata(
        self, metadata: dict[int, KVConnectorHandshakeMetadata]
    ) -> None:
        """Connect the scheduler with the leader."""
        end_with_parent()
        first = metadata[0]
        assert isinstance(first, BatonHandshake)
        self._scheduler.connect(SchedulerEnd(first.address))

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """Take vLLM's prefix cache, from which damaged pages are taken out."""
        super().bind_kv_cache_manager(kv_cache_manager)
        self._scheduler.evicts(kv_cache_manager.evict_blocks)

    def on_new_request(self, request: Any) -> None:
        """A request has arrived."""
        self._scheduler.arrives()

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Return how much of a prompt can be loaded, and that it takes time."""
        return self._scheduler.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """A request has got its pages."""
        self._scheduler.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Return what the ranks are told with this step."""
        return BatonMetadata(self._scheduler.step(scheduler_output))

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Return whether the pages of a request that has ended are still needed."""
        return self._scheduler.finished(request), None


def require_tensor_parallel(parallel: Any) -> None:
    """Check that all ranks of the engine are of one tensor-parallel group.

    Raises:
        ConfigError: they are not
    """
    others = {
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "data_parallel_size": parallel.data_parallel_size,
        "decode_context_parallel_size": parallel.decode_context_parallel_size,
        "prefill_context_parallel_size": parallel.prefill_context_parallel_size,
    }
    for name, size in others.items():
        if size > 1:
            raise ConfigError(
                f"{name} = {size} is not supported by the connector; use tensor parallelism, or "
                "several engines"
            )


def cell_name(device: str, kv_cache_config: Any) -> str:
    """Return how the content of a cell is arranged. On CPUs K is stored by columns, in a way that
    depends on the instruction set."""
    if device != "cpu":
        return "kv"
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
    isa = _get_attn_isa(spec.dtype, spec.block_size, spec.head_size)
    return f"kv in the order of CPU attention {isa}"
