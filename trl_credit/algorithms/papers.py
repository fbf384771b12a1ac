"""Citations, in the form that TRL's model cards take."""


def paper(*, key: str, title: str, authors: str, year: int, arxiv: str) -> dict[str, str]:
    """Title, arXiv id and BibTeX entry of one paper, for a trainer's `_paper`."""
    fields = {"title": f"{{{title}}}", "author": authors, "year": year, "eprint": f"arXiv:{arxiv}"}
    lines = "".join(f"    {name:<6} = {{{value}}},\n" for name, value in fields.items())
    return {"title": title, "id": arxiv, "citation": f"@article{{{key},\n{lines}}}"}


GRPO = paper(
    key="shao2024deepseekmath",
    title="DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
    authors="Zhihong Shao and Peiyi Wang and Qihao Zhu and Runxin Xu and Junxiao Song and Mingchuan Zhang and Y. K. Li "
    "and Y. Wu and Daya Guo",
    year=2024,
    arxiv="2402.03300",
)
DAPO = paper(
    key="yu2025dapo",
    title="DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
    authors="Qiying Yu and Zheng Zhang and Ruofei Zhu and Yufeng Yuan and others",
    year=2025,
    arxiv="2503.14476",
)
DR_GRPO = paper(
    key="liu2025understanding",
    title="Understanding R1-Zero-Like Training: A Critical Perspective",
    authors="Zichen Liu and Changyu Chen and Wenjun Li and Penghui Qi and Tianyu Pang and Chao Du and Wee Sun Lee and "
    "Min Lin",
    year=2025,
    arxiv="2503.20783",
)
S_TRACE = paper(
    key="mou2026beyond",
    title="Beyond Uniform Credit Assignment: Selective Eligibility Traces for RLVR",
    authors="Chaoli Mou and Zhan Zhuang and Xinning Chen and Yu Zhang",
    year=2026,
    arxiv="2605.05965",
)
GRPO_LAMBDA = paper(
    key="parthasarathi2025grpolambda",
    title="GRPO-λ: Credit Assignment improves LLM Reasoning",
    authors="Prasanna Parthasarathi and Mathieu Reymond and Boxing Chen and Yufei Cui and Sarath Chandar",
    year=2025,
    arxiv="2510.00194",
)
GSPO = paper(
    key="zheng2025group",
    title="Group Sequence Policy Optimization",
    authors="Chujie Zheng and Shixuan Liu and Mingze Li and Xiong-Hui Chen and Bowen Yu and Chang Gao and Kai Dang and "
    "Yuqiong Liu and Rui Men and An Yang and Jingren Zhou and Junyang Lin",
    year=2025,
    arxiv="2507.18071",
)
HA_DW = paper(
    key="yang2026group",
    title="Your Group-Relative Advantage Is Biased",
    authors="Fengkai Yang and Zherui Chen and Xiaohan Wang and Xiaodong Lu and others",
    year=2026,
    arxiv="2601.08521",
)
OPO = paper(
    key="hao2025onpolicy",
    title="On-Policy RL with Optimal Reward Baseline",
    authors="Yaru Hao and Li Dong and Xun Wu and Shaohan Huang and Zewen Chi and Furu Wei",
    year=2025,
    arxiv="2505.23585",
)
SPO = paper(
    key="guo2025segment",
    title="Segment Policy Optimization: Effective Segment-Level Credit Assignment in RL for Large Language Models",
    authors="Yiran Guo and Lijie Xu and Jie Liu and Dan Ye and Shuang Qiu",
    year=2025,
    arxiv="2505.23564",
)
VINE_PPO = paper(
    key="kazemnejad2024vineppo",
    title="VinePPO: Unlocking RL Potential For LLM Reasoning Through Refined Credit Assignment",
    authors="Amirhossein Kazemnejad and Milad Aghajohari and Eva Portelance and Alessandro Sordoni and Siva Reddy and "
    "Aaron Courville and Nicolas Le Roux",
    year=2024,
    arxiv="2410.01679",
)
