// A small engine file made in memory: one layer with a window and a rope, and a weight of every family.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/aligned.h"
#include "kernels/pack.h"
#include "runtime/sha256.h"
#include "tests/check.h"

namespace legato {

// The layout of docs/engine-file.md, written independently of the Python writer.
class TinyEngine {
 public:
  static constexpr int32_t kVocab = 40, kHidden = 48, kHeads = 2, kHeadDim = 32, kWidth = 40, kMaxPosition = 1024;
  static constexpr int32_t kWindow = 300;

  TinyEngine() {
    add_tensors();
    bytes_.resize(320);
    begin(2), plan(), end();
    begin(3);
    const size_t records = begin_;
    bytes_.resize(records + tensors_.size() * 96);
    end();
    begin(4);
    std::vector<uint8_t> table;
    for (Tensor& tensor : tensors_) {
      align();
      for (uint32_t word : tensor.facts) put(table, word);
      put(table, uint64_t{bytes_.size()}), put(table, uint64_t{tensor.data.size()}), put(table, tensor.unit);
      table.resize(table.size() + 32);
      bytes_.insert(bytes_.end(), tensor.data.begin(), tensor.data.end());
    }
    align();
    end();
    std::memcpy(bytes_.data() + records, table.data(), table.size());
    std::memcpy(bytes_.data(), "LEGATOEF", 8);
    const uint32_t counts[2] = {1, 4};
    const uint64_t sizes[2] = {bytes_.size(), 320};
    std::memcpy(bytes_.data() + 8, counts, 8);
    std::memcpy(bytes_.data() + 16, sizes, 16);
    set_section(1, 320, 0);
    sign(bytes_);
  }

  const std::vector<uint8_t>& bytes() const { return bytes_; }
  // First byte that is neither header nor record.
  size_t data_begin() const { return data_begin_; }

  // Makes the hashes fit again after a change.
  static void sign(std::vector<uint8_t>& bytes) {
    for (size_t kind = 2; kind <= 3; ++kind) {
      uint64_t place[2];
      std::memcpy(place, bytes.data() + 64 * kind + 8, 16);
      if (place[0] > bytes.size() || place[1] > bytes.size() - place[0]) continue;
      const auto hash = sha256({bytes.data() + place[0], place[1]});
      std::memcpy(bytes.data() + 64 * kind + 24, hash.data(), 32);
    }
    std::memset(bytes.data() + 32, 0, 32);
    const auto hash = sha256({bytes.data(), 320});
    std::memcpy(bytes.data() + 32, hash.data(), 32);
  }

 private:
  struct Tensor {
    uint32_t facts[10];
    uint64_t unit;
    std::vector<uint8_t> data;
  };

  template <class T>
  static void put(std::vector<uint8_t>& to, T value) {
    const auto* raw = reinterpret_cast<const uint8_t*>(&value);
    to.insert(to.end(), raw, raw + sizeof(T));
  }
  template <class T>
  void put(T value) {
    put(bytes_, value);
  }
  void words(std::initializer_list<int32_t> values) {
    for (int32_t value : values) put(value);
  }
  void align() { bytes_.resize(round_up(bytes_.size(), 64)); }
  void begin(uint32_t kind) {
    align();
    kind_ = kind, begin_ = bytes_.size();
    if (kind == 4) data_begin_ = begin_;
  }
  void end() { set_section(kind_, begin_, bytes_.size() - begin_); }
  void set_section(uint32_t kind, uint64_t offset, uint64_t size) {
    uint8_t* entry = bytes_.data() + 64 * kind;
    std::memcpy(entry, &kind, 4);
    std::memcpy(entry + 8, &offset, 8);
    std::memcpy(entry + 16, &size, 8);
  }

