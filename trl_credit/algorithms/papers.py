"""Citations, in the form that TRL's model cards take."""

from importlib import import_module


def paper(*, key: str, title: str, authors: str, year: int, arxiv: str) -> dict[str, str]:
    """Title, arXiv id and BibTeX entry of one paper, for a trainer's `_paper`."""
    fields = {"title": f"{{{title}}}", "author": authors, "year": year, "eprint": f"arXiv:{arxiv}"}
    lines = "".join(f"    {name:<6} = {{{value}}},\n" for name, value in fields.items())
    return {"title": title, "id": arxiv, "citation": f"@article{{{key},\n{lines}}}"}


# in whose files the citations are that once stood here, as `papers.S_TRACE` and the like
_MOVED = {name: name.lower() for name in ("GRPO", "DAPO", "DR_GRPO", "GRPO_LAMBDA", "GSPO", "HA_DW", "OPO", "VINE_PPO")}
_MOVED |= {"S_TRACE": "p_trace", "SPO": "spo_chain"}


def __getattr__(name: str) -> dict[str, str]:
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f".{_MOVED[name]}", __package__).PAPER
