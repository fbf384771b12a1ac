"""Continuations of conversations with environments from where a turn begins, for the values of chains."""

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from trl import GRPOTrainer
from trl.chat_template_utils import parse_response

from ..credit.tokens import turn_numbers
from ..rollouts.policy import Continuation
from .engine_calls import temporarily
from .environments import NOT_TOOLS, Environments
from .scoring import TrlScoring


# before TRL 1.16 the types of a call's arguments are not those of the tool
_TYPES_ARGUMENTS = "tools" in inspect.signature(parse_response).parameters


@dataclass
class Conversations:
    """The responses of a generation batch of this process, as the reward functions got them.

    Attributes:
        examples: Rows of the data set.
        prompts: Messages of the prompts, with what `reset` of the environments added.
        completions: Messages of the responses.
        written: Which tokens of each response the policy wrote (1) and which a tool (0).
        snapshots: Per turn, the state of each environment before it.
    """

    examples: list[dict[str, Any]]
    prompts: list[list[dict]]
    completions: list[list[dict]]
    written: list[list[int]]
    snapshots: list[list[Any]]

    def before(self, row: int, turn: int) -> list[dict]:
        """The messages of a response before one of its turns."""
        messages = self.completions[row]
        own = [i for i, message in enumerate(messages) if message.get("role") == "assistant"]
        return messages[: own[turn]] if turn < len(own) else messages


