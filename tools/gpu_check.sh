#!/usr/bin/env bash
# Builds everything and runs what needs a GPU; one verdict line a suite, at the end.
#
#   tools/gpu_check.sh [SUITE...]     build cpp soak python sanitizer bench; all without arguments
#
# Needs Python >= 3.11 with torch, nanobind, scikit-build-core and pytest installed, CMake, nvcc and
# GoogleTest; no network. Logs and figures go to GPU_CHECK_DIR (build/gpu_check).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

DIR=${GPU_CHECK_DIR:-build/gpu_check}
PYTHON=${PYTHON:-python3}
BUILD=${GPU_CHECK_BUILD:-build/gpu}
JOBS=${JOBS:-$(nproc)}
SUITES=("$@")
[ ${#SUITES[@]} -gt 0 ] || SUITES=(build cpp soak python sanitizer bench)
mkdir -p "$DIR" "$BUILD"
SITE=$(realpath -m "$BUILD/site")
export PYTHONPATH="$SITE${PYTHONPATH:+:$PYTHONPATH}"
# A kernel of another library that is loaded late may wait for ours, which waits for its rank.
export CUDA_MODULE_LOADING=EAGER
export CUDA_DEVICE_MAX_CONNECTIONS=32  # a hardware queue for each of up to 32 ranks of one process
verdicts=()

# verdict NAME COMMAND...: runs it, keeps its output, its time and whether it passed.
verdict() {
  local name=$1 log="$DIR/$1.log" start=$SECONDS
  shift
  if "$@" > "$log" 2>&1; then
    verdicts+=("PASS  $name  $((SECONDS - start)) s  $(tail -n 1 "$log" | cut -c 1-120)")
  else
    verdicts+=("FAIL  $name  $((SECONDS - start)) s  see $log")
    tail -n 40 "$log"
  fi
}

build_cpp() {
  cmake -G Ninja -S . -B "$BUILD/cpp" -DMOE_EP_CUDA=ON -DMOE_EP_CUDA_ARCHITECTURES=native \
    -DMOE_EP_BUILD_TESTS=ON -DMOE_EP_BUILD_BENCHMARKS=ON &&
    cmake --build "$BUILD/cpp" --parallel "$JOBS" --target moe_ep_gpu_tests \
      moe_ep_cuda_pair moe_ep_cuda_soak
}

build_python() {
  rm -rf "$SITE"
  CMAKE_BUILD_PARALLEL_LEVEL=$JOBS "$PYTHON" -m pip install --quiet --no-build-isolation --no-deps \
    --no-index --target "$SITE" --config-settings=cmake.define.MOE_EP_CUDA=ON \
    --config-settings=cmake.define.MOE_EP_CUDA_ARCHITECTURES=native . &&
    "$PYTHON" -c 'import moe_ep; why = moe_ep.NVLinkOneSidedAlltoAll.explain_platform(); \
print(why or "nvlink_one_sided is supported"); raise SystemExit(bool(why))'
}

run_pytest() {
  local more
  read -ra more <<< "${PYTEST_ARGS:-}"
  "$PYTHON" -m pytest -q -m gpu -p no:cacheprovider --durations=10 "${more[@]}" tests/py
}

run_sanitizer() {
  # Few cases: the tools slow kernels down a hundredfold, and waits are bounded by the clock.
  local steps='Places/DispatchCombineGpuTest.RandomStepsAreExact'
  MOE_EP_GPU_TEST_CASES=12 compute-sanitizer --tool "$1" --error-exitcode 9 \
    "$BUILD/cpp/tests/moe_ep_gpu_tests" --gtest_filter="$steps/OneGpu1:$steps/OneGpu2:$steps/OneGpu3"
}

run_bench() {
  local more
  read -ra more <<< "${BENCH_ARGS:-}"
  "$PYTHON" -m moe_ep bench --backend nvlink_one_sided --jsonl "$DIR/bench.jsonl" "${more[@]}"
}

for suite in "${SUITES[@]}"; do
  case $suite in
    build)
      verdict build_cpp build_cpp
      verdict build_python build_python
      ;;
    build_cpp | build_python) verdict "$suite" "$suite" ;;
    cpp) verdict cpp ctest --test-dir "$BUILD/cpp" -L gpu --output-on-failure --no-tests=error ;;
    soak) verdict soak "$BUILD/cpp/tests/moe_ep_cuda_soak" --steps "${SOAK_STEPS:-1000000}" ;;
    python) verdict python run_pytest ;;
    sanitizer)
      for tool in memcheck racecheck initcheck; do
        verdict "sanitizer_$tool" run_sanitizer "$tool"
      done
      ;;
    bench) verdict bench run_bench ;;
    *)
      echo "gpu_check.sh: a suite must be build, cpp, soak, python, sanitizer or bench, got $suite" >&2
      exit 2
      ;;
  esac
done

printf '%s\n' "${verdicts[@]}"
[[ "${verdicts[*]}" != *FAIL* ]]
