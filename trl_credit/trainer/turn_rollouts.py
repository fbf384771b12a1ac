"""Continuations of conversations with environments: from where turns begin for chains, from any token in audits."""

import copy
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from trl import GRPOTrainer
from trl.chat_template_utils import parse_response

from ..credit.tokens import turn_numbers
from .engine_calls import temporarily
from .step_rewards import Rollouts


# before TRL 1.16 the types of a call's arguments are not those of the tool
_TYPES_ARGUMENTS = "tools" in inspect.signature(parse_response).parameters


@dataclass
class _Continued:
    """A conversation that is continued from a token of a turn of a response.

    Attributes:
        row, turn, begin: The response, its turn, and the token before which it is continued.
        name: The kind of its environment, `None` if there is one kind.
        environment: Its environment, in the state before the turn.
        ids: Tokens of the response before `begin`, and those that were added.
        written: Which of `ids` the policy wrote (1) and which a tool (0).
        added: The messages of its turn and those that follow.
    """

    row: int
    turn: int
    begin: int
    name: Any
    environment: Any
    ids: list[int]
    written: list[int]
    added: list[dict]


class TurnRollouts:
    """Continues conversations of the last batch from the states in which turns began, in environments of its own.

    [`keep`] keeps them, and [`recall`] makes kept ones of any batches the last batch.

    Args:
        trainer (`GRPOTrainer`):
            With environments that have `snapshot()` and `restore(state)`.
        policy (`TrlEngine`):
            Makes the first turn of each continuation, and scores the conversations.
    """

    def __init__(self, trainer: GRPOTrainer, policy: Any) -> None:
        self._trainer, self._policy = trainer, policy
        self.batch: Rollouts | None = None  # the last one
        self.snapshots: list[list[Any]] = []  # per turn, the state of each environment before it
        self._pool: dict[Any, list[Any]] = {}
        self._kept: dict[str, tuple[Rollouts, list[Any]]] = {}

    def keep(self, name: str) -> list[str]:
        """Keeps the conversations of the last batch, with the states of their environments, and returns their names
        for [`recall`], which begin with `name`."""
        names = [f"{name}-{row}" for row in range(len(self.batch.prompts))]
        for row, key in enumerate(names):
            own = Rollouts(*([column[row]] for column in self.batch))
            self._kept[key] = own, [states[row] for states in self.snapshots]
        return names

    def recall(self, names: Sequence[str]) -> None:
        """Makes kept conversations the last batch."""
        kept = [self._kept[name] for name in names]
        self.batch = Rollouts(*(sum(column, []) for column in zip(*(own for own, _ in kept), strict=True)))
        self.snapshots = [list(states) for states in zip_longest(*(states for _, states in kept))]

    def _before(self, row: int, turn: int) -> list[dict]:
        """The messages of a response before one of its turns."""
        messages = self.batch.completions[row]
        own = [i for i, message in enumerate(messages) if message.get("role") == "assistant"]
        return messages[: own[turn]] if turn < len(own) else messages

    def continue_from(
        self,
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
                (row, b) of each state: before token b of response `row`, which the policy wrote.
            budgets (`list[int]`):
                Most tokens that may follow in each state.
            most (`int`):
                The largest number of states of all processes.
        """
        trainer = self._trainer
        prefixes = [prompt_ids[row] + completion_ids[row][:b] for row, b in places]
        continuations = iter(self._policy.continue_prefixes(prefixes, n=n, budgets=budgets))
        used: Counter = Counter()
        conversations = [
            self._begun(row, b, prefix, next(continuations).ids, completion_ids[row][:b], used)
            for (row, b), prefix in zip(places, prefixes, strict=True)
            for _ in range(n)
        ]
        self._run_tools(conversations, prompt_ids)
        # processes with fewer conversations score the first of their batch again, so that all gather equal shapes
        first = trainer.environments[0], list(completion_ids[0]), self.batch.written[0]
        scored = conversations + [_Continued(0, sys.maxsize, 0, None, *first, [])] * (n * most - len(conversations))
        rows = ([column[x.row] for x in scored] for column in (self.batch.examples, self.batch.prompts))
        completions = [self._before(x.row, x.turn) + x.added for x in scored]
        others = Rollouts(*rows, completions, [x.ids for x in scored], [x.written for x in scored])
        with temporarily(trainer, environments=[x.environment for x in scored]):
            rewards = self._policy.score_others(others, own=len(conversations))
        return rewards, [x.ids[x.begin :] for x in conversations]

    def _begun(self, row: int, b: int, prefix: list[int], new: list[int], ids: list[int], used: Counter) -> _Continued:
        """A conversation whose turn at token b ends with tokens `new`, in the environment of its kind that is `used`
        next."""
        trainer, example = self._trainer, dict(self.batch.examples[row])
        turns = turn_numbers(torch.tensor([self.batch.written[row]]))[0]
        turn, of_turn = int(turns[b]), int((turns[:b] == turns[b]).sum())  # tokens of the turn before b
        name = example.pop("environment", None) if trainer._multi_environment else None
        pool = self._pool.setdefault(name, [])
        if used[name] == len(pool):
            pool.append(trainer.environment_factories[name]())
        environment = pool[used[name]]
        used[name] += 1
        environment.reset(**example)
        environment.restore(copy.deepcopy(self.snapshots[turn][row]))
        typed = {"tools": trainer._env_tools[name]} if _TYPES_ARGUMENTS else {}
        text = prefix[len(prefix) - of_turn :] + new
        message = parse_response(trainer._tokenizer, text, prefix=prefix[: len(prefix) - of_turn], **typed)
        written = self.batch.written[row][:b] + [1] * len(new)
        return _Continued(row, turn, b, name, environment, ids + new, written, [message])

    def _run_tools(self, conversations: list[_Continued], prompt_ids: Sequence[list[int]]) -> None:
        """TRL's tool loop, for states of one turn at a time, since its number of rounds counts from the first turn."""
        trainer = self._trainer
        for turn in sorted({x.turn for x in conversations}):
            part = [x for x in conversations if x.turn == turn]
            tools = [self._tools_of(x) for x in part]
            state = {"max_tool_calling_iterations": trainer.max_tool_calling_iterations - turn}
            state |= {"environments": [x.environment for x in part], "_batch_environments": [x.name for x in part]}
            state |= {"_sync_tool_dicts": [x for x, _ in tools], "_async_tool_dicts": [x for _, x in tools]}
            prompts = [self.batch.prompts[x.row] + self._before(x.row, turn) for x in part]
            texts = [prompt_ids[x.row] for x in part], [x.ids for x in part], [x.added for x in part]
            with temporarily(trainer, **state):
                masks, messages, longer, *_ = trainer._tool_call_loop(prompts, *texts, None, None, {})
            for x, mask, added, ids in zip(part, masks, messages, longer, strict=True):
                x.written += mask[len(x.written) :]  # the loop takes the tokens before for the policy's
                x.added, x.ids = added, ids

    def _tools_of(self, conversation: _Continued) -> tuple[dict[str, Callable], dict[str, Callable]]:
        """The tools of a conversation by name, those that are not `async` and those that are."""
        trainer, tools, waiting = self._trainer, {}, {}
        for tool in trainer._env_tools[conversation.name]:  # methods of another environment of this kind
            own = tool if tool in trainer._standalone_tools else getattr(conversation.environment, tool.__name__)
            (waiting if inspect.iscoroutinefunction(own) else tools)[tool.__name__] = own
        return tools, waiting