  float random() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<int32_t>(state_ >> 33) % 1000) / 1000.0f - 0.5f;
  }
  std::vector<float> floats(size_t count, float scale, float shift = 0.0f) {
    std::vector<float> values(count);
    for (float& value : values) value = shift + scale * random();
    return values;
  }
  static std::vector<uint8_t> raw(const std::vector<float>& values) {
    std::vector<uint8_t> bytes(values.size() * 4);
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }

  void add_vector(int32_t n, float shift) {
    std::vector<float> values = floats(static_cast<size_t>(n), 0.4f, shift);
    values.resize(round_up(values.size(), 64));
    tensors_.push_back({{2, 0, 0, static_cast<uint32_t>(n), 1}, 4, raw(values)});
  }
  void add_linear(WeightType type, int32_t n, int32_t k, int32_t group, bool has_min) {
    const std::vector<float> values = floats(static_cast<size_t>(n) * static_cast<size_t>(k), 0.6f);
    std::vector<SourceRow> rows;
    for (int32_t i = 0; i < n; ++i) {
      rows.push_back({TableType::f32, reinterpret_cast<const uint8_t*>(values.data() + int64_t{i} * k)});
    }
    Weight w{};
    std::vector<uint8_t> packed(describe_weight(type, n, k, group, 0, has_min, &w));
    CHECK(!packed.empty() && pack_weight({rows.data(), n, k}, w, 0, w.n_pad / kPanel, packed.data()) == nullptr);
    const auto u = [](auto value) { return static_cast<uint32_t>(value); };
    tensors_.push_back({{0, u(type), u(layout_id(w)), u(n), u(k), u(w.n_pad), u(w.k_pad), u(group), 0, u(has_min)},
                        w.panel_bytes,
                        std::move(packed)});
  }
  void add_tensors() {
    tensors_.push_back({{1, 0, 0, kVocab, kHidden}, kHidden * 4, raw(floats(kVocab * kHidden, 2.0f))});  // 0
    add_vector(kHidden, 1.0f);                                                                           // 1
    add_linear(WeightType::i8, (kHeads + 2) * kHeadDim, kHidden, 0, false);                              // 2 qkv
    add_vector((kHeads + 2) * kHeadDim, 0.0f);                                                           // 3 bias
    add_linear(WeightType::i4, kHidden, kHeads * kHeadDim, kI4Group, false);                             // 4 out
    add_linear(WeightType::bf16, 128, kHidden, 0, false);                                                // 5 gate, up
    add_linear(WeightType::f32, kHidden, kWidth, 0, false);                                              // 6 down
    add_linear(WeightType::i8, kVocab, kHidden, 0, false);                                               // 7 head
    add_vector(kHeadDim, 1.0f);                                                                          // 8 q norm
  }

  void op(std::initializer_list<int32_t> head, std::initializer_list<int32_t> attention, float scale, float eps) {
    words(head);
    words(attention);
    put(scale);
    put(eps);
  }
  void plan() {
    words({kVocab, kHidden, kMaxPosition, 1, 10, 1, 12, 0});
    words({1, kWindow, 1, 1, kHeadDim, 0, 0, 0});
    words({kHidden, 0, 0, 0});                  // 0 x
    words({kHidden, 2, 64, 0});                 // 1 normed, int8 in groups of 64
    words({(kHeads + 2) * kHeadDim, 0, 0, 0});  // 2 qkv
    words({kHeads * kHeadDim, 0, 0, 0});        // 3 q
    words({kHeads * kHeadDim, 2, 32, 0});       // 4 attended
    words({kHidden, 1, 0, 0});                  // 5 normed, bf16
    words({kWidth, 0, 0, 0});                   // 6 gated: a width that needs padding
    words({kHidden, 0, 0, 1});                  // 7 selected
    words({kHidden, 2, 32, 1});                 // 8 normed
    words({kVocab, 0, 0, 1});                   // 9 logits
    words({kHeadDim, 0});
    put(1.0);
    for (int32_t i = 0; i < kHeadDim / 2; ++i) put(std::pow(10000.0, -2.0 * i / kHeadDim));
    const auto shape = {0, 0, kHeads, 1, kHeadDim, 0, kWindow, 0};
    const auto none = {0, 0, 0, 0, 0, -1, 0, 0};
    op({0, -1, 0, 0, -1, 0, 0, 0}, none, 1.0f, 0.0f);  // embed
    op({1, 0, 1, 1, -1, 0, 0, 0}, none, 1.0f, 1e-5f);
    op({2, 1, 2, 2, 3, 0, 0, 0}, none, 1.0f, 0.0f);
    op({3, 2, 3, 8, -1, 0, 0, 0}, shape, 1.0f, 1e-5f);
    op({4, 3, 4, -1, -1, 0, 0, 0}, shape, 0.2f, 0.0f);
    op({2, 4, 0, 4, -1, 1, 0, 0}, none, 1.0f, 0.0f);
    op({1, 0, 5, 1, -1, 0, 0, 0}, none, 1.0f, 1e-5f);
    op({2, 5, 6, 5, -1, 2, 1, 0}, none, 1.0f, 0.0f);
    op({2, 6, 0, 6, -1, 1, 0, 0}, none, 1.0f, 0.0f);
    op({5, 0, 7, -1, -1, 0, 0, 0}, none, 1.0f, 0.0f);
    op({1, 7, 8, 1, -1, 0, 0, 0}, none, 1.0f, 1e-5f);
    op({6, 8, 9, 7, -1, 0, 0, 0}, none, 1.0f, 0.0f);
  }

  std::vector<uint8_t> bytes_;
  std::vector<Tensor> tensors_;
  uint32_t kind_ = 0;
  size_t begin_ = 0, data_begin_ = 0;
  uint64_t state_ = 1;
};

}  // namespace legato
