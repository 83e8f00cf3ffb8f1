"""Running several ranks: threads of this process, or spawned processes, always with a time limit."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Sequence
from typing import Any

LIMIT_S = 60


def in_threads(work: Callable[[int], Any], ranks: int) -> list[Any]:
    """work(rank) in one thread per rank; the results, or exceptions, by rank."""
    results: list[Any] = [None] * ranks

    def body(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), "a rank did not finish"
    return results


def _child(work: Callable[..., Any], results: Any, rank: int, arguments: Sequence[Any]) -> None:
    try:
        results.put((rank, work(rank, *arguments)))
    except Exception as error:
        results.put((rank, f"{type(error).__name__}: {error}"))


def in_processes(work: Callable[..., Any], ranks: int, *arguments: Any) -> list[Any]:
    """work(rank, *arguments) in one fresh process per rank; results, or errors as text, by rank."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=_child, args=(work, queue, rank, arguments)) for rank in range(ranks)]
    for process in processes:
        process.start()
    try:
        results = dict(queue.get(timeout=LIMIT_S) for _ in processes)
        for process in processes:
            process.join(LIMIT_S)
            assert process.exitcode == 0
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
    return [results[rank] for rank in range(ranks)]
