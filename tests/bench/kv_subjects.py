"""What `kv_manager.py` measures: our two cores, and the cache managers of vLLM and SGLang.

A subject does the bookkeeping of one scheduler, split into the phases of `Subject`. The peers are
driven as their own schedulers do it and imported when they are chosen; they are optional, and
run as far as their packages can be imported on this machine.
"""

from __future__ import annotations

from array import array
from typing import Any, Protocol

import numpy as np

from kvcache import AdmissionRequest, CacheManager, Fits
from kvcache.core import CoreChoice
from kvcache.tokens import token_array


class Subject(Protocol):
    """Handles are the subject's own objects for a request; `num_blocks` leaves out a null block."""

    def __init__(self, num_blocks: int, block_tokens: int, running: int) -> None: ...

    def prepare(self, number: int, prompt: list[int]) -> Any:
        """Makes what the manager wants of a request out of its tokens."""

    def match(self, handle: Any) -> int:
        """Looks the prompt up; answers the cached tokens."""

    def allocate(self, handle: Any) -> None:
        """Takes blocks for the prompt, evicting as needed."""

    def commit(self, handle: Any) -> None:
        """The prompt is computed: its blocks can be hit."""

    def append(self, handles: list[Any], tokens: list[int]) -> None:
        """A slot for one more token of each."""

    def commit_step(self, handles: list[Any], lengths: list[int]) -> None:
        """The tokens before `lengths` are computed: full blocks can be hit."""

    def free(self, handle: Any) -> None:
        """The request is done."""

    def leaked_blocks(self) -> int:
        """Blocks that are neither free nor evictable when nothing runs."""

    def obtain_block(self) -> Any:
        """Prepares so that the next call of the answer takes one block out of the pool."""


class Ours:
    """CacheManager with one of its cores."""

    core: CoreChoice

    def __init__(self, num_blocks: int, block_tokens: int, running: int) -> None:
        self.manager = CacheManager(num_blocks + 1, block_tokens, core=self.core)
        assert self.manager.core_name == self.core
        self.taker: int | None = None

    def prepare(self, number: int, prompt: list[int]) -> AdmissionRequest:
        return AdmissionRequest(number, token_array(prompt), b"")

    def match(self, handle: Any) -> int:
        self.answer = self.manager.admit(handle)
        assert isinstance(self.answer, Fits)
        return self.answer.cached_tokens

    def allocate(self, handle: Any) -> None:
        assert isinstance(self.answer, Fits)
        self.manager.begin(self.answer)

    def commit(self, handle: Any) -> None:
        self.manager.commit(handle.sequence_id, handle.token_ids.size)

    def append(self, handles: list[Any], tokens: list[int]) -> None:
        append = self.manager.append
        for handle, token in zip(handles, tokens, strict=True):
            if append(handle.sequence_id, token) != 0:
                raise RuntimeError("the pool is full")

    def commit_step(self, handles: list[Any], lengths: list[int]) -> None:
        commit = self.manager.commit
        for handle, length in zip(handles, lengths, strict=True):
            commit(handle.sequence_id, length)

    def free(self, handle: Any) -> None:
        self.manager.release(handle.sequence_id)

    def leaked_blocks(self) -> int:
        self.manager.audit()
        return self.manager.stats().held

    def obtain_block(self) -> Any:
        manager, size = self.manager, self.manager.block_tokens
        if self.taker is None:
            self.taker = 2**40
            request = AdmissionRequest(self.taker, np.zeros(size, np.int32), b"", publish=False)
            answer = manager.admit(request)
            assert isinstance(answer, Fits)
            manager.begin(answer)
        while manager.num_tokens(self.taker) % size:
            manager.append(self.taker, 0)
        return lambda: manager.append(2**40, 0)


class Native(Ours):
    core: CoreChoice = "native"


class Python(Ours):
    core: CoreChoice = "python"


