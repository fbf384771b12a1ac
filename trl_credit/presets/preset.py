"""`Preset`: an algorithm's name, paper and description, and the configuration class with its published setting.

The docstring of a preset's module opens the algorithm's page in `docs/algorithms/`. After its first line, a few
sentences say what the algorithm finds wrong with GRPO's credit, what it does, and what follows. Two lines end it, for
the README's table too: when to use the algorithm, a short clause, and what it costs beside GRPO, a few words.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files

import yaml

from ..config import CreditConfig


@dataclass(frozen=True)
class Preset:
    """A named setting of the knobs.

    Attributes:
        name: The algorithm's name as people write it: "S-trace".
        paper: Title, arXiv id and BibTeX entry, see [`paper`]; of `PAPERS`.
        summary: A few words on what it does, for `--help`.
        formula: One line for the model card. ℓ and ℓ° are the log-probabilities under the current and the sampling
            policy, sg stops the gradient, g = γλ, and z is 1 at the tokens that a selector chose.
        config: The configuration class with the published setting.
        uses: Returns whether a configuration, of any preset, uses the algorithm's method and cites its paper. `None`:
            only configurations of the class `config` do.
    """

    name: str
    paper: dict[str, str]
    summary: str
    formula: str
    config: type[CreditConfig]
    uses: Callable[[CreditConfig], bool] | None = None

    @property
    def tag(self) -> str:
        """Its tag on the Hub: "vine-ppo" of "VinePPO"."""
        words = re.sub(r"(?<=[a-z])(?=[A-Z])|\W+", "-", self.name.replace("λ", "lambda"))
        return words.lower()


def paper(*, title: str, authors: str, arxiv: str) -> dict[str, str]:
    """Title, arXiv id and BibTeX entry of one paper, in the form that TRL's model cards take. The key is the first
    author, the year of the arXiv id and the first word of the title."""
    year, author = f"20{arxiv[:2]}", authors.partition(" and ")[0].split()[-1]
    word = re.sub(r"\W", "", title.split()[0].replace("λ", "lambda"))
    fields = {"title": f"{{{title}}}", "author": authors, "year": year, "eprint": f"arXiv:{arxiv}"}
    lines = "".join(f"    {name:<6} = {{{value}}},\n" for name, value in fields.items())
    return {"title": title, "id": arxiv, "citation": f"@article{{{author}{year}{word},\n".lower() + f"{lines}}}"}


# those of `papers.yaml`, by arXiv id
_ENTRIES = yaml.safe_load((files(__package__) / "papers.yaml").read_text(encoding="utf-8"))
PAPERS = {arxiv: paper(**entry, arxiv=arxiv) for arxiv, entry in _ENTRIES.items()}
