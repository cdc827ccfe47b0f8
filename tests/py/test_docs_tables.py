"""The tables of docs/protocol.md say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import moe_ep
from moe_ep import _core
from moe_ep.backends.native import core_config, core_params

ROOT = Path(__file__).parents[2]


def table(name: str) -> list[list[str]]:
    text = (ROOT / "docs/protocol.md").read_text()
    found = re.search(rf"<!-- table: {name} -->\n\|.*\n\|[-|]*\n((?:\|.*\n)+)", text)
    assert found is not None, f"docs/protocol.md has no table {name}"
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in found[1].splitlines()]


def struct_fields(struct: str) -> list[str]:
    source = (ROOT / "src/protocol/layout.hpp").read_text()
    body = re.search(rf"struct {struct} {{(.*?)\n}};", source, re.DOTALL)
    assert body is not None
    return re.findall(r"^  [\w:]+ (\w+)(?:\[[^;]*\])?;", body[1], re.MULTILINE)


def test_regions_are_those_of_the_plan_with_their_sizes() -> None:
    ranks, tokens, top_k, hidden, stats = 3, 5, 2, 7, 6
    params = moe_ep.MoEEpCommParams(6, top_k, tokens, hidden)
    config = moe_ep.HostAlltoAllConfig(eplb_stats_num_experts=stats)
    total, regions = _core.plan_workspace(ranks, core_params(params), core_config(config))
    assert [row[0] for row in table("regions")] == [name for name, _, _ in regions]
    assert sum(size for _, _, size in regions) == total
    sizes = {name: size for name, _, size in regions}
    names = {"R": ranks, "C": tokens, "E'": stats, "min(R, 64)": min(ranks, 64)}
    for name, formula, *_ in table("regions"):
        if re.fullmatch(r"\d+( (R|C|E'|min\(R, 64\)))*", formula):
            number = 1
            for factor in re.findall(r"min\(R, 64\)|E'|\d+|R|C", formula):
                number *= int(factor) if factor.isdigit() else names[factor]
            assert sizes[name] == -(-number // 128) * 128, name
    assert sizes["combine"] == -(-ranks * tokens * hidden * 2 // 128) * 128


def test_structs_have_the_fields_of_the_tables() -> None:
    for name, struct in (("header", "SliceHeader"), ("lines", "PeerLine")):
        rows = table(name)
        assert [row[0] for row in rows] == struct_fields(struct), name
        assert sum(int(row[1]) for row in rows) == 128, name


def test_signature_has_the_fields_of_the_table() -> None:
    source = (ROOT / "src/protocol/signature.hpp").read_text()
    listed = re.findall(r"X\((k\w+),", source)
    assert [row[0] for row in table("signature")] == [*listed, "kFirstRowBytes"]
