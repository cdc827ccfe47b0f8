"""Backends by name, and the choice of 'auto'."""

import pytest
import torch

import moe_ep
from moe_ep import registry

PARAMS = moe_ep.MoEEpCommParams(4, 2, 8, 16)
BOOTSTRAP = moe_ep.BootstrapConfig(1, 0)


@pytest.fixture
def clean_registry(monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


class Recorder(moe_ep.MoEEpCommunication):
    """Keeps what it was constructed with."""

    def __init__(self, bootstrap, params, config=None, **options):
        super().__init__(bootstrap, params)
        self.config, self.options = config, options

    @classmethod
    def is_platform_supported(cls):
        return True

    def dispatch(self, *args, **kwargs):
        raise NotImplementedError

    def combine(self, *args, **kwargs):
        raise NotImplementedError


def test_builtin_names():
    assert moe_ep.available_communication_backends() == [
        "cake",
        "host",
        "nvlink_one_sided",
        "nvlink_two_sided",
        "torch_dist",
    ]


def test_a_name_constructs_with_options(clean_registry):
    assert moe_ep.register_communication("recorder")(Recorder) is Recorder
    made = moe_ep.create_communication(BOOTSTRAP, PARAMS, "recorder", one=1)
    assert type(made) is Recorder
    assert (made.bootstrap, made.params, made.config, made.options) == (
        BOOTSTRAP,
        PARAMS,
        None,
        {"one": 1},
    )
    assert "recorder" in moe_ep.available_communication_backends()


def test_a_config_object_constructs_by_its_name(clean_registry):
    moe_ep.register_communication("recorder")(Recorder)

    class Anything:
        backend_name = "recorder"

    config = Anything()
    made = moe_ep.create_communication(BOOTSTRAP, PARAMS, config, two=2)
    assert made.config is config
    assert made.options == {"two": 2}


@pytest.mark.parametrize("backend", ["nothing", "", "AUTO", moe_ep.TorchDistConfig("nothing")])
def test_unknown_names_list_the_known_ones(backend):
    with pytest.raises(KeyError, match=r"cake, host, .*torch_dist or auto, got"):
        moe_ep.create_communication(BOOTSTRAP, PARAMS, backend)


@pytest.mark.parametrize("backend", [None, 5, object(), Recorder])
def test_what_is_neither_name_nor_config_is_refused(backend):
    with pytest.raises(TypeError, match="backend must be a name or a config"):
        moe_ep.create_communication(BOOTSTRAP, PARAMS, backend)


def test_names_are_taken_once(clean_registry):
    moe_ep.register_communication("recorder")(Recorder)
    moe_ep.register_communication("recorder")(Recorder)  # a reload

    class Other(Recorder):
        pass

    for name in ("recorder", "torch_dist", "host", "auto"):
        with pytest.raises(ValueError, match=f"must not be taken yet, got '{name}'"):
            moe_ep.register_communication(name)(Other)


def test_only_backends_can_register():
    with pytest.raises(TypeError, match="subclass of MoEEpCommunication"):
        moe_ep.register_communication("x")(object)
    for name in (None, "", 3):
        with pytest.raises(TypeError, match="non-empty str"):
            moe_ep.register_communication(name)


def test_the_interface_cannot_be_constructed():
    with pytest.raises(TypeError, match="abstract"):
        moe_ep.MoEEpCommunication(BOOTSTRAP, PARAMS)


def test_the_interface_has_defaults():
    instance = Recorder(BOOTSTRAP, PARAMS)
    assert instance.get_combine_input_buffer(torch.bfloat16) is None
    assert instance.last_transport is None
    instance.check()
    instance.synchronize()
    instance.destroy()
    assert Recorder.explain_platform() == ""


def support(monkeypatch, **supported):
    """Make exactly these built-in backends exist, with the reason why not, or "" if supported."""
    classes = {}
    for name, reason in supported.items():
        body = {
            "is_platform_supported": classmethod(lambda cls, reason=reason: not reason),
            "explain_platform": classmethod(lambda cls, reason=reason: reason),
        }
        classes[name] = type(name, (Recorder,), body)

    def find(name):
        if name not in classes:
            raise ImportError("not built")
        return classes[name]

    monkeypatch.setattr("moe_ep.auto.communication_class", find)
    return classes


def test_auto_takes_the_best(monkeypatch):
    classes = support(monkeypatch, nvlink_one_sided="", host="", torch_dist="")
    made = moe_ep.create_communication(BOOTSTRAP, PARAMS, "auto", timeout_sec=7)
    assert type(made) is classes["nvlink_one_sided"]
    assert made.config == moe_ep.NVLinkOneSidedConfig(timeout_sec=7)


def test_auto_passes_over_what_is_not_supported(monkeypatch):
    """FR-167: never one that cannot run here."""
    classes = support(monkeypatch, nvlink_one_sided="no GPU", cake="no GPU", host="")
    made = moe_ep.create_communication(BOOTSTRAP, PARAMS, "auto")
    assert type(made) is classes["host"]


def test_auto_passes_over_what_lacks_an_option(monkeypatch):
    classes = support(monkeypatch, nvlink_two_sided="", host="", torch_dist="")
    made = moe_ep.create_communication(BOOTSTRAP, PARAMS, "auto", enable_rank_mask=True)
    assert type(made) is classes["host"]
    made = moe_ep.create_communication(BOOTSTRAP, PARAMS, "auto", process_group=None)
    assert type(made) is classes["nvlink_two_sided"]
    assert made.config == moe_ep.NVLinkTwoSidedConfig()


def test_auto_passes_over_what_fails(monkeypatch):
    classes = support(monkeypatch, nvlink_one_sided="", host="")

    def fail(self, *args, **kwargs):
        raise moe_ep.MoEEpError("NVLinkOneSidedAlltoAll: GPUs are not connected")

    classes["nvlink_one_sided"].__init__ = fail
    made = moe_ep.create_communication(BOOTSTRAP, PARAMS, "auto")
    assert type(made) is classes["host"]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("num_experts must be divisible by 4, got 5"),
        moe_ep.MoEEpTimeoutError("late", (1,), "setup"),
    ],
)
def test_auto_does_not_hide_other_errors(monkeypatch, error):
    classes = support(monkeypatch, nvlink_one_sided="", host="")

    def fail(self, *args, **kwargs):
        raise error

    classes["nvlink_one_sided"].__init__ = fail
    with pytest.raises(type(error)) as caught:
        moe_ep.create_communication(BOOTSTRAP, PARAMS, "auto")
    assert caught.value is error


