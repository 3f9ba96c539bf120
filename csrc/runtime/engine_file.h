// An engine file, mapped read-only and checked. The layout is drawn in docs/engine-file.md.
//
// Nothing in a file is trusted: sizes, offsets, counts, enumerations and shapes are checked before use, and the tensor
// records must equal what describe_weight gives for their shape. Tensor bytes are data, any value is safe to compute
// on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/plan.h"

namespace legato {

class EngineFile {
 public:
  // Maps the file and parses it; EngineFileError names the file and what is wrong. The file must only ever be replaced
  // by rename while it is mapped.
  static EngineFile open(const std::string& path);
  // The same over bytes in memory, which must outlive the object; begins at a 64-byte boundary.
  static EngineFile parse(std::span<const uint8_t> bytes);

  const PlanSpec& plan() const { return plan_; }
  std::span<const TensorView> tensors() const { return tensors_; }
  // The DATA section, in which all tensors lie.
  std::span<const uint8_t> data() const { return data_; }

 private:
  struct Mapping {
    void* data;
    size_t size;
    ~Mapping();
  };

  std::shared_ptr<const Mapping> mapping_;  // null for parse
  std::span<const uint8_t> data_;
  PlanSpec plan_;
  std::vector<TensorView> tensors_;
};

}  // namespace legato
