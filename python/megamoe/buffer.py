"""SymmBuffer: the memory through which the ranks of a group exchange rows, with the plans made on it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, TypeVar

from . import _core, handles, settings, tensors
from .errors import Code, invalid_value, plain
from .group import resolve
from .plans import Plans

__all__ = ["SymmBuffer", "TraceSpan"]

_Result = TypeVar("_Result")
_DEFAULT_DEADLINE = 60.0


def _refuse(error: Exception, take_part: Callable[[Code, str], None]) -> NoReturn:
    """Takes part in a collective with an error found before it; raises what all ranks get."""
    try:
        take_part(getattr(error, "code", Code.SYSTEM), plain(str(error) or type(error).__name__))
    except Exception as verdict:
        if str(verdict) == str(error) and type(verdict) is type(error):
            raise error from None
        raise verdict from error
    raise error


class TraceSpan(NamedTuple):
    """What one thread did in the last call; times in nanoseconds of CLOCK_MONOTONIC."""

    stage: str
    thread: int
    begin_ns: int
    end_ns: int


class SymmBuffer:
    """Made by `get_symm_buffer_for_mega_moe`, whose documentation lists the arguments; creation is
    collective.

    One call at a time; several layers may share one buffer. A buffer is a context manager: leaving it
    destroys it.

    Attributes:
        group, num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden,
        max_recv_token_num, dispatch_quant_mode, dispatch_quant_out_dtype, combine_quant_mode, comm_alg,
        topk_weights_type, topo_type,
        rank_num_per_server, combine_comm_mode, profile, deadline, trace, tuning: as given.
        threads: threads of this rank.
        isa: name of the instruction-set level in use.
        rank_id: this rank, 0 to ep_world_size - 1.
        ep_world_size: number of ranks.
        group_name: name of the torch group, else of the transport ("self", "local", "shm").
        context: handle of the buffer in the library.
        ccl_buffer_size: bytes of memory of this rank that its peers write into.
        experts_per_rank: E_local, experts this rank owns.
        capacity: rows this rank can receive in one call.
        handle: number that stands for the buffer in `torch.ops.megamoe.mega_moe`.
        token_codes: type of tokens given as codes; None where tokens are bfloat16 only.
    """

    num_experts: int
    num_max_tokens_per_rank: int
    num_topk: int
    hidden: int
    intermediate_hidden: int
    max_recv_token_num: int
    dispatch_quant_mode: int
    combine_quant_mode: int
    comm_alg: str
    topk_weights_type: int
    topo_type: int
    rank_num_per_server: int
    combine_comm_mode: int
    profile: str

    def __init__(
        self,
        group: Any,
        num_experts: int,
        num_max_tokens_per_rank: int,
        num_topk: int,
        hidden: int,
        intermediate_hidden: int,
        *,
        max_recv_token_num: int = 0,
        dispatch_quant_mode: int = 0,
        dispatch_quant_out_dtype: Any = None,
        combine_quant_mode: int = 0,
        comm_alg: str = "",
        topk_weights_type: int = 0,
        topo_type: int = 0,
        rank_num_per_server: int = 2,
        combine_comm_mode: int = 0,
        profile: str = "cpu",
        ccl_buffer_size: int = 0,
        threads: int = 0,
        isa: str | None = None,
        deadline: float = 60.0,
        trace: bool = False,
        tuning: str | None = None,
    ) -> None:
        arguments = locals()
        membership = resolve(group)
        limit = settings.deadline_ms(_DEFAULT_DEADLINE)
        try:
            limit = settings.deadline_ms(deadline)
            config = settings.buffer_config(arguments)
            self.trace = settings.flag("trace", trace)
            self.tuning = None if tuning is None else settings.text("tuning", tuning)
            thread_count = settings.integer("threads", threads)
            level = None if isa is None else settings.text("isa", isa)
        except Exception as error:
            _refuse(
                error, lambda *why: _core.SymmBuffer.refuse_creation(membership.handle, *why, limit)
            )
        for name in (*settings.BUFFER_INTEGERS, *settings.BUFFER_TEXTS):
            setattr(self, name, getattr(config, name))
        self.dispatch_quant_out_dtype = dispatch_quant_out_dtype
        out = config.dispatch_quant_out_dtype
        self.token_codes: str | None = out if out in tensors.BYTE_TYPES else None
        self.deadline = deadline
        self.context = _core.SymmBuffer.create(
            membership.handle, config, thread_count, level, limit, self.trace
        )
        self.group = group
        self.group_name = membership.name
        self.rank_id: int = self.context.rank
        self.ep_world_size: int = self.context.world_size
        self.threads: int = self.context.threads
        self.isa: str = self.context.isa
        self.ccl_buffer_size: int = self.context.ccl_buffer_size
        self.experts_per_rank: int = self.context.experts_per_rank
        self.capacity: int = self.context.capacity
        self.handle = handles.register(self)
        self.plans = Plans()
        self._in_use = threading.Lock()

    def destroy(self) -> None:
        """Leaves the group and frees the plans. May be repeated; waits for nobody. Later calls raise."""
        self._enter()
        try:
            self.plans.clear()
            self.context.destroy()
        finally:
            self._in_use.release()

    def __enter__(self) -> SymmBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    def __repr__(self) -> str:
        return (
            f"<megamoe.SymmBuffer rank {self.rank_id} of {self.ep_world_size}: {self.num_experts} experts, "
            f"top-{self.num_topk}, hidden {self.hidden}, intermediate {self.intermediate_hidden}, "
            f"up to {self.num_max_tokens_per_rank} tokens, {self.threads} threads, {self.isa}>"
        )

    def describe(self) -> str:
        """The plan of the last call, one "key: value" per line; empty before the first call."""
        return self.plans.describe()

    def trace_spans(self) -> list[TraceSpan]:
        """What each thread did in the last call; empty unless the buffer was made with trace=True."""
        return [TraceSpan(*span) for span in self.context.trace()]

    def run_exclusively(self, prepare: Callable[[], Callable[[], _Result]]) -> _Result:
        """Runs one collective call: `prepare` checks arguments and returns what runs it.

        If `prepare` raises, the rank still takes part in the call, so that every rank raises the same error
        instead of waiting for this one.
        """
        self._enter()
        try:
            try:
                run = prepare()
            except Exception as error:
                _refuse(error, self.context.refuse_call)
            return run()
        finally:
            self._in_use.release()

    def before_call(self, prepare: Callable[[], _Result]) -> _Result:
        """What `prepare` makes for the call that comes next. If it raises, the rank takes part in that call with
        its error, as in `run_exclusively`.
        """
        try:
            return prepare()
        except Exception as error:
            cause = error

        def refuse() -> NoReturn:
            raise cause

        return self.run_exclusively(refuse)

    def repeat(self, stated: tuple[Any, ...], x: Any, topk_ids: Any, topk_weights: Any, x_active_mask: Any) -> Any:
        """The results of a call with what an earlier call `stated` beside its tokens, and with arrays that can be
        read in place; None, and no call, for any other. Nothing but the tokens is looked at again.
        """
        self._enter()
        try:
            planned = self.plans.find(stated)
            if planned is None:
                return None
            return planned.run_plain(x, topk_ids, topk_weights, x_active_mask)
        finally:
            self._in_use.release()

    def _enter(self) -> None:
        # Not waiting here keeps a forked child from waiting for a thread that only its parent has.
        if not self._in_use.acquire(blocking=False):
            invalid_value("sym_buffer is in a call: expected one call at a time")