def test_auto_says_why_nothing_is_left(monkeypatch):
    support(monkeypatch, nvlink_one_sided="no GPU here", host="no memfd")
    with pytest.raises(moe_ep.MoEEpError) as caught:
        moe_ep.create_communication(BOOTSTRAP, PARAMS, "auto")
    for text in ("nvlink_one_sided: rank 0: no GPU here", "host: rank 0: no memfd", "not built"):
        assert text in str(caught.value)


def test_auto_refuses_options_that_nobody_has():
    with pytest.raises(TypeError, match="colour"):
        moe_ep.create_communication(BOOTSTRAP, PARAMS, "auto", colour=1)


class FakeComm:
    """Comm backend of rank 0 whose peers answer with a changed copy of its own record."""

    def __init__(self, changes):
        self.changes = changes
        self.calls = 0

    def Get_rank(self):
        return 0

    def Get_size(self):
        return 1 + len(self.changes)

    def allgather(self, obj):
        self.calls += 1
        return [obj, *(change({**obj, "reasons": dict(obj["reasons"])}) for change in self.changes)]

    def bcast(self, obj, root):
        raise NotImplementedError

    def barrier(self):
        raise NotImplementedError

    def Split(self, color, key):
        raise NotImplementedError


def auto_with_peer(change):
    comm = FakeComm([change])
    made = moe_ep.create_communication(
        moe_ep.BootstrapConfig(2, 0), PARAMS, "auto", comm_backend=comm
    )
    assert comm.calls == 1
    assert made.config.comm_backend is comm
    return type(made)


def test_auto_takes_what_every_rank_supports(monkeypatch):
    """FR-167: one collective, so that all ranks choose alike."""
    classes = support(monkeypatch, nvlink_one_sided="", cake="", host="")

    def lacks_one_sided(record):
        record["reasons"]["nvlink_one_sided"] = "no NVLink"
        return record

    assert auto_with_peer(lacks_one_sided) is classes["cake"]
    assert auto_with_peer(lambda record: record) is classes["nvlink_one_sided"]


def test_auto_takes_host_memory_on_one_host_only(monkeypatch):
    support(monkeypatch, host="")
    with pytest.raises(moe_ep.MoEEpError, match="several hosts"):
        auto_with_peer(lambda record: {**record, "host": "another"})


def auto_on_a_rank(context, world_size):
    import moe_ep

    group = context.state.group(tuple(range(world_size)))
    bootstrap = moe_ep.BootstrapConfig(world_size, context.rank, process_group=group)
    instance = moe_ep.create_communication(bootstrap, PARAMS, "auto")
    hidden = torch.ones(1, 16, dtype=torch.bfloat16)
    result = instance.dispatch(hidden, torch.tensor([[0, 3]]))
    combined = instance.combine(result.hidden_states)
    instance.destroy()
    return type(instance).__name__, combined.tolist()


def test_auto_on_real_ranks(ranks):
    (first, second) = ranks.run(auto_on_a_rank, 2, ranks=range(2))
    assert first == second
    assert first[1] == [[2.0] * 16]
