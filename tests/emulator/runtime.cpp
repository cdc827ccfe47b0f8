// The host interface of the runtime (cuda_runtime_api.h) on the emulated machine.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "machine.hpp"

namespace {

using namespace moe_ep::emulator;

constexpr int kRubbish = 0xa7;
constexpr int kComputeMajor = 9;
constexpr std::size_t kAlignment = 256;  // of cudaMalloc

thread_local int current_device = 0;
thread_local bool has_context = false;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t answer(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

Stream& default_stream() {
  return Machine::get().device(current_device).default_stream;
}
Stream& stream_of(cudaStream_t stream) {
  return stream == nullptr ? default_stream() : *stream;
}

cudaError_t enqueue(cudaStream_t stream, std::function<void()> run) {
  Work work;
  work.run = std::move(run);
  Machine::get().enqueue(stream_of(stream), std::move(work));
  return cudaSuccess;
}

// Not rounded up, so that AddressSanitizer sees the end.
cudaError_t allocate(void** pointer, std::size_t bytes) {
  if (bytes >> 48 != 0 || ::posix_memalign(pointer, kAlignment, bytes) != 0) {
    return answer(cudaErrorMemoryAllocation);
  }
  std::memset(*pointer, kRubbish, bytes);
  return cudaSuccess;
}

}  // namespace

cudaError_t moe_ep::emulator::launch(const cudaLaunchConfig_t& config,
                                     std::function<void()> thread) {
  const dim3 &grid = config.gridDim, &block = config.blockDim;
  if (grid.x == 0 || block.x == 0 || block.x > kThreadsPerSm) {
    return answer(cudaErrorInvalidConfiguration);
  }
  if (grid.y * grid.z * block.y * block.z != 1) fault("only one dimension is emulated");
  bool early = false;
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    early = early || config.attrs[i].val.programmaticStreamSerializationAllowed != 0;
  }
  Machine::get().enqueue(stream_of(config.stream),
                         {std::move(thread), grid.x, block.x, config.dynamicSmemBytes, early});
  return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess ? "cudaSuccess" : "cudaError";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "refused by the emulator";
}
cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = Machine::get().config().num_devices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= Machine::get().config().num_devices) {
    return answer(cudaErrorInvalidDevice);
  }
  current_device = device;
  has_context = true;
  return cudaSuccess;
}
bool moe_ep::emulator::has_current_context() {
  return has_context;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? kComputeMajor
                                                          : Machine::get().config().num_sms;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {Machine::get().config().num_sms, kComputeMajor};
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  Machine::get().drain_device(current_device);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  return allocate(pointer, bytes);
}
cudaError_t cudaFree(void* pointer) {
  Machine::get().drain_device(current_device);
  std::free(pointer);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  return allocate(pointer, bytes);
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) {
  return cudaFree(pointer);
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  Machine::get().drain(default_stream());
  if (bytes != 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  Machine::get().drain(default_stream());
  std::memset(to, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new Stream;
  (*stream)->device = &Machine::get().device(current_device);
  Machine::get().attach(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Machine::get().detach(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Machine::get().drain(stream_of(stream));
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return enqueue(stream, [=] {
    if (bytes != 0) std::memcpy(to, from, bytes);
  });
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind, cudaStream_t stream) {
  return enqueue(stream, [=] {
    for (std::size_t row = 0; row < height; ++row) {
      std::memcpy(static_cast<char*>(to) + row * to_pitch,
                  static_cast<const char*>(from) + row * from_pitch, width);
    }
  });
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return enqueue(stream, [=] { std::memset(to, value, bytes); });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return enqueue(stream, [=] { function(data); });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  stream->capture = new Graph;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = std::exchange(stream->capture, nullptr);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new Graph(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  for (const Work& work : exec->works)
    Machine::get().enqueue(stream_of(stream), work);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
