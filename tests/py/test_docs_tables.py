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
        if re.fullmatch(r"\d+( (R|C|E'|min\(R, 64\)))*", formula) and sizes[name] > 0:
            number = 1
            for factor in re.findall(r"min\(R, 64\)|E'|\d+|R|C", formula):
                number *= int(factor) if factor.isdigit() else names[factor]
            assert sizes[name] == -(-number // 128) * 128, name
    assert sizes["combine"] == -(-ranks * tokens * hidden * 2 // 128) * 128


def test_regions_of_transports_are_empty_unless_enabled() -> None:
    params = core_params(moe_ep.MoEEpCommParams(6, 2, 5, 7))
    for cft in (False, True):
        config = core_config(moe_ep.HostAlltoAllConfig(lamport=False, cft=cft))
        sizes = {name: size for name, _, size in _core.plan_workspace(3, params, config)[1]}
        assert all(sizes[name] == 0 for name in sizes if name.startswith("lamport"))
        counted = [sizes[name] for name in ("counters", "accounts", "landing")]
        assert counted == ([256, 128, 256] if cft else [0, 0, 0])


def test_lamport_regions_have_the_sizes_of_their_rows() -> None:
    ranks, tokens, top_k, hidden = 3, 5, 2, 7
    params = core_params(moe_ep.MoEEpCommParams(6, top_k, tokens, hidden))
    config = core_config(moe_ep.HostAlltoAllConfig(lamport=True))
    _, regions = _core.plan_workspace(ranks, params, config)
    sizes = {name: size for name, _, size in regions}
    up = lambda size, to: -(-size // to) * to  # noqa: E731
    rows = ranks * tokens
    assert sizes["lamport_lines"] == 256 * ranks
    assert sizes["lamport_tags"] == up(2 * rows * 8 * 2 * top_k, 128)
    assert sizes["lamport_rows"] == up(2 * rows * up(2 * hidden, 16), 128)
    assert sizes["lamport_combine"] == up(2 * rows * up(2 * hidden, 16), 128)


def test_sentinels_are_those_of_the_table() -> None:
    source = (ROOT / "src/protocol/transport/sentinel.hpp").read_text()
    for words, sentinel, substitute, _ in table("sentinels"):
        assert f"// | {words} | {sentinel}" in source
        assert f"0x{sentinel}u" in source
        assert f"0x{substitute}u" in source


def test_structs_have_the_fields_of_the_tables() -> None:
    for name, struct in (("header", "SliceHeader"), ("lines", "PeerLine")):
        rows = table(name)
        assert [row[0] for row in rows] == struct_fields(struct), name
        assert sum(int(row[1]) for row in rows) == 128, name


def test_signature_has_the_fields_of_the_table() -> None:
    source = (ROOT / "src/protocol/signature.hpp").read_text()
    listed = re.findall(r"X\((k\w+),", source)
    assert [row[0] for row in table("signature")] == [*listed, "kFirstRowBytes"]
