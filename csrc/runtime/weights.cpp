#include "runtime/weights.h"

#include <algorithm>
#include <cstring>

namespace legato {

ResidentWeights::ResidentWeights(const EngineFile& file, ThreadPool& pool)
    : memory_(file.data().size(), Pages::huge), tensors_(file.tensors().begin(), file.tensors().end()) {
  constexpr size_t kChunk = size_t{4} << 20;
  const std::span<const uint8_t> data = file.data();
  auto copy = [&](int64_t chunk, int) {
    const size_t begin = static_cast<size_t>(chunk) * kChunk;
    std::memcpy(memory_.as<uint8_t>() + begin, data.data() + begin, std::min(kChunk, data.size() - begin));
  };
  pool.run(static_cast<int64_t>((data.size() + kChunk - 1) / kChunk), copy);
  for (TensorView& tensor : tensors_) {
    tensor.data = memory_.as<uint8_t>() + (tensor.data - data.data());
    tensor.weight.panels = tensor.data;
  }
}

}  // namespace legato