class Vllm:
    """KVCacheManager as the V1 scheduler calls it; block hashes are SHA-256, its default."""

    def __init__(self, num_blocks: int, block_tokens: int, running: int) -> None:
        import torch
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.request import Request, RequestStatus

        hash_function = get_hash_fn_by_name("sha256")
        init_none_hash(hash_function)
        self.hasher = get_request_block_hasher(block_tokens, hash_function)
        spec = FullAttentionSpec(
            block_size=block_tokens, num_kv_heads=1, head_size=64, dtype=torch.float16
        )
        config = KVCacheConfig(
            num_blocks=num_blocks + 1,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        self.manager = KVCacheManager(
            config,
            max_model_len=4096,
            scheduler_block_size=block_tokens,
            hash_block_size=block_tokens,
            enable_caching=True,
        )
        self.request, self.running = Request, RequestStatus.RUNNING
        self.sampling = SamplingParams(max_tokens=64)

    def prepare(self, number: int, prompt: list[int]) -> Any:
        return self.request(str(number), prompt, self.sampling, None, block_hasher=self.hasher)

    def match(self, handle: Any) -> int:
        handle.hit = self.manager.get_computed_blocks(handle)
        return int(handle.hit[1])

    def allocate(self, handle: Any) -> None:
        blocks, cached, _ = handle.hit
        if self.manager.allocate_slots(handle, handle.num_tokens - cached, cached, blocks) is None:
            raise RuntimeError("the pool is full")
        handle.status, handle.hit = self.running, None
        handle.num_computed_tokens = handle.num_tokens

    def commit(self, handle: Any) -> None:
        """allocate_slots has published the full blocks already."""

    def append(self, handles: list[Any], tokens: list[int]) -> None:
        for handle, token in zip(handles, tokens, strict=True):
            handle.append_output_token_ids(token)
            if self.manager.allocate_slots(handle, 1) is None:
                raise RuntimeError("the pool is full")
            handle.num_computed_tokens += 1

    def commit_step(self, handles: list[Any], lengths: list[int]) -> None:
        """allocate_slots has published here too."""

    def free(self, handle: Any) -> None:
        self.manager.free(handle)

    def leaked_blocks(self) -> int:
        pool = self.manager.block_pool
        return int(pool.num_gpu_blocks - 1 - pool.get_num_free_blocks())

    def obtain_block(self) -> Any:
        return lambda: self.manager.block_pool.get_new_blocks(1)


class Sglang:
    """RadixCache and the paged allocator, called as the scheduler's checkpoint and release do."""

    def __init__(self, num_blocks: int, block_tokens: int, running: int) -> None:
        import torch
        from sglang.srt.mem_cache import base_prefix_cache as interface
        from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

        torch.set_num_threads(1)
        self.torch, self.interface, self.key, self.size = torch, interface, RadixKey, block_tokens
        self.pool = PagedTokenToKVPoolAllocator(
            num_blocks * block_tokens, block_tokens, torch.float16, "cpu", None, need_sort=False
        )
        self.cache = RadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=None,
                token_to_kv_pool_allocator=self.pool,
                page_size=block_tokens,
            )
        )
        self.rows = torch.zeros((running, 4096), dtype=torch.int32)
        self.free_rows = list(range(running))

    def prepare(self, number: int, prompt: list[int]) -> Any:
        handle = type("Handle", (), {})()
        handle.tokens, handle.row = array("q", prompt), self.free_rows.pop()
        return handle

    def match(self, handle: Any) -> int:
        tokens = handle.tokens
        key = self.key(tokens, limit=len(tokens) - 1)
        found = self.cache.match_prefix(self.interface.MatchPrefixParams(key=key))
        handle.cached = found.device_prefix_len
        handle.lock = self.cache.lock(found.last_device_node)
        if handle.cached:
            path = self.cache.path_device_indices(found.last_device_node)
            self.rows[handle.row, : handle.cached] = path
        return int(handle.cached)

    def allocate(self, handle: Any) -> None:
        torch, length, cached = self.torch, len(handle.tokens), handle.cached
        self._make_room(-(-(length - cached) // self.size))
        last = self.rows[handle.row, cached - 1].reshape(1).long() if cached else torch.tensor([-1])
        before, after = torch.tensor([cached]), torch.tensor([length])
        slots = self.pool.alloc_extend(before, before, after, after, last, length - cached)
        if slots is None:
            raise RuntimeError("the pool is full")
        self.rows[handle.row, cached:length] = slots

    def commit(self, handle: Any) -> None:
        self._publish(handle, len(handle.tokens) // self.size * self.size)

    def append(self, handles: list[Any], tokens: list[int]) -> None:
        torch = self.torch
        for handle, token in zip(handles, tokens, strict=True):
            handle.tokens.append(token)
        lengths = [len(handle.tokens) for handle in handles]
        rows, after = torch.tensor([handle.row for handle in handles]), torch.tensor(lengths)
        self._make_room(sum((length - 1) % self.size == 0 for length in lengths))
        slots = self.pool.alloc_decode(after, after, self.rows[rows, after - 2].long())
        if slots is None:
            raise RuntimeError("the pool is full")
        self.rows[rows, after - 1] = slots.int()

    def commit_step(self, handles: list[Any], lengths: list[int]) -> None:
        """Output is published by `free`."""

    def free(self, handle: Any) -> None:
        whole = len(handle.tokens) // self.size * self.size
        self._insert(handle, whole)
        if whole < len(handle.tokens):
            rest = self.rows[handle.row, whole : len(handle.tokens)].long()
            self.pool.free_segment(rest, start_pos=whole)
        self.cache.unlock(handle.lock)
        self.free_rows.append(handle.row)

    def leaked_blocks(self) -> int:
        free = self.pool.available_size() + self.cache.evictable_size()
        return int(self.pool.num_pages - free // self.size)

    def obtain_block(self) -> Any:
        def obtain() -> None:
            self._make_room(1)
            assert self.pool.alloc(self.size) is not None

        return obtain

    def _make_room(self, blocks: int) -> None:
        short = blocks * self.size - self.pool.available_size()
        if short > 0:
            self.cache.evict(self.interface.EvictParams(num_tokens=short))

    def _insert(self, handle: Any, length: int) -> Any:
        key, slots = self.key(handle.tokens[:length]), self.rows[handle.row, :length].long()
        params = self.interface.InsertParams(key=key, value=slots, inserted_len=handle.cached)
        result = self.cache.insert(params)
        duplicates = slots[handle.cached : result.prefix_len]
        self.pool.free_segment(duplicates, start_pos=handle.cached)
        return key, result

    def _publish(self, handle: Any, length: int) -> None:
        key, result = self._insert(handle, length)
        node = self.cache.match_prefix(self.interface.MatchPrefixParams(key=key)).last_device_node
        if result.prefix_len > handle.cached:
            path = self.cache.path_device_indices(node)[handle.cached :]
            self.rows[handle.row, handle.cached : length] = path
        handle.cached = length
        self.cache.unlock(handle.lock)
        handle.lock = self.cache.lock(node)


SUBJECTS: dict[str, type[Subject]] = {
    "ours (native)": Native,
    "ours (python)": Python,
    "vLLM KVCacheManager": Vllm,
    "SGLang RadixCache": Sglang,
}
