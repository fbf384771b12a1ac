"""An error of vLLM names the command that installs versions which go together, where those here do not."""

from importlib.util import find_spec

import pytest

from trl_credit.support.errors import lines_of
from trl_credit.support.vllm_set import vllm_explained, wrong_set


def failed(**options: bool) -> list[str]:
    with pytest.raises(RuntimeError) as caught, vllm_explained(**options):
        raise RuntimeError("'Parameter' object has no attribute 'weight_loader'")
    return lines_of(caught.value)[1:]


@pytest.mark.parametrize(
    ("needs", "names"), [("transformers<5,>=4", True), ("transformers>=4", False), ("tqdm", False)]
)
def test_what_vllm_needs_is_compared_with_what_is_installed(tmp_path, monkeypatch, needs, names):
    folder = tmp_path / "vllm-9.9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: 9.9\nRequires-Dist: {needs}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert (wrong_set() is not None) == names == bool(failed())
    assert failed(used=False) == []
    if names:
        (line,) = failed()
        assert line.startswith("vLLM 9.9 needs transformers<5,>=4, and transformers ")
        assert line.endswith("pip install 'trl-credit[vllm]' installs versions that go together")


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_a_run_without_vllm_says_how_to_install_it(make_trainer):
    with pytest.raises(ImportError, match="vLLM is not available") as caught:
        make_trainer("s_trace", use_vllm=True, vllm_mode="colocate")
    assert lines_of(caught.value)[1].startswith("vLLM is not installed: pip install 'trl-credit[vllm]'")
