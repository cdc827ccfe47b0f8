"""Random rounds: any routing, any sizes, several on one instance."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.cases import Case
from support.oracle import run_rounds


@st.composite
def rounds(draw):
    world_size = draw(st.integers(1, 4))
    experts = world_size * draw(st.integers(1, 6))
    capacity = draw(st.integers(1, 9))
    top_k = draw(st.integers(1, min(experts, 12)))
    fixed = {
        "num_experts": experts,
        "top_k": top_k,
        "hidden_size": draw(st.integers(1, 40)),
        "capacity": capacity,
        "dtype": draw(st.sampled_from(["bfloat16", "float16", "float32"])),
        "invalid_expert_id": draw(st.sampled_from([-1, experts, 2**31 - 1])),
    }
    cases = []
    for _ in range(draw(st.integers(1, 4))):
        runtime_max = draw(st.none() | st.integers(1, capacity))
        most = runtime_max or capacity
        tokens = tuple(draw(st.integers(0, most)) for _ in range(world_size))
        extras = draw(st.integers(0, 2))
        cases.append(
            Case(
                tokens=tokens,
                runtime_max=runtime_max,
                picks=draw(
                    st.sampled_from(["random", "duplicates", "void", "all_void"])
                    | st.integers(0, world_size - 1)
                ),
                id_dtype=draw(st.sampled_from(["int32", "int64"])),
                weights=draw(st.sampled_from(["float32", "bfloat16", None])),
                scale=draw(st.none() | st.tuples(st.just("uint8"), st.integers(1, 9))),
                extras=tuple(
                    (f"x{index}", "uint8", draw(st.integers(1, 5))) for index in range(extras)
                ),
                eplb=draw(st.sampled_from([0, experts])),
                seed=draw(st.integers(0, 2**32 - 1)),
                **fixed,
            )
        )
    return cases


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(rounds())
def test_random_rounds_are_exact(backend, cases):
    """FR-034, FR-045, FR-051: whatever comes, every byte is right."""
    backend.run(cases[0].world_size, run_rounds, cases)
