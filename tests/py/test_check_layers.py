"""tools/check_layers.py: each planted wrong arrow is found, each right one passes."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "check_layers.py"


@pytest.fixture(scope="module")
def check_layers():
    spec = importlib.util.spec_from_file_location("check_layers", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def tree(tmp_path):
    """A small tree with one file in every layer and no wrong arrow."""
    files = {
        "include/moe_ep/types.hpp": "#include <cstdint>\n",
        "include/moe_ep/rank_mask.hpp": "#include <moe_ep/types.hpp>\n",
        "include/moe_ep/error.hpp": "#include <string>\n#include <moe_ep/types.hpp>\n",
        "include/moe_ep/mpi.hpp": "#include <mpi.h>\n",
        "src/protocol/epoch.hpp": "#include <moe_ep/rank_mask.hpp>\n#include <concepts>\n",
        "src/protocol/transport/fence.hpp": '#include "protocol/epoch.hpp"\n',
        "src/comm/unix_socket.cpp": "#include <sys/socket.h>\n#include <moe_ep/error.hpp>\n",
        "src/memory/memory.hpp": "#include <sys/mman.h>\n",
        "src/backend/backend.hpp": '#include "memory/memory.hpp"\n',
        "src/host/host_backend.hpp": '#include "backend/backend.hpp"\n',
        "src/cuda/cuda_backend.hpp": '#include <cuda.h>\n#include "backend/backend.hpp"\n',
        "src/cuda/device/memory.cuh": "#include <cuda/atomic>\n#include <cstdint>\n",
        "src/cuda/kernels/dispatch.cu": (
            '#include "cuda/device/memory.cuh"\n#include "protocol/epoch.hpp"\n'
        ),
        "src/core/step.cpp": '#include "backend/backend.hpp"\n#include <vector>\n',
        "src/core/registry.cpp": '#include "host/host_backend.hpp"\n',
        "bindings/tensor.hpp": "#include <nanobind/nanobind.h>\n",
        "bindings/module.cpp": '#include <moe_ep/error.hpp>\n#include "tensor.hpp"\n',
        "python/moe_ep/__init__.py": "import json\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_this_repository_has_no_wrong_arrow(check_layers):
    assert check_layers.check(ROOT) == []


def test_right_arrows_pass(check_layers, tree):
    assert check_layers.check(tree) == []


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("include/moe_ep/types.hpp", "#include <string>", "types may not include <string>"),
        (
            "include/moe_ep/rank_mask.hpp",
            "#include <moe_ep/error.hpp>",
            "types may not include include/moe_ep/error.hpp (public)",
        ),
        (
            "include/moe_ep/error.hpp",
            '#include "protocol/epoch.hpp"',
            "public may not include src/protocol/epoch.hpp",
        ),
        (
            "include/moe_ep/error.hpp",
            '#include "../../src/protocol/epoch.hpp"',
            "public may not include src/protocol/epoch.hpp",
        ),
        ("include/moe_ep/error.hpp", "#include <unistd.h>", "public may not include <unistd.h>"),
        (
            "include/moe_ep/error.hpp",
            "#include <cuda_runtime.h>",
            "public may not include <cuda_runtime.h> (cuda)",
        ),
        ("include/moe_ep/error.hpp", "#include <mpi.h>", "public may not include <mpi.h> (mpi)"),
        (
            "src/protocol/epoch.hpp",
            "#include <moe_ep/error.hpp>",
            "protocol may not include include/moe_ep/error.hpp",
        ),
        ("src/protocol/epoch.hpp", "#include <atomic>", "protocol may not include <atomic>"),
        (
            "src/protocol/transport/fence.hpp",
            "#include <cuda/atomic>",
            "protocol may not include <cuda/atomic> (cuda)",
        ),
        (
            "src/memory/memory.hpp",
            '#include "host/host_backend.hpp"',
            "system may not include src/host/host_backend.hpp (host)",
        ),
        (
            "src/host/host_backend.hpp",
            '#include "cuda/cuda_backend.hpp"',
            "host may not include src/cuda/cuda_backend.hpp (cuda)",
        ),
        (
            "src/cuda/cuda_backend.hpp",
            '#include "host/host_backend.hpp"',
            "cuda may not include src/host/host_backend.hpp (host)",
        ),
        ("src/cuda/device/memory.cuh", "#include <vector>", "device may not include <vector>"),
        (
            "src/cuda/kernels/dispatch.cu",
            '#include "cuda/cuda_backend.hpp"',
            "device may not include src/cuda/cuda_backend.hpp",
        ),
        (
            "src/core/step.cpp",
            '#include "host/host_backend.hpp"',
            "core may not include src/host/host_backend.hpp",
        ),
        ("src/core/step.cpp", "#include <sys/mman.h>", "core may not include <sys/mman.h> (os)"),
        (
            "bindings/module.cpp",
            '#include "core/step.hpp"',
            "bindings may not include src/core/step.hpp (core)",
        ),
        ("src/core/step.cpp", "#include SOME_HEADER", "must be written out, got SOME_HEADER"),
        ("src/core/step.cpp", '#include "nowhere.hpp"', 'no file "nowhere.hpp"'),
    ],
)
def test_wrong_include_is_found(check_layers, tree, name, line, message):
    with (tree / name).open("a") as file:
        file.write(f"/* a comment\n   of two lines */\n{line}\n")
    problems = check_layers.check(tree)
    assert len(problems) == 1
    assert problems[0].startswith(f"{name}:{(tree / name).read_text().count(chr(10))}: ")
    assert message in problems[0]


@pytest.mark.parametrize(
    "text",
    [
        "// #include <cuda.h>\n",
        "/*\n#include <cuda.h>\n*/\n",
        '#include <cstdint>  // not #include "host/host_backend.hpp"\n',
    ],
)
def test_includes_in_comments_do_not_count(check_layers, tree, text):
    (tree / "src/protocol/epoch.hpp").write_text(text)
    assert check_layers.check(tree) == []


@pytest.mark.parametrize(
    "text",
    [
        "import torch\n",
        "import torch.distributed as dist\n",
        "from numpy import array\n",
        "try:\n    from mpi4py import MPI\nexcept ImportError:\n    MPI = None\n",
        "try:\n    import json\nexcept ImportError:\n    import torch\n",
        "if True:\n    import torch\n",
        "class A:\n    import torch\n",
        "with open('x') as f:\n    import torch\n",
        (
            "from typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n    import json\nelse:\n    import torch\n"
        ),
    ],
)
def test_eager_heavy_import_is_found(check_layers, tree, text):
    (tree / "python/moe_ep/__init__.py").write_text(text)
    problems = check_layers.check(tree)
    assert len(problems) == 1
    assert "inside the function that needs it" in problems[0]


@pytest.mark.parametrize(
    "text",
    [
        "from moe_ep.comm.dist import Backend\n",
        "from .comm.dist import Backend\n",
        "from .comm import dist\n",
        "import moe_ep.comm.dist\n",
        "from . import middle\n",
        "from .comm.other import x\n",
    ],
)
def test_eager_import_of_a_module_that_imports_torch_is_found(check_layers, tree, text):
    package = tree / "python/moe_ep"
    (package / "comm").mkdir()
    (package / "comm/dist.py").write_text("import json\nimport torch\n")
    (package / "comm/other.py").write_text("")
    (package / "comm/__init__.py").write_text("from .dist import Backend\n")
    (package / "middle.py").write_text("from .comm import dist\n")
    assert check_layers.check(tree) == []

    (package / "__init__.py").write_text(text)
    problems = check_layers.check(tree)
    assert len(problems) == 1
    assert problems[0].startswith("python/moe_ep/comm/dist.py:2: import torch inside")
    assert "moe_ep > " in problems[0]


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    import torch\n",
        "async def f():\n    import torch\n",
        "class A:\n    def f(self):\n        import torch\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n",
        "import typing\nif typing.TYPE_CHECKING:\n    import torch\n",
        "from . import torch\n",
        "import torchlike\n",
    ],
)
def test_lazy_import_passes(check_layers, tree, text):
    (tree / "python/moe_ep/__init__.py").write_text(text)
    assert check_layers.check(tree) == []


def test_exit_status_tells(tree):
    def run():
        return subprocess.run(
            [sys.executable, TOOL, tree], capture_output=True, text=True, check=False
        )

    assert run().returncode == 0
    with (tree / "src/core/step.cpp").open("a") as file:
        file.write('#include "cuda/cuda_backend.hpp"\n')
    failed = run()
    assert failed.returncode == 1
    assert "src/core/step.cpp:3: core may not include" in failed.stdout