class TurnRollouts:
    """Continues conversations from the states in which turns began, in environments of its own.

    Args:
        trainer (`GRPOTrainer`):
            With environments that have `snapshot()` and `restore(state)`.
        environments ([`Environments`]):
            Those of the trainer.
        scoring ([`TrlScoring`]):
            Scores the conversations.
        continue_prefixes (`Callable`):
            `(prefixes, n=…, budgets=…)` → the first turn of each continuation.
    """

    def __init__(
        self,
        trainer: GRPOTrainer,
        environments: Environments,
        scoring: TrlScoring,
        continue_prefixes: Callable[..., list[Continuation]],
    ) -> None:
        self._trainer, self._environments, self._scoring = trainer, environments, scoring
        self._continue = continue_prefixes
        self._pool: dict[Any, list[Any]] = {}

    def continue_from(
        self,
        batch: Conversations,
        places: Sequence[tuple[int, int]],
        *,
        n: int,
        budgets: list[int],
        prompt_ids: Sequence[list[int]],
        completion_ids: Sequence[list[int]],
        most: int,
    ) -> tuple[torch.Tensor, list[list[int]]]:
        """Rewards (states · n, functions) of `n` conversations from each state, and the token ids that each added, with
        those of tools. Collective.

        Args:
            places (sequence of `tuple[int, int]`):
                (row, b) of each state: the turn of response `row` that begins at its token b.
            budgets (`list[int]`):
                Most tokens that may follow in each state.
            most (`int`):
                The largest number of states of all processes.
        """
        trainer = self._trainer
        numbers = {row: turn_numbers(torch.tensor([batch.written[row]]))[0] for row in {row for row, _ in places}}
        turns = [int(numbers[row][b]) for row, b in places]
        prefixes = [prompt_ids[row] + completion_ids[row][:b] for row, b in places]
        first = self._continue(prefixes, n=n, budgets=budgets)
        which = [i for i in range(len(places)) for _ in range(n)]
        rows = [places[i][0] for i in which]
        names = [batch.examples[row].get("environment") if trainer._multi_environment else None for row in rows]
        instances = self._instances(names)
        for one, i, row in zip(instances, which, rows, strict=True):
            example = batch.examples[row]
            one.reset(**{k: v for k, v in example.items() if not (trainer._multi_environment and k == "environment")})
            one.restore(copy.deepcopy(batch.snapshots[turns[i]][row]))
        ids, added, written = [], [], []
        for i, row, continuation in zip(which, rows, first, strict=True):
            b = places[i][1]
            ids.append(completion_ids[row][:b] + continuation.ids)
            written.append(batch.written[row][:b] + [1] * len(continuation.ids))
            typed = {"tools": trainer._env_tools[names[len(added)]]} if _TYPES_ARGUMENTS else {}
            message = parse_response(trainer._tokenizer, continuation.ids, prefix=prefixes[i], **typed)
            added.append([message])
        given = {"prompt_ids": prompt_ids, "rows": rows, "which": which, "turns": turns, "names": names}
        ids, added, written = self._run_tools(batch, instances, ids, added, written, **given)
        responses = [batch.before(row, turns[i]) + new for i, row, new in zip(which, rows, added, strict=True)]
        # processes with fewer conversations score one of their batch again, so that all gather equal shapes
        missing = n * most - len(rows)
        examples = [batch.examples[row] for row in rows] + batch.examples[:1] * missing
        prompts = [batch.prompts[row] for row in rows] + batch.prompts[:1] * missing
        responses += batch.completions[:1] * missing
        all_ids = ids + [list(completion_ids[0])] * missing
        filler = (trainer.environments or [None])[:1]
        with (
            temporarily(trainer, environments=instances + filler * missing),
            temporarily(self._environments.ledger, written=written + batch.written[:1] * missing),
            self._environments.totals_alone(),
        ):
            rewards = self._scoring.only_scores(examples, prompts, responses, all_ids)
        start = trainer.processes.rank * n * most
        new = [x[places[i][1] :] for i, x in zip(which, ids, strict=True)]
        return rewards[start : start + len(rows)], new

    def _run_tools(
        self,
        batch: Conversations,
        instances: list[Any],
        ids: list[list[int]],
        added: list[list[dict]],
        written: list[list[int]],
        *,
        prompt_ids: Sequence[list[int]],
        rows: list[int],
        which: list[int],
        turns: list[int],
        names: list[Any],
    ) -> tuple[list[list[int]], list[list[dict]], list[list[int]]]:
        """TRL's tool loop, for states of one turn at a time, since its number of rounds counts from the first turn."""
        trainer, most = self._trainer, self._trainer.max_tool_calling_iterations
        tools = [_tools_of(trainer, one) for one in instances]
        for turn in sorted({turns[i] for i in which}):
            part = [k for k, i in enumerate(which) if turns[i] == turn]
            state = {
                "environments": [instances[k] for k in part],
                "_batch_environments": [names[k] for k in part],
                "_sync_tool_dicts": [tools[k][0] for k in part],
                "_async_tool_dicts": [tools[k][1] for k in part],
                "max_tool_calling_iterations": most - turn,
            }
            prompts = [batch.prompts[rows[k]] + batch.before(rows[k], turn) for k in part]
            with temporarily(trainer, **state):
                masks, messages, longer, *_ = trainer._tool_call_loop(
                    prompts,
                    [prompt_ids[rows[k]] for k in part],
                    [ids[k] for k in part],
                    [added[k] for k in part],
                    None,
                    None,
                    {},
                )
            for k, mask, new, tokens in zip(part, masks, messages, longer, strict=True):
                known = len(written[k])  # the loop takes these tokens for the policy's
                ids[k], added[k], written[k] = tokens, new, written[k] + list(mask[known:])
        return ids, added, written

    def _instances(self, names: list[Any]) -> list[Any]:
        """An environment for each conversation, made once and used again."""
        used: dict[Any, int] = {}
        found = []
        for name in names:
            pool, place = self._pool.setdefault(name, []), used.get(name, 0)
            if place == len(pool):
                pool.append(self._trainer.environment_factories[name]())
            used[name] = place + 1
            found.append(pool[place])
        return found


def _tools_of(trainer: GRPOTrainer, one: Any) -> tuple[dict[str, Callable], dict[str, Callable]]:
    """The tools of a conversation in an environment, those that are not `async` and those that are."""
    names = [name for name, _ in inspect.getmembers(type(one), predicate=inspect.isfunction)]
    own = [getattr(one, name) for name in names if name not in NOT_TOOLS and not name.startswith("_")]
    tools = {tool.__name__: tool for tool in (*trainer._standalone_tools, *own)}
    waiting = {name: tool for name, tool in tools.items() if inspect.iscoroutinefunction(tool)}
    return {name: tool for name, tool in tools.items() if name not in waiting}, waiting
