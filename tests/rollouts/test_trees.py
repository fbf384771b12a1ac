"""Trees: values, advantages, the rows made of them, and how they grow, on scripted and simulated engines."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trl_credit import SPOTreeConfig
from trl_credit.credit.segments import best_of_value
from trl_credit.credit.trees import sibling_advantage
from trl_credit.rollouts.tree import (
    Continuation,
    Node,
    Tree,
    assign_tree_credit,
    grow_trees,
    packed_rows,
    sample_paths,
    training_rows,
)


def build(shape, tree=None, parent=None):
    """A tree from nested lists of leaf values; tokens number the nodes, two per segment."""
    tree = tree or Tree({}, [100, 101])
    parent = parent or tree.root
    for part in shape:
        n = len(tree.root.walk())
        child = Node(parent, Continuation([2 * n, 2 * n + 1], None), parent.depth + 1)
        parent.children.append(child)
        if isinstance(part, list):
            build(part, tree, child)
        else:
            child.value = float(part)
    return tree


def credit(shape, **settings):
    tree = build(shape)
    assign_tree_credit([tree], SPOTreeConfig(**settings))
    return tree


def shapes(values, *, max_leaves):
    """Nested lists of leaf values, as `build` takes them."""
    lists = st.recursive(values, lambda inner: st.lists(inner, min_size=1, max_size=4), max_leaves=max_leaves)
    return lists.map(lambda shape: shape if isinstance(shape, list) else [shape])


def lengths(rows):
    return [len(row.prompt_ids) + len(row.completion_ids) for row in rows]


def values(nodes):
    return [node.advantage for node in nodes]


def test_an_early_finisher_counts_as_one_child():
    shape = [[1, 0, 0], [0, 0, 0], 1]
    root = credit(shape).root
    a, b, c = root.children
    assert root.value == pytest.approx(4 / 9)
    assert values([a, b, c]) == pytest.approx([-1 / 9, -4 / 9, 5 / 9])
    assert values(a.children) == pytest.approx([2 / 3, -1 / 3, -1 / 3]) and values(b.children) == [0, 0, 0]
    assert a.advantage + a.children[0].advantage == pytest.approx(1 - 4 / 9)
    assert len(training_rows(credit(shape))) == 6
    loo = credit(shape, segment_advantage="loo").root
    assert values(loo.children) == pytest.approx([-1 / 6, -2 / 3, 5 / 6])
    assert values(loo.children[0].children) == pytest.approx([1, -0.5, -0.5])
    std = credit(shape, segment_advantage="std").root
    assert values(std.children) == pytest.approx([-0.267261, -1.069045, 1.336306], abs=1e-6)
    assert values(std.children[0].children) == pytest.approx([1.414214, -0.707107, -0.707107], abs=1e-6)


@pytest.mark.parametrize("kind", ["mean", "loo", "std"])
def test_a_child_as_good_as_the_mean_has_no_advantage_whatever_is_added_to_all_rewards(kind):
    """A rounding error in its place would make it a row to train, which counts in the loss."""
    for values in ([0.15, 0.3, 0.0], [0.3, 0.325, 0.35], [0.3, 0.0375, 0.5625]):
        plain, shifted = (sibling_advantage(torch.tensor([values]) + c, kind=kind) for c in (0.0, 2.1))
        assert torch.equal(plain == 0, shifted == 0) and (plain == 0).sum() == 1
        torch.testing.assert_close(plain, shifted, rtol=1e-3, atol=0.0)
    # nor have equal siblings, and those that differ by what a mean is rounded by
    equal = [[value] * n for value, n in ((0.3, 6), (0.9, 6), (1.2, 6), (2.45, 3), (5 / 7, 7), (7 / 9, 9), (-0.3, 6))]
    for values in (*equal, [0.3, 0.3 + 3e-8, 0.3]):
        assert not sibling_advantage(torch.tensor([values]), kind=kind).any(), values


LEVEL = [st.sampled_from([-1.0, 0.1, 1.0])]
for _ in range(3):
    LEVEL.append(st.lists(st.one_of(LEVEL), min_size=2, max_size=4))


@pytest.mark.parametrize("more", [{}, {"segment_advantage": "std"}, {"process_reward_weight": 5.0}], ids=str)
@given(LEVEL[-1])
@example([[1.0, *[[-1.0, -1.0, 1.0]] * 3], [1.0, -1.0]])  # in float32 the first sums up to -3e-8
@example([0.1, -1.0, [-1.0, 0.1]])  # where the process reward rounds
@settings(max_examples=80, deadline=None)
def test_a_node_is_trained_exactly_if_its_exact_advantage_is_not_zero(more, shape):
    """Over fractions, of rewards as float32 has them; means of ±1 cancel, and the best of three tries rounds."""
    if "process_reward_weight" in more:
        more = {**more, "process_reward_best_of": 3, "reward_range": (-1.0, 1.0)}
    tree = build(shape)
    for leaf in tree.root.leaves():
        leaf.value = torch.tensor(leaf.value).item()
    assign_tree_credit([tree], SPOTreeConfig(**more))

    def exact(node):
        return sum(map(exact, node.children)) / len(node.children) if node.children else Fraction(node.value)

    # float32's 0.1 is larger by 1e-9; other differences are at least 0.1/4³/3³
    differ = [abs(exact(node) - exact(node.parent)) > 1e-8 for node in tree.root.walk()[1:]]
    assert [node.advantage != 0.0 for node in tree.root.walk()[1:]] == differ
    assert len(training_rows(tree)) == sum(differ)


def test_process_reward():
    best_of_four = {"process_reward_weight": 5.0, "process_reward_best_of": 4}
    root = credit([[1, 0], [1, 1]], **best_of_four).root
    a, b = root.children
    best = {v: 1 - (1 - v) ** 4 for v in (0.5, 0.75, 1.0)}
    assert a.advantage == pytest.approx(-0.25 + 5 * (best[0.5] - best[0.75]))
    assert b.advantage == pytest.approx(0.25 + 5 * (1 - best[0.75]))
    root = credit([[1, 0], [1, 1]], **best_of_four, process_reward_form="value").root
    assert root.children[1].children[0].advantage == pytest.approx(1.0)  # V(child), though it has no advantage
    assert root.children[0].advantage == pytest.approx(0.5 + 5 * (best[0.5] - best[0.75]))
    assert best_of_value(torch.tensor([0.25]), best_of=1) == 0.25
    with pytest.raises(ValueError, match="reward_range"):
        credit([[-2, 0], [1, 1]], process_reward_weight=5.0)
    # values that are not known, and those that a mean rounds
    root = credit([[1.1] * 10, [math.nan] * 2, math.nan, 0.1], process_reward_weight=1.0, reward_range=(0.0, 1.1)).root
    assert all(math.isfinite(n.advantage) for n in root.walk())
    root = credit([[5, math.nan], [1, 3]], process_reward_weight=1.0, reward_range=(1.0, 5.0)).root
    assert root.children[0].children[1].advantage == 0.0 and root.children[0].advantage > 0


def credited(rows):
    """(position in the response, tokens before it, token) → advantage, of all tokens that rows give credit."""
    tokens = []
    for row in rows:
        for i, token in enumerate(row.completion_ids):
            if row.segments[i] >= 0:
                tokens.append(((*row.prompt_ids, *row.completion_ids[:i]), token, row.advantages[i]))
    return sorted(tokens)


def credited_in_packed(rows):
    """As `credited`, with the context that `visible_until` leaves of each row."""
    credit = []
    for row in rows:
        tokens = [*row.prompt_ids, *row.completion_ids]
        assert len(row.visible_until) == len(tokens)
        for j in range(len(row.prompt_ids), len(tokens)):
            if row.segments[j - len(row.prompt_ids)] >= 0:
                context = tuple(tokens[i] for i in range(j) if j < row.visible_until[i])
                # the token before it, from which it is predicted, is the last one it sees
                assert j < row.visible_until[j - 1]
                credit.append((context, tokens[j], row.advantages[j - len(row.prompt_ids)]))
    return sorted(credit)


@given(shapes(st.sampled_from([0, 1]), max_leaves=20), st.integers(1, 5))
@settings(max_examples=120)
def test_all_forms_of_rows_credit_the_same_tokens_once(shape, max_rows):
    tree = credit(shape)
    nodes, paths, packed = training_rows(tree), training_rows(tree, form="paths"), packed_rows(tree, max_rows=max_rows)
    assert credited(nodes) == credited(paths) == credited_in_packed(packed)
    assert len(credited(nodes)) == len({(context, token) for context, token, _ in credited(nodes)})
    assert len(paths) <= len(nodes) == sum(node.advantage != 0 for node in tree.root.walk())
    assert sum(lengths(paths)) <= sum(lengths(nodes))
    assert len(packed) == min(max_rows, len(packed))
    if max_rows == 1 and packed:
        needed = {id(n): n for node in tree.root.walk() if node.advantage for n in node.path()}
        unique = len(tree.prompt_ids) + sum(len(n.segment.ids) for n in needed.values())
        children = [sum(id(c) in needed for c in n.children) for n in tree.root.walk()]
        copies = sum(max(n - 1, 0) for n in children)
        assert lengths(packed) == [unique + copies]


# growing


class Script:
    """A policy that writes token 1 forever, unless `ends` gives the length at which a continuation ends (token 9)."""

    def __init__(self, ends=lambda i: None, *, limit=20, context=10**6):
        self.ends, self.limit, self.context, self.calls = ends, limit, context, []

    def remaining_budget(self, prompt_length, written):
        return min(self.limit - written, self.context - prompt_length - written)

    def is_finished(self, ids, budget):
        return len(ids) < budget or ids[-1] == 9

    def continue_prefixes(self, prefixes, *, n, budgets):
        self.calls.append((len(prefixes), n, list(budgets)))
        continuations = []
        for budget in budgets:
            for i in range(n):
                end = self.ends(i)
                ids = [1] * budget if end is None or end > budget else [1] * (end - 1) + [9]
                continuations.append(Continuation(ids, None))
        return continuations


def grow(branching, script):
    trees = [Tree({}, [5]), Tree({}, [5, 5])]
    grow_trees(trees, script, branching=branching, segment_length=3)
    return trees


def test_one_call_per_level_and_only_the_last_is_free():
    script = Script()
    tree, _ = grow([2, 3, 2], script)
    assert script.calls == [(2, 2, [3] * 2), (4, 3, [3] * 4), (12, 2, [14] * 12)]
    assert len(tree.root.walk()) == 1 + 2 + 6 + 12
    assert all(leaf.truncated and len(leaf.written()) == 20 for leaf in tree.root.leaves())


def test_who_ends_early_is_a_leaf_and_stays_one_child():
    script = Script(lambda i: 2 if i == 0 else None)
    tree, _ = grow([3, 2], script)
    first, *others = tree.root.children
    assert not first.truncated and not first.children and len(first.segment.ids) == 2
    assert all(len(node.children) == 2 for node in others)
    assert script.calls[1][0] == 4
    script = Script(lambda i: 1)  # no prefix is left once all have ended
    grow([2, 2, 2], script)
    assert [prefixes for prefixes, _, _ in script.calls] == [2, 0, 0]


def test_a_full_context_is_a_truncated_leaf():
    # the second prompt is one token longer, and has no room left after two inner levels
    script = Script(context=8)
    roomy, full = grow([2, 2, 2], script)
    assert {leaf.depth for leaf in roomy.root.leaves()} == {3}
    assert {leaf.depth for leaf in full.root.leaves()} == {2} and all(x.truncated for x in full.root.leaves())
    assert script.calls[2] == (4, 2, [1] * 4)


def test_sampled_paths_are_plain_responses():
    tree = credit([[0, 0, 0, 0], 1])
    leaves = sample_paths(tree, 1000, seed="0")
    assert sum(leaf.value for leaf in leaves) == 500  # the root's children take turns
    assert {id(leaf) for leaf in leaves} == {id(leaf) for leaf in tree.root.leaves()}
    flat = credit([0, 1, 0])
    assert sample_paths(flat, 3, seed="0") == flat.root.children
