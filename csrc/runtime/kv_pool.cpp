#include "runtime/kv_pool.h"

#include <algorithm>
#include <cstring>

namespace legato {
namespace {

struct Element {
  int32_t bytes;
  int32_t scale_bytes;  // of a K tile and its V tile
};

Element element_of(KvType type) {
  switch (type) {
    case KvType::f32:
      return {4, 0};
    case KvType::bf16:
      return {2, 0};
    case KvType::i8:
    case KvType::e4m3:
      return {1, 2 * kKvTile * 2};
  }
  return {};
}

KvView describe(const GroupSpec& group, KvType type, int32_t block_size) {
  KvView view{};
  view.type = type;
  view.block_size = block_size;
  view.tiles_per_block = block_size / kKvTile;
  view.kv_heads = group.kv_heads;
  view.head_dim = group.head_dim;
  view.head_pad = static_cast<int32_t>(round_up(static_cast<size_t>(group.head_dim), 16));
  const Element element = element_of(type);
  view.tile_bytes = int64_t{kKvTile} * view.head_pad * element.bytes;
  view.pair_bytes = 2 * view.tile_bytes + element.scale_bytes;
  return view;
}

int64_t layer_bytes(const KvView& view) { return int64_t{view.kv_heads} * view.tiles_per_block * view.pair_bytes; }

}  // namespace

int64_t KvPool::bytes_per_block(const GroupSpec& group, KvType type, int32_t block_size) {
  return layer_bytes(describe(group, type, block_size)) * group.layers;
}

KvPool::KvPool(const GroupSpec& group, KvType type, int32_t block_size, int32_t num_blocks)
    : view_(describe(group, type, block_size)), layer_bytes_(layer_bytes(view_)) {
  view_.block_bytes = layer_bytes_ * group.layers;
  memory_ = AlignedBuffer(static_cast<size_t>(view_.block_bytes) * static_cast<size_t>(num_blocks), Pages::huge);
  view_.base = memory_.as<uint8_t>();
}

KvView KvPool::layer(int32_t layer) const {
  KvView view = view_;
  view.layer_offset = layer * layer_bytes_;
  return view;
}

std::span<uint8_t> KvPool::block(int32_t index) {
  return {view_.base + index * view_.block_bytes, static_cast<size_t>(view_.block_bytes)};
}

void KvPool::copy_block(int32_t source, int32_t target) {
  std::memmove(block(target).data(), block(source).data(), static_cast<size_t>(view_.block_bytes));
}

void KvPool::prefault(ThreadPool& pool) {
  constexpr size_t kPage = 4096, kChunk = size_t{16} << 20;
  auto touch = [this](int64_t chunk, int) {
    const size_t begin = static_cast<size_t>(chunk) * kChunk, end = std::min(begin + kChunk, memory_.size());
    for (size_t at = begin; at < end; at += kPage) static_cast<volatile uint8_t*>(view_.base)[at] = 0;
  };
  pool.run(static_cast<int64_t>((memory_.size() + kChunk - 1) / kChunk), touch);
}

}  // namespace legato
